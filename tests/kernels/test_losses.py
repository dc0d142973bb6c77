"""Token losses: values, gradients, extremes, and what the KL estimators estimate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import (
    clipped_surrogate,
    clipped_tokens,
    cross_entropy,
    importance_ratio,
    kl_estimate,
    mean_of_terms,
    replay_mean,
    tas_weights,
    token_mean,
    token_mean_terms,
)

from . import reference

# -- ratio ---------------------------------------------------------------------------------------


def test_ratio_is_the_exponential_of_the_difference():
    logp, old = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.0, -0.5])
    ratio = importance_ratio(logp, old, [True, True, False])
    np.testing.assert_allclose(ratio, [np.exp(0.5), np.exp(-1), 1.0], rtol=1e-6)


def test_truncation_bounds_the_ratio_and_stops_its_gradient():
    def truncated(logp):
        return jnp.sum(importance_ratio(logp, jnp.zeros(2), jnp.ones(2, bool), truncate=2.0))

    logp = jnp.array([0.5, 1.5])
    assert float(truncated(logp)) == pytest.approx(np.exp(0.5) + 2.0)
    np.testing.assert_allclose(jax.grad(truncated)(logp), [np.exp(0.5), 0.0], rtol=1e-6)
    with pytest.raises(ValueError, match="truncate must be positive"):
        importance_ratio(logp, logp, [True, True], truncate=0.0)


def test_ratios_of_a_sequence_are_common_and_have_each_tokens_own_gradient():
    logp, old = jnp.array([-1.0, -2.0, 7.0]), jnp.array([-1.5, -1.0, -jnp.inf])
    mask = jnp.array([True, True, False])

    def ratios(logp):
        return importance_ratio(logp, old, mask, level="sequence")

    whole = np.exp(0.5 - 1.0)
    np.testing.assert_allclose(ratios(logp), [whole, whole, 1.0], rtol=1e-6)
    np.testing.assert_allclose(jax.jacobian(ratios)(logp), np.diag([whole, whole, 0.0]), rtol=1e-6)
    single = importance_ratio(logp[:1], old[:1], mask[:1], level="sequence")
    np.testing.assert_allclose(single, importance_ratio(logp[:1], old[:1], mask[:1]), rtol=1e-6)
    with pytest.raises(ValueError, match="level"):
        importance_ratio(logp, old, mask, level="word")


# -- surrogate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dual_clip", [3.0, 1.5, None])
def test_surrogate_equals_the_literal_formula(dual_clip):
    ratios = np.array([0.0, 0.3, 0.8, 1.0, 1.2, 1.3, 2.9, 3.1, 50.0], np.float32)
    for advantage in (-2.0, -0.1, 0.0, 0.1, 2.0):
        expected = [reference.surrogate(float(r), advantage, 0.2, 0.3, dual_clip) for r in ratios]
        actual = clipped_surrogate(
            ratios, advantage, clip_low=0.2, clip_high=0.3, dual_clip=dual_clip
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("advantage", [-2.0, 2.0])
@pytest.mark.parametrize("dual_clip", [3.0, None])
def test_clipped_tokens_are_those_without_gradient(dual_clip, advantage):
    ratios = jnp.array([0.3, 0.79, 0.9, 1.0, 1.1, 1.21, 2.9, 3.1, 50.0])
    slope = jax.grad(lambda r: jnp.sum(clipped_surrogate(r, advantage, dual_clip=dual_clip)))(
        ratios
    )
    flagged = clipped_tokens(ratios, advantage, dual_clip=dual_clip)
    np.testing.assert_array_equal(flagged, slope == 0)
    assert not np.any(np.asarray(clipped_tokens(ratios, 0.0, dual_clip=dual_clip)))


@pytest.mark.parametrize("advantage", [-1.5, 0.0, 1.5])
@pytest.mark.parametrize("dual_clip", [3.0, None])
@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0, np.inf, -np.inf, 88.0])
def test_extreme_log_ratios_give_a_finite_loss_and_a_zero_gradient(log_ratio, dual_clip, advantage):
    """Decision 14. Without dual clip the loss for A < 0 grows with the ratio, up to exp(20)."""

    def loss(logp):
        ratio = importance_ratio(logp, jnp.zeros(1), jnp.array([True]))
        return clipped_surrogate(ratio, advantage, dual_clip=dual_clip)[0]

    value, slope = jax.value_and_grad(loss)(jnp.array([log_ratio], jnp.float32))
    bounded = float(np.clip(log_ratio, -20, 20))
    expected = reference.surrogate(np.exp(bounded), advantage, 0.2, 0.2, dual_clip)
    assert float(value) == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert float(slope[0]) == 0.0


def test_an_infinite_ratio_made_elsewhere_is_harmless():
    advantage, infinite = jnp.array([0.0, 2.0]), jnp.array([jnp.inf, jnp.inf])
    value, slope = jax.value_and_grad(lambda r: jnp.sum(clipped_surrogate(r, advantage)))(infinite)
    assert float(value) == pytest.approx(-2.4)
    assert slope.tolist() == [0.0, 0.0]


def test_on_policy_the_gradient_is_minus_advantage_times_score():
    """At ratio 1, the first update of a batch, no clip is active."""

    def loss(logp):
        ratio = importance_ratio(logp, jax.lax.stop_gradient(logp), jnp.ones(3, bool))
        return jnp.sum(clipped_surrogate(ratio, jnp.array([1.0, -2.0, 0.0])))

    value, slope = jax.value_and_grad(loss)(jnp.array([-1.0, -3.0, -0.1]))
    assert float(value) == pytest.approx(1.0)
    np.testing.assert_allclose(slope, [-1.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dual_clip": 1.0}, "dual_clip must be above 1, got 1.0"),
        ({"dual_clip": 0.5}, "dual_clip must be above 1"),
        ({"clip_low": -0.1}, "clip_low must be between 0 and 1"),
        ({"clip_low": 1.2}, "clip_low must be between 0 and 1"),
        ({"clip_high": -0.2}, "clip_high must not be negative"),
    ],
)
@pytest.mark.parametrize("function", [clipped_surrogate, clipped_tokens])
def test_fault_8_a_dual_clip_of_one_and_negative_or_reversed_ranges_are_refused(
    function, arguments, message
):
    with pytest.raises(ValueError, match=message):
        function(jnp.ones(2), jnp.ones(2), **arguments)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda ratio: function(ratio, 1.0, **arguments))(jnp.ones(2))


# -- KL ------------------------------------------------------------------------------------------

POLICY_LOGITS = jnp.array([0.3, -1.2, 0.8, 0.1])
REFERENCE_PROBS = np.array([0.1, 0.4, 0.3, 0.2])


def policy_logp(logits):
    return logits - jax.scipy.special.logsumexp(logits)


def exact_kl(logits):
    logp = policy_logp(logits)
    return jnp.sum(jnp.exp(logp) * (logp - jnp.log(REFERENCE_PROBS)))


def exact_reverse_kl(logits):
    return jnp.sum(REFERENCE_PROBS * (jnp.log(REFERENCE_PROBS) - policy_logp(logits)))


def expected_estimate(logits, kind):
    """Mean of the estimator over the policy's own samples; samples carry no gradient."""
    sampled = jax.lax.stop_gradient(jnp.exp(policy_logp(logits)))
    estimate = kl_estimate(policy_logp(logits), np.log(REFERENCE_PROBS), kind=kind)
    return jnp.sum(sampled * estimate)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_fault_14_k1_and_k3_have_the_kl_as_their_mean(kind):
    assert float(expected_estimate(POLICY_LOGITS, kind)) == pytest.approx(
        float(exact_kl(POLICY_LOGITS)), rel=1e-5
    )


