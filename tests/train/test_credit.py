"""From judged trajectories to advantages and to what the logs say about them."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from turnwise_jax import kernels
from turnwise_jax.algorithms import grpo, turnwise
from turnwise_jax.data.records import Dialogue, Turn
from turnwise_jax.errors import InputError
from turnwise_jax.kernels import RewardWeights
from turnwise_jax.rewards import pauc
from turnwise_jax.rewards.judges import RuleJudge
from turnwise_jax.rewards.trajectory import ReplyWindow, Trajectory, score_trajectories
from turnwise_jax.rollout.shapes import row_buckets
from turnwise_jax.train.credit import assign_credit, credit_rule, empty_scores
from turnwise_jax.train.report import group_records, group_std, reward_metrics

B, G, K = 2, 3, 3
TIMES = (2.0, 4.0, 6.0)
SILENT = "NO REPLY"
# Two prompts; the answer to one is wrong for the other.
ANSWERS = ("The red square appears.", "The blue ring leaves.")
REPLIES = (
    ((SILENT, ANSWERS[0], SILENT), (SILENT, SILENT, SILENT), (SILENT, SILENT, ANSWERS[0])),
    ((ANSWERS[1], SILENT, SILENT), (ANSWERS[0], SILENT, SILENT), (SILENT, ANSWERS[1], SILENT)),
)


class Failing(RuleJudge):
    """Fails on replies that hold a given word."""

    def __init__(self, word: str):
        super().__init__()
        self.word = word

    def ask(self, requests, on_answer=None):
        answers = super().ask(requests)
        return [None if self.word in r.reply else a for r, a in zip(requests, answers, strict=True)]


def trajectories(replies=REPLIES) -> list[Trajectory]:
    return [
        Trajectory(f"p{b}/{g}", TIMES, said, (ReplyWindow(2.0, 6.0, "What?", ANSWERS[b]),))
        for b, group in enumerate(replies)
        for g, said in enumerate(group)
    ]


DEFAULT = RewardWeights()


def credit(replies=REPLIES, *, judge=None, method=turnwise, step=100, spoil=None, weights=DEFAULT):
    judge = judge or RuleJudge()
    turns, windows, stats = score_trajectories(trajectories(replies), judge, num_windows=2)
    if spoil:
        spoil(turns)
    given = assign_credit(
        turns,
        windows,
        group_size=G,
        algorithm=method,
        settings=method.Settings(),
        weights=weights,
        omega=0.5,
        step=step,
        total_steps=100,
    )
    return given, turns, stats


def test_credit_equals_the_kernels_one_by_one():
    given, turns, _ = credit()
    _, windows, _ = score_trajectories(trajectories(), RuleJudge(), num_windows=2)
    score, prefixes = jax.jit(kernels.score_trajectory), jax.jit(kernels.prefix_scores)
    for b in range(B):
        scores = []
        for g in range(G):
            own = [type(x)(*(field[b * G + g] for field in x)) for x in (turns, windows)]
            terms = score(*own)
            scores.append(prefixes(*own))
            np.testing.assert_allclose(given.terms.reward[b, g], terms.reward, rtol=1e-6)
            np.testing.assert_allclose(given.prefix_scores[b, g], scores[-1], rtol=1e-6)
        advantage = kernels.turn_advantages(np.stack(scores), alpha=1.0)
        np.testing.assert_allclose(given.advantages[b], advantage, atol=1e-6)
        shared = kernels.group_advantages(np.stack(scores)[:, -1])
        np.testing.assert_allclose(given.shared[b], shared, atol=1e-6)


def test_rollouts_are_scored_against_their_own_prompt():
    """Swapping the prompts' replies swaps good for bad: rewards come back in place."""
    right = ((ANSWERS[0],) + (SILENT,) * 2,) * G, ((ANSWERS[1],) + (SILENT,) * 2,) * G
    given, _, _ = credit(right)
    swapped, _, _ = credit(right[::-1])
    assert (given.terms.quality == 1.0).all()
    assert (swapped.terms.quality < 0.5).all()


