"""Text to arrays: the four terms of eq. 1 by hand and in place over a batch."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from turnwise_jax.data import records
from turnwise_jax.errors import InputError
from turnwise_jax.kernels import prefix_scores, score_trajectory
from turnwise_jax.rewards.judges import CachedJudge, Counts, Request, RuleJudge
from turnwise_jax.rewards.trajectory import (
    SILENCE,
    ReplyWindow,
    Trajectory,
    is_silent,
    score_trajectories,
)

NAN = math.nan


class TableJudge:
    """Answers from a table of (reply, question or previous); keeps what it was asked."""

    def __init__(self, table, otherwise=None):
        self.table, self.otherwise = table, otherwise
        self.calls: list[list[Request]] = []

    def ask(self, requests):
        self.calls.append(list(requests))
        return [
            self.table.get((r.reply, r.question or r.previous), self.otherwise) for r in requests
        ]


rewards = jax.jit(jax.vmap(score_trajectory))
all_prefix_scores = jax.jit(jax.vmap(prefix_scores))


def rewards_of(trajs, judge, **room):
    turns, windows, _ = score_trajectories(trajs, judge, **room)
    return rewards(turns, windows)


WORKED = Trajectory(
    id="worked",
    times=(2.0, 4.0, 6.0, 8.0, 10.0),
    replies=("new", "half right", SILENCE, " all right ", "same again"),
    windows=(ReplyWindow(4.0, 8.0, "what?", "truth"),),
)
WORKED_TABLE = {
    ("half right", "what?"): 2.0,
    ("all right", "what?"): 4.0,
    ("new", ""): 0.0,
    ("half right", "new"): 0.0,
    ("all right", "new half right"): 0.0,
    ("same again", "new half right all right"): 1.0,
}


def test_the_worked_example_of_the_facts():
    judge = TableJudge(WORKED_TABLE)
    turns, windows, stats = score_trajectories([WORKED], judge)
    terms = rewards(turns, windows)
    # omega 0.5 pulls the replies at 4 s and 8 s to 0 s and 2 s of the window of 4 s
    assert float(terms.quality[0]) == pytest.approx((2 * 2 + 2 * 4) / 16)
    assert float(terms.repetition[0]) == pytest.approx(1 / 4)
    assert float(terms.out_of_window[0]) == pytest.approx(1.0)
    assert float(terms.shared_prefix[0]) == 0.0
    assert float(terms.reward[0]) == pytest.approx(1.25)
    scores = all_prefix_scores(turns, windows)[0]
    np.testing.assert_allclose(scores, [0.375, 0.125, 1.25, 1.25, 2.0, 1.25], atol=1e-6)
    assert set(judge.calls[0]) == {
        Request("quality", "what?", "truth", reply="half right"),
        Request("quality", "what?", "truth", reply="all right"),
        Request("repetition", previous="", reply="new"),
        Request("repetition", previous="new", reply="half right"),
        Request("repetition", previous="new half right", reply="all right"),
        Request("repetition", previous="new half right all right", reply="same again"),
    }
    assert (stats.quality, stats.repetition) == (Counts(asked=2), Counts(asked=4))
    assert stats.seconds >= 0


def test_the_arrays_of_the_worked_example():
    turns, windows, _ = score_trajectories([WORKED], TableJudge(WORKED_TABLE), num_turns=6)
    np.testing.assert_array_equal(turns.time, [[2, 4, 6, 8, 10, 10]])
    np.testing.assert_array_equal(turns.replied, [[1, 1, 0, 1, 1, 0]])
    np.testing.assert_array_equal(turns.mask, [[1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(turns.quality[0, :, 0], [NAN, 2, NAN, 4, NAN, NAN])
    np.testing.assert_array_equal(turns.repetitive, [[0, 0, NAN, 0, 1, NAN]])
    np.testing.assert_array_equal(turns.shares_prefix, [[0] * 6])
    np.testing.assert_array_equal(windows.start, [[4]])
    np.testing.assert_array_equal(windows.end, [[8]])
    for array in (turns.time, turns.quality, turns.repetitive, windows.start, windows.end):
        assert array.dtype == np.float32
    for array in (turns.replied, turns.shares_prefix, turns.mask, windows.mask):
        assert array.dtype == np.bool_


# ---------------------------------------------------------------- single rules


def test_silence_is_the_exact_marker_and_an_empty_reply_is_a_reply():
    replies = (" NO REPLY\n", "no reply", "NO REPLY.", "", SILENCE)
    turns, _, _ = score_trajectories(
        [Trajectory("t", (1.0, 2.0, 3.0, 4.0, 5.0), replies)], TableJudge({}, 0.0)
    )
    np.testing.assert_array_equal(turns.replied, [[0, 1, 1, 1, 0]])


def test_silence_means_the_same_here_and_in_the_data():
    assert records.SILENCE == SILENCE
    for text in ("NO REPLY", " NO REPLY ", "NO REPLY.", "", "no reply"):
        assert records.is_silent(text) is is_silent(text)


def test_a_reply_on_the_border_of_two_windows_has_two_scores():
    windows = (ReplyWindow(0.0, 4.0, "first?", "x"), ReplyWindow(4.0, 8.0, "second?", "y"))
    trajectory = Trajectory("t", (4.0, 8.0), ("here", SILENCE), windows)
    table = {("here", "first?"): 1.0, ("here", "second?"): 3.0, ("here", ""): 0.0}
    turns, _, _ = score_trajectories([trajectory], TableJudge(table))
    np.testing.assert_array_equal(turns.quality[0], [[1, 3], [NAN, NAN]])


def test_a_text_said_again_in_the_same_window_is_judged_once_and_plotted_first():
    windows = (ReplyWindow(0.0, 5.0, "q?", "x"), ReplyWindow(6.0, 9.0, "q?", "x"))
    trajectory = Trajectory("t", (1.0, 3.0, 7.0), ("same", "same", "same "), windows)
    judge = TableJudge({("same", "q?"): 2.0, ("same", ""): 0.0})
    turns, _, stats = score_trajectories([trajectory], judge)
    np.testing.assert_array_equal(turns.quality[0], [[2, NAN], [NAN, NAN], [NAN, 2]])
    np.testing.assert_array_equal(turns.repetitive, [[0, 1, 1]])
    assert stats.quality.asked == 1
    assert stats.repetition.asked == 1


def test_windows_after_the_last_decision_are_masked_and_not_judged():
    windows = (ReplyWindow(2.0, 9.0, "q?", "x"), ReplyWindow(2.5, 9.0, "late?", "x"))
    turns, padded, stats = score_trajectories(
        [Trajectory("t", (1.0, 2.0), ("a", "b"), windows)], TableJudge({}, 1.0), num_windows=4
    )
    np.testing.assert_array_equal(padded.mask, [[1, 0, 0, 0]])
    np.testing.assert_array_equal(turns.quality[0, :, 1:], np.full((2, 3), NAN))
    assert stats.quality.asked == 1


def test_repetition_counts_the_history_and_asks_for_each_new_text_once():
    trajectory = Trajectory(
        "t",
        times=(1.0, 2.0, 3.0, 4.0, 5.0),
        replies=("old one", "fresh", SILENCE, "fresh", "more"),
        history=(" old one", SILENCE, "old two"),
    )
    judge = TableJudge({("fresh", "old one old two"): 0.0, ("more", "old one old two fresh"): 1.0})
    turns, _, _ = score_trajectories([trajectory], judge)
    np.testing.assert_array_equal(turns.repetitive, [[1, 0, NAN, 1, 1]])
    assert [r.previous for r in judge.calls[0]] == ["old one old two", "old one old two fresh"]


@pytest.mark.parametrize(
    ("replies", "history", "hits"),
    [
        (("x" * 49 + "a", "x" * 49 + "b"), (), [0, 0]),
        (("x" * 50 + "a", "x" * 50 + "b"), (), [0, 1]),
        (("x" * 50, "x" * 50), (), [0, 1]),
        (("x" * 50 + "a",), ("x" * 50 + "b",), [1]),
        (("X" * 50, "x" * 50), (), [0, 0]),
        (("é" * 50, SILENCE, "é" * 60), (), [0, 0, 1]),
        (("  " + "x" * 50, "x" * 50), (), [0, 1]),
        (("x" * 50, "y" * 50, "x" * 55, "x" * 52), (), [0, 0, 1, 1]),
        (("y" + "x" * 60, "x" * 60), (), [0, 0]),
    ],
)
def test_a_shared_prefix_is_fifty_characters_with_any_earlier_reply(replies, history, hits):
    times = tuple(float(k) for k in range(len(replies)))
    trajectory = Trajectory("t", times, replies, history=history)
    turns, _, _ = score_trajectories([trajectory], TableJudge({}, 0.0))
    np.testing.assert_array_equal(turns.shares_prefix, [hits])


def test_the_length_of_the_prefix_can_be_set_and_silence_never_hits():
    trajectory = Trajectory("t", (1.0, 2.0, 3.0), (SILENCE, SILENCE, "NO REPLY?"))
    turns, _, _ = score_trajectories([trajectory], TableJudge({}, 0.0), prefix_chars=3)
    np.testing.assert_array_equal(turns.shares_prefix, [[0, 0, 0]])
    with pytest.raises(InputError, match="prefix_chars"):
        score_trajectories([trajectory], TableJudge({}), prefix_chars=0)


# ---------------------------------------------------------------- batches


def one_reply(name: str, answer: str, reply: str) -> Trajectory:
    window = ReplyWindow(0.0, 4.0, f"question of {name}", answer)
    return Trajectory(name, (2.0, 4.0), (reply, SILENCE), (window,))


def test_every_rollout_is_scored_against_its_own_prompt():
    """known-faults 6: two prompts with two rollouts each come back in place."""
    trajs = [
        one_reply("p0", "A red circle.", "A red circle."),
        one_reply("p0", "A red circle.", "A blue square."),
        one_reply("p1", "A blue square.", "A red circle."),
        one_reply("p1", "A blue square.", "A blue square."),
    ]
    turns, _, _ = score_trajectories(trajs, RuleJudge())
    np.testing.assert_array_equal(turns.quality[:, 0, 0], [4, 0, 0, 4])
    quality = rewards_of(trajs, RuleJudge()).quality
    reverse = rewards_of(trajs[::-1], RuleJudge()).quality
    np.testing.assert_array_equal(quality, reverse[::-1])
    assert quality[0] == quality[3] > quality[1] == quality[2]


def test_equal_requests_of_the_whole_batch_are_asked_once_in_one_call():
    judge = TableJudge({}, 1.0)
    trajs = [WORKED._replace(id=str(n)) for n in range(4)]
    _, _, stats = score_trajectories(trajs, judge)
    assert len(judge.calls) == 1
    assert len(judge.calls[0]) == len(set(judge.calls[0])) == 6
    assert stats.total.asked == 6


@pytest.mark.parametrize("failure", [None, NAN, math.inf])
def test_a_failed_request_is_missing_in_its_place_and_nowhere_else(failure):
    """known-faults 3 and 42: neither a yes, a no nor a zero, and nobody else's."""
    healthy = one_reply("p0", "x", "fine")
    broken = one_reply("p1", "x", "broken")
    table = {
        ("fine", "question of p0"): 3.0,
        ("fine", ""): 0.0,
        ("broken", "question of p1"): failure,
        ("broken", ""): failure,
    }
    turns, windows, stats = score_trajectories([healthy, broken, healthy], TableJudge(table))
    np.testing.assert_array_equal(turns.quality[:, 0, 0], [3, NAN, 3])
    np.testing.assert_array_equal(turns.repetitive[:, 0], [0, NAN, 0])
    assert (stats.quality, stats.repetition) == (Counts(2, failed=1), Counts(2, failed=1))
    terms = rewards(turns, windows)
    np.testing.assert_allclose(terms.quality, [9.5 / 16, 0.125, 9.5 / 16])
    np.testing.assert_array_equal(terms.repetition, [0, 0, 0])