def test_fault_14_k2_is_half_the_mean_squared_log_ratio():
    probs = np.exp(np.asarray(policy_logp(POLICY_LOGITS), np.float64))
    expected = np.sum(probs * np.log(probs / REFERENCE_PROBS) ** 2) / 2
    assert float(expected_estimate(POLICY_LOGITS, "k2")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "trained"),
    [("k1", lambda logits: 0.0 * logits[0]), ("k2", exact_kl), ("k3", exact_reverse_kl)],
)
def test_fault_14_what_each_estimator_trains(kind, trained):
    """k1: nothing. k2: KL(policy || reference). k3: KL(reference || policy)."""
    np.testing.assert_allclose(
        jax.grad(expected_estimate)(POLICY_LOGITS, kind),
        jax.grad(trained)(POLICY_LOGITS),
        atol=1e-6,
    )


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_of_equal_policies_is_zero(kind):
    value, slope = jax.value_and_grad(
        lambda logp: jnp.sum(kl_estimate(logp, jnp.array([-1.0, -5.0]), kind=kind))
    )(jnp.array([-1.0, -5.0]))
    assert float(value) == 0.0
    np.testing.assert_allclose(slope, [1.0, 1.0] if kind == "k1" else [0.0, 0.0])


@pytest.mark.parametrize("difference", [1000.0, -1000.0])
def test_k3_stays_finite_at_extreme_log_ratios(difference):
    value, slope = jax.value_and_grad(lambda logp: kl_estimate(logp, jnp.array([difference]))[0])(
        jnp.zeros(1)
    )
    assert np.isfinite(float(value))
    assert float(slope[0]) == (0.0 if difference > 0 else 1.0)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="kind should be 'k1', 'k2' or 'k3', got 'k4'"):
        kl_estimate([0.0], [0.0], kind="k4")


