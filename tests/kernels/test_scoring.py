"""Window quality and the trajectory reward against worked numbers and the float64 reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import RewardWeights, ScoredTurns, Windows

from . import reference
from .compiled import score_trajectory, window_quality
from .trajectories import random_trajectory, simple, stack, worked_example

# Replies as (seconds after the start, share of the top score) in a window of ten seconds, and the
# window's value for (top score, omega) = (4, 0.5), (2, 0), (2, 0.5), (2, 1).
SETTINGS = [(4.0, 0.5), (2.0, 0.0), (2.0, 0.5), (2.0, 1.0)]
TABLE = {
    "none": ([], [0.125, 0.25, 0.25, 0.25]),
    "full score at once": ([(0, 1)], [1.0, 1.0, 1.0, 1.0]),
    "full score half-way": ([(5, 1)], [0.78125, 0.625, 0.8125, 1.0]),
    "full score at the very end": ([(10, 1)], [0.5625, 0.25, 0.625, 1.0]),
    "score 0 at once": ([(0, 0)], [0.0, 0.0, 0.0, 0.0]),
    "score 0 half-way": ([(5, 0)], [0.03125, 0.125, 0.0625, 0.0]),
    "half, then full": ([(2, 0.5), (6, 1)], [0.8125, 0.65, 0.825, 1.0]),
    "full, then a quarter": ([(2, 1), (6, 0.25)], [0.3875, 0.55, 0.4, 0.25]),
}


def quality_of(replies, start=0.0, end=10.0, **setting):
    """Value of a window for (time, score) replies."""
    time = [float(t) for t, _ in replies] or [0.0]
    score = [float(y) for _, y in replies] or [np.nan]
    return float(window_quality(time, score, [bool(replies)] * len(time), start, end, **setting))


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("column", range(4))
def test_window_quality_equals_the_worked_table(name, column):
    replies, expected = TABLE[name]
    top_score, omega = SETTINGS[column]
    scaled = [(100 + offset, share * top_score) for offset, share in replies]
    value = quality_of(scaled, 100.0, 110.0, top_score=top_score, omega=omega)
    assert value == pytest.approx(expected[column], abs=1e-6)


def test_both_ends_belong_to_the_window_and_nothing_beyond_does():
    assert quality_of([(0.0, 4.0)]) == 1.0
    assert quality_of([(10.0, 4.0)]) == pytest.approx(0.5625)
    assert quality_of([(-0.001, 4.0)]) == 0.125
    assert quality_of([(10.001, 4.0)]) == 0.125


def test_the_latest_score_counts_not_the_best():
    assert quality_of([(2, 4), (6, 1)]) < quality_of([(2, 4)])


def test_of_two_replies_at_one_time_the_later_counts():
    assert quality_of([(5, 4), (5, 0)]) == quality_of([(5, 0)])


def test_a_zero_length_window_is_worth_its_last_score_or_the_silent_value():
    assert quality_of([(3, 1), (3, 2)], 3.0, 3.0) == 0.5
    assert quality_of([(4, 4)], 3.0, 3.0) == 0.125


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_fault_42_a_failed_judge_call_is_dropped_not_scored_zero(missing):
    assert quality_of([(2, 2), (6, missing)]) == quality_of([(2, 2)])
    assert quality_of([(5, missing)]) == 0.125


@pytest.mark.parametrize("arguments", [{"omega": -0.1}, {"omega": 1.1}, {"top_score": 0.0}])
def test_settings_without_meaning_are_refused(arguments):
    with pytest.raises(ValueError, match=r"(omega|top_score) must be"):
        quality_of([(5, 4)], **arguments)


def test_ranks_and_lengths_are_checked_with_the_argument_named():
    with pytest.raises(ValueError, match=r"score_K should be \[K\] \(rank 1\), got shape \(1, 2\)"):
        window_quality([1.0, 2.0], [[1.0, 2.0]], [True, True], 0.0, 1.0)
    with pytest.raises(ValueError, match="mask_K has 1 entries on axis K, time_K has 2"):
        window_quality([1.0, 2.0], [1.0, 2.0], [True], 0.0, 1.0)
    turns, windows = worked_example()
    with pytest.raises(ValueError, match=r"turns\.quality should be \[K, W\]"):
        score_trajectory(turns._replace(quality=turns.quality[:, 0]), windows)
    with pytest.raises(ValueError, match=r"windows\.end has 2 entries on axis W"):
        score_trajectory(turns, windows._replace(end=np.ones(2, np.float32)))


def test_the_worked_example_term_by_term():
    result = score_trajectory(*worked_example())
    # Window [4, 8]: 2 at once, 4 at its end, held for the second half of the shrunk axis.
    assert float(result.quality) == pytest.approx(0.75)
    assert float(result.repetition) == pytest.approx(1 / 4)
    assert float(result.out_of_window) == pytest.approx(1.0)
    assert float(result.shared_prefix) == 0.0
    assert float(result.reward) == pytest.approx(1.25)


def test_silence_is_worth_the_start_score():
    assert float(score_trajectory(*simple([2.0, 8.0])).reward) == pytest.approx(0.375)


def test_empty_denominators_give_zero():
    """No window: no quality term. No decision outside a window: no D_out. No reply: no D_rep."""
    no_windows = score_trajectory(*simple([1.0, 2.0], quality=[[], None], windows=()))
    assert (float(no_windows.quality), float(no_windows.out_of_window)) == (0.0, 0.5)
    inside = score_trajectory(*simple([1.0, 2.0], quality=[4.0, None]))
    assert float(inside.out_of_window) == 0.0
    silent = score_trajectory(*simple([1.0, 20.0]))
    assert (float(silent.repetition), float(silent.shared_prefix)) == (0.0, 0.0)


@pytest.mark.parametrize("num_turns", [0, 3])
def test_no_real_turn_scores_zero(num_turns):
    turns, windows = simple([1.0] * num_turns, quality=[4.0] * num_turns)
    result = score_trajectory(turns._replace(mask=np.zeros(num_turns, bool)), windows)
    assert [float(term) for term in result] == [0.0] * 5


def test_windows_that_start_after_the_last_decision_are_skipped():
    """Neither in the mean of P nor as a place where replies are allowed; a masked later turn does
    not bring them back."""
    turns, windows = simple([2.0, 9.0], quality=[4.0, None], windows=((0.0, 4.0), (9.5, 12.0)))
    one_window = simple([2.0, 9.0], quality=[4.0, None], windows=((0.0, 4.0),))
    assert float(score_trajectory(turns, windows).quality) == pytest.approx(
        float(score_trajectory(*one_window).quality)
    )
    longer = simple([2.0, 9.0, 10.0], quality=[4.0, None, None], windows=((0.0, 4.0), (9.5, 12.0)))
    masked = longer[0]._replace(mask=np.array([True, True, False]))
    assert float(score_trajectory(masked, longer[1]).quality) == pytest.approx(
        float(score_trajectory(turns, windows).quality)
    )
    on_time = simple([2.0, 9.5], quality=[4.0, None], windows=((0.0, 4.0), (9.5, 12.0)))
    expected = (float(score_trajectory(*one_window).quality) + 0.125) / 2
    assert float(score_trajectory(*on_time).quality) == pytest.approx(expected)


def test_a_reply_in_two_windows_has_a_score_for_each():
    turns, windows = simple([5.0], quality=[[4.0, 0.0]], windows=((5.0, 10.0), (5.0, 15.0)))
    assert float(score_trajectory(turns, windows).quality) == pytest.approx(0.5)


def test_fault_42_a_missing_repetition_verdict_leaves_both_counts():
    judged = simple([1.0, 2.0, 3.0], quality=[1.0] * 3, repetitive=[1.0, 0.0, np.nan])
    assert float(score_trajectory(*judged).repetition) == pytest.approx(0.5)
    unjudged = simple([1.0, 2.0], quality=[1.0] * 2, repetitive=[np.nan, np.nan])
    assert float(score_trajectory(*unjudged).repetition) == 0.0


def test_silent_turns_never_hit_the_prefix_rule():
    turns, windows = simple([1.0, 2.0], quality=[None, 1.0], shares_prefix=[True, True])
    assert float(score_trajectory(turns, windows).shared_prefix) == pytest.approx(0.5)


def test_weights_scale_the_terms():
    turns, windows = worked_example()
    only_quality = score_trajectory(turns, windows, RewardWeights(1.0, 0.0, 0.0, 0.0))
    assert float(only_quality.reward) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "setting",
    [
        reference.Setting(),
        reference.Setting(omega=0.0, top_score=2.0),
        reference.Setting(omega=1.0),
    ],
    ids=["reward", "benchmark", "timing ignored"],
)
def test_terms_equal_the_reference_on_random_trajectories(setting):
    pairs = [random_trajectory(seed, 10, 4) for seed in range(200)]
    curve = {"omega": setting.omega, "top_score": setting.top_score}
    scored = jax.jit(jax.vmap(lambda t, w: score_trajectory(t, w, **curve)))(
        stack([pair.turns for pair in pairs]), stack([pair.windows for pair in pairs])
    )
    for i, pair in enumerate(pairs):
        expected = reference.terms(pair.decisions, pair.spans, setting)
        actual = [scored.quality[i], scored.repetition[i], scored.out_of_window[i]]
        actual = [float(value) for value in [*actual, scored.shared_prefix[i]]]
        assert actual == pytest.approx(list(expected.values()), abs=1e-5), i
        assert float(scored.reward[i]) == pytest.approx(
            reference.reward(pair.decisions, pair.spans, setting), abs=1e-5
        )


def test_the_gradient_is_that_of_the_held_scores():
    """d quality / d score is the share of the window in which that score is the height."""
    slope = jax.grad(lambda score: window_quality([2.0, 6.0], score, [True, True], 0.0, 10.0))(
        jnp.array([2.0, 4.0])
    )
    np.testing.assert_allclose(slope, [0.2 / 4, 0.7 / 4], rtol=1e-6)


def test_records_are_named_tuples_with_the_documented_fields():
    assert ScoredTurns._fields == (
        "time", "replied", "quality", "repetitive", "shares_prefix", "mask",
    )  # fmt: skip
    assert Windows._fields == ("start", "end", "mask")
    assert RewardWeights() == (3.0, 2.0, 0.5, 2.0)