def test_stats_tell_what_the_cache_answered(tmp_path):
    judge = CachedJudge(RuleJudge(), tmp_path / "judge.jsonl")
    _, _, first = score_trajectories([WORKED], judge)
    _, _, second = score_trajectories([WORKED], judge)
    judge.close()
    assert (first.quality, first.repetition) == (Counts(2), Counts(4))
    assert (second.quality, second.repetition) == (Counts(2, cached=2), Counts(4, cached=4))


def test_nothing_to_judge_asks_nothing():
    judge = TableJudge({})
    silent = Trajectory("t", (1.0,), (SILENCE,), (ReplyWindow(0.0, 1.0, "q", "a"),))
    turns, windows, stats = score_trajectories([silent, Trajectory("no turns", (), ())], judge)
    assert judge.calls == []
    assert stats.total == Counts()
    np.testing.assert_array_equal(turns.mask, [[1], [0]])
    np.testing.assert_allclose(rewards(turns, windows).reward, [0.375, 0.0])


def test_an_empty_batch_is_an_empty_batch():
    turns, windows, _ = score_trajectories([], TableJudge({}), num_turns=3, num_windows=2)
    assert turns.quality.shape == (0, 3, 2)
    assert windows.mask.shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "room", "message"),
    [
        ({"times": (1.0, 2.0)}, {}, "record 'worked': field 'replies': 5 replies at 2 decision"),
        ({"times": (2.0, 4.0, 3.0, 8.0, 9.0)}, {}, "field 'times': .* must not fall"),
        ({"times": (2.0, 4.0, NAN, 8.0, 9.0)}, {}, "field 'times': .* finite"),
        ({"windows": (ReplyWindow(5.0, 4.0, "q", "a"),)}, {}, "field 'windows': window .5.0, 4.0."),
        ({"windows": (ReplyWindow(NAN, 4.0, "q", "a"),)}, {}, "field 'windows'"),
        ({}, {"num_turns": 4}, "record 'worked': field 'times': 5 where there is room for 4"),
        ({}, {"num_windows": 0}, "record 'worked': field 'windows': 1 where"),
    ],
)
def test_impossible_trajectories_are_refused(changes, room, message):
    with pytest.raises(InputError, match=message):
        score_trajectories([WORKED._replace(**changes)], TableJudge(WORKED_TABLE), **room)