# -- the rest ------------------------------------------------------------------------------------


def test_cross_entropy_is_the_negative_log_likelihood_of_trained_tokens():
    value = cross_entropy([-1.0, -2.0, -np.inf], [True, True, False])
    np.testing.assert_allclose(value, [1.0, 2.0, 0.0])
    assert float(token_mean(value, [True, True, False])) == pytest.approx(1.5)


def test_replay_mean_gives_each_part_its_own_mean():
    loss = [1.0, 3.0, 10.0, np.nan]
    mask, replayed = [True, True, True, False], [False, False, True, True]
    assert float(replay_mean(loss, mask, replayed, weight=0.5)) == pytest.approx(2.0 + 0.5 * 10.0)
    assert float(replay_mean(loss, mask, [False] * 4)) == pytest.approx(14 / 3)
    assert float(replay_mean(loss, [False] * 4, replayed)) == 0.0


def test_avatars_published_listing_is_these_kernels_composed():
    """Ratio, clip, TAS weight, then the mean over all tokens of the batch."""
    rng = np.random.default_rng(0)
    logp, old = rng.normal(-1, 0.3, (2, 3, 7)).astype(np.float32)
    mask = np.arange(7)[None, :] < np.array([[7], [4], [1]])
    advantage = np.array([1.0, -0.5, 2.0], np.float32)

    def sequence(logp_T, old_T, mask_T, advantage):
        ratio = importance_ratio(logp_T, old_T, mask_T)
        loss = clipped_surrogate(ratio, advantage, dual_clip=None) * tas_weights(mask_T)
        return token_mean_terms(loss, mask_T)

    terms = jax.vmap(sequence)(logp, old, mask, advantage)
    actual = float(mean_of_terms(jax.tree.map(jnp.sum, terms)))

    total = 0.0
    for i in range(3):
        length = int(mask[i].sum())
        for t in range(length):
            ratio = float(np.exp(np.float64(logp[i, t]) - old[i, t]))
            place = t / (length - 1) if length > 1 else None
            weight = 1 + 0.3 * (2 * place - 1) ** 2 if place is not None else 1.0
            total += weight * reference.surrogate(ratio, float(advantage[i]), 0.2, 0.2, None)
    assert actual == pytest.approx(total / mask.sum(), rel=1e-5)