def test_groups_do_not_see_each_other():
    given, _, _ = credit()
    other = (REPLIES[0], ((SILENT,) * 3,) * G)
    changed, _, _ = credit(other)
    np.testing.assert_array_equal(given.advantages[0], changed.advantages[0])
    assert (given.advantages[1] != 0).any()
    np.testing.assert_array_equal(changed.advantages[1], 0.0)


HUGE = RewardWeights(quality=100.0)


def overflow(*rows):
    """Judgements so large that the reward of these rollouts is infinite under ``HUGE``."""

    def spoil(turns):
        turns.quality[rows, 1, 0] = 3e38

    return spoil


def test_reward_that_is_not_finite_masks_that_rollout_only():
    given, _, _ = credit(spoil=overflow(G + 2), weights=HUGE)
    whole, _, _ = credit(weights=HUGE)
    assert np.isfinite(given.terms.reward).tolist() == [[True] * 3, [True, True, False]]
    np.testing.assert_array_equal(given.advantages[1, 2], 0.0)
    pair = kernels.turn_advantages(given.prefix_scores[1, :2])
    np.testing.assert_allclose(given.advantages[1, :2], pair, atol=1e-6)
    assert (pair != 0).any()
    np.testing.assert_array_equal(given.advantages[0], whole.advantages[0])


def test_failed_judgement_drops_that_reply_only():
    """Neither a zero nor a yes: the reply is as if unsaid to the window, and is in no count."""
    replies = (REPLIES[0], (*REPLIES[1][:2], ("The ring sings.", ANSWERS[1], SILENT)))
    given, _, stats = credit(replies, judge=Failing("sings"))
    assert stats.total.failed > 0
    late = credit((REPLIES[0], (*REPLIES[1][:2], (SILENT, ANSWERS[1], SILENT))))[0]
    np.testing.assert_array_equal(given.terms.quality, late.terms.quality)
    np.testing.assert_array_equal(given.terms.repetition, late.terms.repetition)


# Two right replies and silence; the judge has no grade for the second.
SUNG = (
    REPLIES[0],
    (
        (ANSWERS[1], SILENT, SILENT),
        (f"{ANSWERS[1]} It sings.", SILENT, SILENT),
        (SILENT, SILENT, SILENT),
    ),
)


class Ungraded(RuleJudge):
    """Has no quality for replies that sing, and a verdict of repetition for all."""

    def ask(self, requests, on_answer=None):
        answers = super().ask(requests)
        return [
            None if r.kind == "quality" and "sings" in r.reply else a
            for r, a in zip(requests, answers, strict=True)
        ]


def graded(on_failure: str, method=turnwise, **weights):
    """(credit, turns, stats) of ``SUNG`` as a run makes it."""
    reward = pauc.Settings(on_failure=on_failure, **weights)
    scores = pauc.score(trajectories(SUNG), Ungraded(), reward, num_windows=2)
    rule = credit_rule(
        pauc, reward, group_size=G, algorithm=method, settings=method.Settings(), total_steps=100
    )
    return rule(scores, step=100), scores.turns, scores.stats


@pytest.mark.parametrize("method", [turnwise, grpo])
def test_a_rollout_with_an_ungraded_reply_is_left_out_of_its_group(method):
    given, turns, stats = graded("drop_rollout", method)
    assert np.isnan(given.terms.reward).tolist() == [[False] * 3, [False, True, False]]
    pair = given.prefix_scores[1, ::2]
    alpha = 1.0 if method is turnwise else 0.0
    expected = kernels.turn_advantages(pair, alpha=alpha)
    assert (np.asarray(expected) != 0).any()
    np.testing.assert_allclose(given.advantages[1, ::2], expected, atol=1e-6)
    np.testing.assert_array_equal(given.advantages[1, 1], 0.0)
    assert given.shared[1, 1] == 0.0
    whole, _, _ = credit(SUNG, method=method)
    np.testing.assert_array_equal(given.advantages[0], whole.advantages[0])
    metrics = reward_metrics(rollouts(SUNG), turns, given, stats)
    assert (metrics["invalid_rewards"], metrics["judge_failed"]) == (1, 1)
    assert metrics["reward"] == pytest.approx(float(np.nanmean(given.terms.reward)))
    assert metrics["pauc"] == pytest.approx(100 * float(np.nanmean(given.terms.quality)))


