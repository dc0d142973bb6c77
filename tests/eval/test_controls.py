"""Controls: silence, another video's frames and sound, nothing to hear or to see."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sound_files import beeps, write_sound

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.pipeline import load_example
from turnwise_jax.data.records import Dialogue, Frame, Question, Sound, Turn, Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval.controls import (
    blanked,
    check_deprivable,
    muted,
    silent_replies,
    swap_frames,
    video_of,
)

SPEC = FrameSpec(min_pixels=56 * 56, max_pixels=56 * 84)


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


def clip(name: str, *, frames: int = 4, sound: bool = True, video: bool = True) -> Dialogue:
    """A question about a clip, a single picture (``video`` False) or only a sound (0 frames)."""
    path = f"{name}.mp4" if video else f"pictures/{name}.png"
    shown = tuple(Frame(path, 0.5 * k if video else None) for k in range(frames))
    audio = Sound(f"{name}.mp4", 0.0, 3.0) if sound else None
    turn = Turn(shown, f"question of {name}", 3.0, video=video and frames > 0, audio=audio)
    return Dialogue(name, (turn,), question=Question("q", "a"))


def test_sound_is_swapped_with_the_frames_of_one_video():
    clips = [clip(name, frames=4 + number) for number, name in enumerate("abcde")]
    for seed in range(4):
        for before, after in zip(clips, swap_frames(clips, seed=seed), strict=True):
            (own,), (turn,) = before.turns, after.turns
            donor = next(d for d in clips if d.id != before.id and video_of(d) == video_of(after))
            assert turn.audio == donor.turns[0].audio
            assert turn.frames == donor.turns[0].frames  # the whole clip, however long
            assert (turn.text, turn.time, turn.video) == (own.text, own.time, True)
            assert after.question == before.question


def test_each_turn_of_a_dialogue_gets_a_sound_of_the_video_it_gets_frames_of():
    def heard(name: str) -> Dialogue:
        turns = [
            Turn((Frame(f"{name}.mp4", t),), "", t, audio=Sound(f"{name}.mp4", t - 2, t))
            for t in (2.0, 4.0)
        ]
        return Dialogue(name, tuple(turns))

    first, second = heard("a"), heard("b")
    assert swap_frames([first, second])[0].turns == second.turns


def test_media_of_a_kind_stay_together():
    """A silent video's clip is no use to a question that hears, but the other way round it is."""
    dialogues = [clip("a"), clip("b"), clip("silent", sound=False), clip("heard", frames=0)]
    for seed in range(6):
        after = {d.id: d.turns[0] for d in swap_frames(dialogues, seed=seed)}
        assert video_of(dialogues[3]) == "heard.mp4"
        for name in "ab":
            assert after[name].frames
            assert after[name].audio.path == after[name].frames[0].path != f"{name}.mp4"
        assert after["silent"].audio is None
        assert after["heard"].frames == ()
        assert after["heard"].audio.path in ("a.mp4", "b.mp4")


def test_a_medium_that_no_other_video_has_is_refused():
    with pytest.raises(InputError, match="'a': no other video has its frames and sound and video"):
        swap_frames([clip("a"), clip("b", sound=False)])


def test_dialogues_without_media_stay_as_they_are():
    bare = Dialogue("bare", (Turn((), "text only", 0.0),))
    assert swap_frames([bare, clip("a"), clip("b")])[0] == bare


def test_pictures_of_one_folder_are_different_things_to_ask_about():
    dialogues = [clip(name, frames=1, video=False, sound=False) for name in "abc"]
    assert [video_of(d) for d in dialogues] == [f"pictures/{name}.png" for name in "abc"]
    assert len({video_of(d) for d in swap_frames(dialogues)}) == 3


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Noise pictures in one turn, a beeping video in the next, a sound alone in the last."""
    root = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    pictures = [root / f"{k}.png" for k in range(2)]
    for file in pictures:
        Image.fromarray(rng.integers(0, 256, (56, 84, 3), np.uint8)).save(file)
    film = str(
        write_sound(root / "film.mp4", beeps(3.0, (0.5, 2.0)), codec="aac", video_seconds=3.0)
    )
    turns = (
        Turn(tuple(Frame(str(file)) for file in pictures), "q", 1.0),
        Turn((Frame(film, 0.5), Frame(film, 1.5), Frame(film, 2.5)), "q", 2.0, video=True),
        Turn((), "q", 3.0, audio=Sound(film, 0.25, 2.613)),
    )
    return load_example(Dialogue("d", turns), SPEC)


def test_a_muted_example_is_what_a_silent_file_gives(example, tmp_path):
    silent = write_sound(tmp_path / "silent.wav", np.zeros(48000 * 3))
    turn = Turn((), "q", 3.0, audio=Sound(str(silent), 0.25, 2.613))
    expected = load_example(Dialogue("d", (turn,)), SPEC).sounds
    found = muted(example)
    (heard,), (nothing,) = example.sounds, found.sounds
    assert nothing.shape == heard.shape
    assert nothing.dtype == heard.dtype
    np.testing.assert_array_equal(nothing, expected[0])
    assert np.ptp(nothing) == 0 < np.ptp(heard)
    assert found.dialogue is example.dialogue
    assert found.patches is example.patches


def test_a_muted_example_keeps_the_shape_of_its_preparation(example):
    spec = SoundSpec(mel_bins=80)
    (sound,) = load_example(example.dialogue, SPEC, spec).sounds
    assert muted(example, spec).sounds[0].shape == sound.shape == (80, example.sounds[0].shape[1])


def test_a_blanked_example_is_what_grey_pictures_give(example, tmp_path):
    Image.new("RGB", (84, 56), (128, 128, 128)).save(tmp_path / "grey.png")
    turn = Turn((Frame(str(tmp_path / "grey.png")),), "q", 1.0)
    (grey,) = load_example(Dialogue("d", (turn,)), SPEC).patches
    found = blanked(example)
    assert found.grids == example.grids
    assert found.sounds is example.sounds
    np.testing.assert_array_equal(found.patches[0], grey)
    for before, after in zip(example.patches, found.patches, strict=True):
        assert after.shape == before.shape
        assert after.dtype == np.uint8
        assert (after == 128).all()
        assert before.std() > 0


def test_a_control_that_changes_nothing_is_refused():
    silent, sightless = clip("a", sound=False), clip("b", frames=0)
    check_deprivable([silent, sightless], "muted")
    check_deprivable([silent, sightless], "blanked")
    with pytest.raises(InputError, match="no dialogue has a sound") as caught:
        check_deprivable([silent], "muted")
    assert caught.value.field == "control"
    with pytest.raises(InputError, match="no dialogue has frames"):
        check_deprivable([sightless], "blanked")
