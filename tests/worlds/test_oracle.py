"""Frames, questions and answers agree: a rule that looks at decoded pixels gets full marks.

The oracle shares no code with the world. It finds the object by its distance from the background,
names its colour by the nearest of a list and its shape by overlap with outlines of its own, and
reports what the question asks for at the first decision that shows it.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from looking import look
from world_set import SEED

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import SILENCE, Dialogue
from turnwise_jax.data.video import read_frames
from turnwise_jax.kernels import score_trajectory, window_quality
from turnwise_jax.rewards.judges.rule import RuleJudge
from turnwise_jax.rewards.trajectory import ReplyWindow, Trajectory, score_trajectories
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import generate


def news(kind: str, before: tuple[str, str] | None, now: tuple[str, str] | None) -> str:
    """What a question of this kind wants to hear when the picture goes from `before` to `now`."""
    if before == now:
        return SILENCE
    new_shape = now is not None and (before is None or before[1] != now[1])
    if new_shape and kind in ("appear", "everything"):
        return f"A {now[0]} {now[1]} appears."
    if before is not None and (now is None or new_shape) and kind in ("leave", "everything"):
        return f"The {before[0]} {before[1]} leaves."
    if before is not None and now is not None and not new_shape and kind in ("turn", "everything"):
        return f"The {now[1]} turns {now[0]}."
    return SILENCE


def kind_of(question: str) -> str:
    words = question.lower().rstrip("?.").split()
    for kind, signs in (
        ("appear", {"appear", "appears"}),
        ("leave", {"leave", "leaves"}),
        ("turn", {"turn", "changes"}),
    ):
        if signs & set(words):
            return kind
    return "everything"


def oracle(dialogue: Dialogue) -> list[str]:
    """One reply per turn of the whole dialogue, from decoded pixels and the questions' words."""
    frames = [frame for turn in dialogue.turns for frame in turn.frames]
    shown = iter(read_frames(frames[0].path, [frame.time for frame in frames]))
    replies, state, kind = [], None, ""
    for turn in dialogue.turns:
        now = [look(next(shown)) for _ in turn.frames][-1]
        if turn.text and kind:
            kind = kind_of(turn.text)
            here = now is not None and kind != "leave"
            replies.append(f"A {now[0]} {now[1]} is here." if here else SILENCE)
        else:
            kind = kind or kind_of(turn.text)
            replies.append(news(kind, state, now))
        state = now
    return replies


def trajectory(dialogue: Dialogue, replies: list[str]) -> Trajectory:
    windows = tuple(ReplyWindow(w.start, w.end, w.question, w.answer) for w in dialogue.windows)
    times = tuple(turn.time for turn in dialogue.open_turns)
    return Trajectory(dialogue.id, times, tuple(replies), windows, dialogue.history)


def reward_terms(dialogues: list[Dialogue], replies: list[list[str]], **scale):
    """Eq. 1's terms, one array entry per dialogue."""
    judge = RuleJudge(levels=3 if scale.get("top_score") == 2.0 else 5)
    turns, windows, _ = score_trajectories(list(map(trajectory, dialogues, replies)), judge)
    return jax.vmap(lambda t, w: score_trajectory(t, w, **scale))(turns, windows)


@pytest.fixture(scope="module")
def dialogues(files) -> list[Dialogue]:
    return load_dialogues("mmduet2_rl", files.rl("test"))[0]


def check_full_marks(dialogues: list[Dialogue]) -> None:
    """Every window gets its answer at its first decision, and nothing else is ever said."""
    for dialogue in dialogues:
        first = dialogue.first_open
        expected = [SILENCE] * len(dialogue.open_turns)
        for window in dialogue.windows:
            inside = [k for k, t in enumerate(dialogue.open_turns) if window.start <= t.time]
            expected[inside[0]] = window.answer
        assert oracle(dialogue)[first:] == expected, dialogue.id


def test_oracle_answers_every_window_at_once_and_says_nothing_else(dialogues):
    check_full_marks(dialogues)


def test_oracle_copes_with_every_colour_shape_and_phrasing(tmp_path):
    world = World(colours=8, shapes=5, wordings=2, two_questions=0.6, dialogues_per_video=4)
    files = generate(tmp_path / "set", world, train=1, test=12, seed=SEED, progress=False)
    check_full_marks(load_dialogues("mmduet2_rl", files.rl("test"))[0])


def test_silence_scores_exactly_25_on_the_benchmarks_scale(dialogues):
    silent = [[SILENCE] * len(dialogue.open_turns) for dialogue in dialogues]
    terms = reward_terms(dialogues, silent, top_score=2.0)
    np.testing.assert_array_equal(terms.quality * 100, 25.0)
    assert (reward_terms(dialogues, silent).reward == 0.375).all()


def test_silence_of_each_window_is_a_quarter(dialogues):
    for dialogue in dialogues:
        times = np.array([turn.time for turn in dialogue.open_turns], np.float32)
        nothing = np.full(times.shape, np.nan, np.float32)
        for window in dialogue.windows:
            value = window_quality(
                times, nothing, times > 0, window.start, window.end, top_score=2.0
            )
            assert float(value) == 0.25


def test_looking_pays_and_talking_does_not(dialogues):
    """The oracle earns most, the late teacher less, a policy that always talks nothing."""
    looked = [oracle(dialogue)[dialogue.first_open :] for dialogue in dialogues]
    late = [late_replies(dialogue) for dialogue in dialogues]
    talking = [["A red square appears."] * len(d.open_turns) for d in dialogues]
    best, second, chatty = (reward_terms(dialogues, replies) for replies in (looked, late, talking))
    assert (best.repetition == 0).all()
    assert (best.out_of_window == 0).all()
    assert float(best.quality.mean()) > 0.85
    assert (best.reward >= second.reward).all()
    assert float(best.reward.mean()) > float(second.reward.mean()) + 0.4
    assert float(second.reward.mean()) > 1.0
    assert float(chatty.reward.mean()) < 0.0


def late_replies(dialogue: Dialogue) -> list[str]:
    """The right answer at the last decision of each window."""
    replies = [SILENCE] * len(dialogue.open_turns)
    for window in dialogue.windows:
        inside = [
            k for k, t in enumerate(dialogue.open_turns) if window.start <= t.time <= window.end
        ]
        replies[inside[-1]] = window.answer
    return replies


def test_the_right_replies_of_another_video_are_worth_about_silence(dialogues):
    """Answers depend on the frames: shifted to the next video they earn no more than silence."""
    same_question = [(d, e) for d, e in zip(dialogues, dialogues[2:] + dialogues[:2], strict=True)]
    replies = [oracle(other)[other.first_open :] for _, other in same_question]
    terms = reward_terms([d for d, _ in same_question], replies, top_score=2.0)
    assert float(terms.quality.mean()) < 0.3