def test_by_the_published_rule_an_ungraded_reply_is_silence_to_its_group():
    given, turns, stats = graded("drop_reply")
    quality = given.terms.quality[1]
    assert quality[1] == quality[2] < quality[0]
    assert given.advantages[1, 1, 0] < 0 < given.advantages[1, 0, 0]
    metrics = reward_metrics(rollouts(SUNG), turns, given, stats)
    assert (metrics["invalid_rewards"], metrics["judge_failed"]) == (0, 1)


def test_a_grade_that_the_reward_does_not_use_may_fail():
    given, _, _ = graded("drop_rollout", quality=0.0)
    assert np.isfinite(given.terms.reward).all()


def test_a_reply_said_again_in_its_window_or_outside_needs_no_grade():
    """Only its first time is judged; a window that starts after the last decision is skipped."""
    windows = (ReplyWindow(2.0, 4.0, "What?", ANSWERS[0]), ReplyWindow(9.0, 9.5, "What?", "b"))
    own = Trajectory("p", TIMES, (ANSWERS[0],) * 3, windows)
    scores = pauc.score([own], RuleJudge(), pauc.Settings())
    assert scores.known.tolist() == [True]
    assert np.isnan(scores.turns.quality[0]).tolist() == [[False, True], [True, True], [True, True]]


@pytest.mark.parametrize(("step", "alpha"), [(0, 0.0), (5, 0.5), (10, 1.0)])
def test_alpha_grows_with_the_step(step, alpha):
    given, _, _ = credit(step=step)
    assert float(given.schedule["alpha"]) == alpha
    expected = kernels.turn_advantages(given.prefix_scores[0], alpha=alpha)
    np.testing.assert_allclose(given.advantages[0], expected, atol=1e-6)


def test_grpo_logs_no_alpha():
    given, _, _ = credit(method=grpo)
    assert given.schedule == {}
    np.testing.assert_allclose(given.advantages, np.repeat(given.shared[..., None], K, -1))


def test_empty_scores_have_the_shapes_of_real_ones():
    turns, windows, _ = score_trajectories(trajectories(), RuleJudge(), num_windows=2)
    empty = empty_scores(B * G, K, 2)
    for real, blank in zip((turns, windows), empty, strict=True):
        for name, value in real._asdict().items():
            like = getattr(blank, name)
            assert (like.shape, like.dtype) == (value.shape, value.dtype), name


def rollouts(replies=REPLIES, turns_of=(K, K)):
    """What the report reads of rollouts: one token a word, and the marker."""
    length = np.asarray(
        [[[len(text.split()) + 1 for text in said] for said in group] for group in replies]
    )
    return SimpleNamespace(
        length=length,
        truncated=length > 5,
        turn_mask=np.arange(K)[None] < np.asarray(turns_of)[:, None],
    )


def test_report_by_hand():
    given, turns, stats = credit()
    metrics = reward_metrics(rollouts(), turns, given, stats)
    assert metrics["non_silent"] == pytest.approx(5 / 18)
    assert metrics["reply_tokens"] == 5.0  # four words and the marker
    assert metrics["truncated"] == 0.0
    assert metrics["reward"] == pytest.approx(float(given.terms.reward.mean()))
    assert metrics["pauc"] == pytest.approx(100 * float(given.terms.quality.mean()))
    assert metrics["advantage_max"] == pytest.approx(float(np.abs(given.advantages).max()))
    spread = given.terms.reward.std(axis=1, ddof=1)
    assert spread.min() > 0
    assert metrics["group_std"] == pytest.approx(float(spread.mean()))
    assert metrics["alpha"] == 1.0
    assert (metrics["judge_asked"], metrics["judge_failed"]) == (stats.total.asked, 0)


def test_fault_11_spread_of_groups_by_hand():
    """Deviations 1 and 3; a missing reward is left out of its group, a group of one of the mean."""
    nan = np.nan
    assert group_std(np.array([[1.0, 2.0, 3.0], [0.0, 3.0, 6.0]])) == 2.0
    assert group_std(np.array([[nan, 1.0, 3.0], [5.0, nan, np.inf]])) == np.sqrt(2.0)
    assert group_std(np.array([[2.0, 2.0], [2.0, 2.0]])) == 0.0
    assert group_std(np.array([[1.0], [2.0]])) is None


