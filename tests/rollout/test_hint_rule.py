"""When a hint is shown: both triggers, their bounds, and the plain visit after a helped one."""

from __future__ import annotations

import math

import pytest

from turnwise_jax.rollout.hints import HintRule, wants_hint
from turnwise_jax.rollout.prompt_stats import PromptStats

OFF = {"reward_at_most": -math.inf, "kl_at_most": -math.inf}
STUCK = HintRule(reward_at_most=0.5, kl_at_most=0.1, zero_streak=0, min_history=4)
STREAK = HintRule(**OFF, zero_streak=3, min_history=4)


def visited(reward: float, accuracy: float, kl: float, rollouts: int) -> PromptStats:
    stats = PromptStats()
    stats.record("p", [reward] * rollouts, [accuracy] * rollouts, kl)
    return stats


@pytest.mark.parametrize(
    ("reward", "kl", "rollouts", "hint"),
    [
        (0.5, 0.1, 4, True),  # all bounds are included
        (0.51, 0.1, 4, False),
        (0.5, 0.11, 4, False),
        (0.5, 0.1, 3, False),
        (-1.0, -0.5, 9, True),
    ],
)
def test_low_reward_and_low_kl_of_enough_rollouts(reward, kl, rollouts, hint):
    assert wants_hint("p", visited(reward, 1.0, kl, rollouts), STUCK) is hint


@pytest.mark.parametrize(
    ("accuracies", "hint"),
    [
        ([0.0, 0.0], False),
        ([0.0, 0.0, 0.0], True),  # whatever the history, it is shorter than `min_history`
        ([1.0, 0.0, 0.0, 0.0], True),
        ([0.0, 0.0, 0.0, 0.01], False),
        ([0.0, math.nan, 0.0, 0.0], True),
    ],
)
def test_a_streak_that_earned_no_accuracy(accuracies, hint):
    stats = PromptStats()
    stats.record("p", [1.0] * len(accuracies), accuracies, 9.0)
    assert wants_hint("p", stats, STREAK) is hint


def test_a_streak_runs_over_visits():
    stats = PromptStats()
    for _ in range(2):
        stats.record("p", [-1.0], [0.0])
        assert not wants_hint("p", stats, STREAK)
    stats.record("p", [-1.0], [0.0])
    assert wants_hint("p", stats, STREAK)


def test_both_triggers_off_is_never():
    never = HintRule(**OFF, zero_streak=0, min_history=0)
    assert not wants_hint("p", visited(-1.0, 0.0, 0.0, 50), never)


def test_a_prompt_never_seen_gets_no_hint():
    rule = HintRule(reward_at_most=1.0, kl_at_most=1.0, zero_streak=1, min_history=0)
    assert not wants_hint("p", PromptStats(), rule)
    assert not wants_hint("other", visited(0.0, 0.0, 0.0, 9), rule)


def test_the_plain_prompt_comes_after_a_hint_that_helped():
    stats = visited(0.0, 0.0, 0.0, 4)
    shown = []
    for hinted_accuracy, plain_accuracy in [(0.0, None), (0.0, None), (1.0, 0.0), (0.5, 1.0)]:
        shown.append(wants_hint("p", stats, STREAK))
        stats.record("p+hint", [0.0, 0.0], [0.0, hinted_accuracy])
        if plain_accuracy is not None:
            shown.append(wants_hint("p", stats, STREAK))
            stats.record("p", [0.0, 0.0], [plain_accuracy, plain_accuracy])
    # two failures with the hint, a success, the plain prompt still fails, again, solved at last
    assert shown == [True, True, True, False, True, False]
    assert not wants_hint("p", stats, STREAK)
    assert stats.streak("p+hint") == 0


def test_hinted_visits_do_not_move_the_plain_triggers():
    stats = visited(0.0, 0.0, 0.0, 4)
    stats.record("p+hint", [5.0] * 20, [0.0] * 20, 7.0)  # earned format only
    assert wants_hint("p", stats, STUCK)
    assert wants_hint("p", stats, STREAK)


def test_the_rule_goes_on_after_saving():
    stats = visited(0.0, 0.0, 0.0, 4)
    stats.record("p+hint", [1.0], [1.0])
    copy = PromptStats()
    copy.load_state(stats.state())
    for one in (stats, copy):
        assert not wants_hint("p", one, STREAK)
        one.record("p", [0.0], [0.0])
        assert wants_hint("p", one, STREAK)
