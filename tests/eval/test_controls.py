"""Controls: silence, and another video's frames."""

from __future__ import annotations

import pytest

from turnwise_jax.data.records import Dialogue, Frame, Turn, Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval.controls import silent_replies, swap_frames, video_of


def dialogue(name: str, video: str, turns: int = 3) -> Dialogue:
    made = [
        Turn(
            frames=(Frame(video, 2.0 * k + 1), Frame(video, 2.0 * k + 2)),
            text=f"question of {name}" if k == 0 else "",
            time=2.0 * k + 2,
            reply="given" if k == 0 else None,
        )
        for k in range(turns)
    ]
    return Dialogue(name, tuple(made), (Window(0.0, 4.0, "q", name),), history=("given",))


def test_every_dialogue_gets_one_other_video_and_each_is_used_once():
    dialogues = [dialogue(f"{v}-{q}", f"{v}.mp4") for v in range(9) for q in range(2)]
    for seed in range(5):
        swapped = swap_frames(dialogues, seed=seed)
        shown = {
            video_of(before): video_of(after)
            for before, after in zip(dialogues, swapped, strict=True)
        }
        assert all(own != other for own, other in shown.items())
        assert sorted(shown.values()) == sorted(shown)
        for before, after in zip(dialogues, swapped, strict=True):
            assert video_of(after) == shown[video_of(before)]
            assert {f.path for t in after.turns for f in t.frames} == {video_of(after)}


def test_all_but_the_frames_stays():
    dialogues = [dialogue("a", "a.mp4"), dialogue("b", "b.mp4")]
    for before, after in zip(dialogues, swap_frames(dialogues), strict=True):
        assert (after.id, after.windows, after.history) == (before.id, before.windows, ("given",))
        for turn, other in zip(before.turns, after.turns, strict=True):
            assert (other.text, other.time, other.reply) == (turn.text, turn.time, turn.reply)
            assert [f.time for f in other.frames] == [f.time for f in turn.frames]


def test_frames_start_again_when_the_other_video_is_shorter():
    long, short = dialogue("a", "a.mp4", turns=4), dialogue("b", "b.mp4", turns=2)
    taken = swap_frames([long, short])[0]
    assert [f.time for t in taken.turns for f in t.frames] == [1, 2, 3, 4, 1, 2, 3, 4]


def test_image_folders_are_videos_too():
    turn = Turn((Frame("clips/7/000001.jpg"),), "", 2.0)
    assert video_of(Dialogue("d", (turn,))) == "clips/7"
    assert video_of(Dialogue("d", (Turn((), "text only", 0.0),))) == ""


def test_one_video_cannot_be_swapped():
    with pytest.raises(InputError, match="at least two videos, there are 1"):
        swap_frames([dialogue("a", "a.mp4"), dialogue("b", "a.mp4")])


def test_silence_fills_the_open_turns():
    assert silent_replies(dialogue("a", "a.mp4")) == ["NO REPLY", "NO REPLY"]