def test_signal_share_counts_groups_and_turns_with_spread():
    """One prompt whose rollouts all say the same: half of the batch teaches nothing."""
    given, turns, stats = credit((REPLIES[0], (REPLIES[1][0],) * G))
    metrics = reward_metrics(rollouts(), turns, given, stats)
    assert metrics["signal"] == 0.5
    assert metrics["signal_by_turn"] == [
        0.5 * bool(np.any(given.advantages[0, :, k])) for k in range(K)
    ]
    assert metrics["signal_turns"] == pytest.approx(np.mean(metrics["signal_by_turn"]))


def test_signal_by_turn_leaves_out_turns_that_do_not_exist():
    given, turns, stats = credit()
    metrics = reward_metrics(rollouts(turns_of=(K, 1)), turns, given, stats)
    assert metrics["signal_by_turn"][2] in (0.0, 1.0)  # of one group, not two
    none = reward_metrics(rollouts(turns_of=(2, 1)), turns, given, stats)
    assert none["signal_by_turn"][2] is None


def test_report_without_a_single_reward():
    all_speak = (((ANSWERS[0],) * 3,) * G,) * B
    given, turns, stats = credit(all_speak, spoil=overflow(*range(B * G)), weights=HUGE)
    metrics = reward_metrics(rollouts(), turns, given, stats)
    assert metrics["reward"] is None
    assert metrics["group_std"] is None
    assert metrics["invalid_rewards"] == B * G
    assert metrics["signal"] == 0.0
    np.testing.assert_array_equal(given.advantages, 0.0)


def test_group_records_are_in_order():
    given, turns, _ = credit()
    dialogues = [Dialogue(f"p{b}", (Turn((), "What?", 2.0),)) for b in range(B)]
    records = group_records(trajectories(), dialogues, turns, given)
    assert [record["id"] for record in records] == [f"p{b}/{g}" for b in range(B) for g in range(G)]
    for n, record in enumerate(records):
        b, g = divmod(n, G)
        assert record["group"] == f"p{b}"
        assert record["replies"] == REPLIES[b][g]
        assert record["reward"] == float(given.terms.reward[b, g])
        assert record["turn_advantages"] == given.advantages[b, g].tolist()
        assert len(record["prefix_scores"]) == K + 1


def shapes(**changes):
    fields = {"turns": 8, "new_tokens": 12, "context": 224, "branch": 232}
    return SimpleNamespace(**{**fields, **changes})


def test_row_buckets_halve_the_sampled_tokens():
    assert row_buckets(shapes(), 3) == [(384, 24), (408, 48), (456, 96)]
    assert row_buckets(shapes(), 1) == [(456, 96)]
    assert row_buckets(shapes(), 3, shared=True) == [(160, 24), (184, 48), (232, 96)]


def test_row_buckets_hold_a_token_of_every_turn():
    """Each of 8 turns samples at least one token: rooms of 6 and 3 would hold no row."""
    assert [a for _, a in row_buckets(shapes(new_tokens=3), 4)] == [12, 24]
    assert row_buckets(shapes(new_tokens=1, branch=104), 3) == [(328, 8)]


def test_row_buckets_of_given_lengths():
    given = (10, 30, 96)
    assert row_buckets(shapes(), 3, lengths=given) == [(376, 10), (392, 30), (456, 96)]
    smaller = shapes(turns=2, branch=30)  # of another rollout bucket: it samples 24 at most
    assert row_buckets(smaller, 1, lengths=given) == [(240, 10), (256, 24)]
    with pytest.raises(InputError, match=r"may sample 96 tokens \(8 turns of 12\); add 96"):
        row_buckets(shapes(), 3, lengths=(10, 30))


@pytest.mark.parametrize("cut", [0, 3, 8])
def test_largest_row_bucket_holds_the_longest_rollout(cut):
    """Shown tokens, 8 full replies and a marker behind each that was cut, the last one included."""
    room = shapes()
    shown = room.branch - 8 * 13
    assert row_buckets(room, 3, shared=True)[-1][0] >= shown + 8 * 12 + cut
    assert row_buckets(room, 3)[-1][0] >= room.context + shown + 8 * 12 + cut
