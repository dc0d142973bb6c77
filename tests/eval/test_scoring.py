"""Credit of finished dialogues against eq. 2-4 written out in NumPy."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from turnwise_jax.data.records import Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.scoring import assign_credit, judged
from turnwise_jax.rewards.judges import RuleJudge

SILENT = "NO REPLY"
TIMES = (2.0, 4.0, 6.0, 8.0, 10.0)
WINDOWS = (Window(4.0, 8.0, "What?", "A red circle appears."),)

# facts 2: judgements given, U_0..U_5 known.
EXAMPLE = Prediction(
    id="p#0",
    times=TIMES,
    replies=("new", "half", SILENT, "full", "said before"),
    windows=WINDOWS,
    group="p",
    quality=((None,), (2.0,), (None,), (4.0,), (None,)),
    repetitive=(0.0, 0.0, None, 0.0, 1.0),
)
EXAMPLE_SCORES = [0.375, 0.125, 1.25, 1.25, 2.0, 1.25]
QUIET = Prediction("p#1", TIMES, (SILENT,) * 5, WINDOWS, group="p")
RIGHT = Prediction(
    "p#2", TIMES, (SILENT, "A red circle appears.", SILENT, SILENT, SILENT), WINDOWS, group="p"
)


class Nobody:
    def ask(self, requests):
        raise AssertionError(f"asked about {requests}")


def test_the_worked_prefix_scores_from_given_judgements():
    (credit,), stats = assign_credit([dataclasses.replace(EXAMPLE, group=None)], Nobody())
    np.testing.assert_allclose(credit.prefix_scores, EXAMPLE_SCORES, atol=1e-6)
    np.testing.assert_allclose(credit.increments, [-0.25, 1.125, 0, 0.75, -0.75], atol=1e-6)
    assert credit.terms["reward"] == pytest.approx(1.25)
    assert credit.shared is None
    assert credit.turn is None
    assert stats.total.asked == 0


def test_given_and_fresh_judgements_mix_in_place():
    credits, stats = assign_credit([QUIET, EXAMPLE, RIGHT], RuleJudge())
    assert [c.terms["reward"] for c in credits] == pytest.approx([0.375, 1.25, 3.0])
    np.testing.assert_allclose(credits[1].prefix_scores, EXAMPLE_SCORES, atol=1e-6)
    assert (stats.quality.asked, stats.repetition.asked) == (1, 1)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_advantages_are_eq_5_within_each_group(alpha):
    other = [dataclasses.replace(p, id=f"q#{n}", group="q") for n, p in enumerate([RIGHT, QUIET])]
    mixed = [EXAMPLE, other[0], QUIET, other[1], RIGHT]
    credits, _ = assign_credit(mixed, RuleJudge(), alpha=alpha, eps=1e-6, clip=1.1)
    for members in ([0, 2, 4], [1, 3]):
        u = np.array([credits[n].prefix_scores for n in members])
        reward, accrued = u[:, -1], u[:, :-1] - u[:, :1]
        scale = reward.std(ddof=1) + 1e-6
        shared = (reward - reward.mean()) / scale
        turn = shared[:, None] - alpha * (accrued - accrued.mean(0)) / scale
        for row, n in enumerate(members):
            assert credits[n].shared == pytest.approx(np.clip(shared[row], -1.1, 1.1), abs=1e-5)
            np.testing.assert_allclose(credits[n].turn, np.clip(turn[row], -1.1, 1.1), atol=1e-5)


def test_a_prompt_seen_at_two_steps_is_two_groups():
    members = [RIGHT, QUIET]
    steps = [dataclasses.replace(p, step=step) for step in (4, 9) for p in members]
    alone, _ = assign_credit(members, RuleJudge())
    both, _ = assign_credit(steps, RuleJudge())
    assert [c.turn for c in both] == [c.turn for c in alone] * 2


def test_a_group_of_one_has_no_signal():
    (credit,), _ = assign_credit([RIGHT], RuleJudge())
    assert credit.shared == 0.0
    assert credit.turn == (0.0,) * 5


def test_dialogues_of_different_length_keep_their_own():
    short = Prediction("s", (2.0,), ("hello",), ())
    credits, _ = assign_credit([short, EXAMPLE], RuleJudge())
    assert [len(c.prefix_scores) for c in credits] == [2, 6]
    assert credits[0].terms["reward"] == pytest.approx(-0.5)
    json.dumps([c.to_json() for c in credits], allow_nan=False)


def test_rollouts_of_one_group_decide_at_the_same_times():
    """Turn by turn; one that ended early keeps its last score."""
    early = dataclasses.replace(RIGHT, id="p#3", times=TIMES[:2], replies=RIGHT.replies[:2])
    credits, _ = assign_credit([QUIET, early, RIGHT], RuleJudge(), file="log.jsonl")
    assert len(credits[1].turn) == 2
    assert credits[1].shared == pytest.approx(credits[2].shared)
    moved = dataclasses.replace(early, times=(2.0, 4.5))
    with pytest.raises(InputError, match=r"4.5 s where p#1 of the same group 'p' does at 4 s") as e:
        assign_credit([QUIET, moved, RIGHT], Nobody(), file="log.jsonl")
    assert (e.value.file, e.value.record, e.value.field) == ("log.jsonl", "p#3", "times[1]")
    others = (dataclasses.replace(moved, group="q"), dataclasses.replace(moved, step=7))
    assign_credit([QUIET, *others], RuleJudge())


def test_judgements_of_a_log_land_at_their_turn_and_window():
    two = dataclasses.replace(
        EXAMPLE,
        windows=(*WINDOWS, Window(8.0, 9.0, "What?", "b")),
        quality=((None, None), (2.0, None), (None, None), (4.0, 1.0), (None, None)),
    )
    turns, windows, _ = judged([two, EXAMPLE], Nobody())
    expected = np.full((5, 2), np.nan)
    expected[1, 0], expected[3] = 2.0, [4.0, 1.0]
    np.testing.assert_array_equal(turns.quality[0], expected)
    np.testing.assert_array_equal(turns.repetitive[1], [0, 0, np.nan, 0, 1])
    np.testing.assert_array_equal(windows.mask, [[True, True], [True, False]])


def test_nothing_gives_nothing():
    credits, stats = assign_credit([], RuleJudge())
    assert credits == []
    assert stats.total.asked == 0
