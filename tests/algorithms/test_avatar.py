"""AVATAR's file against the paper: eq. 1 to 6 by brute force, exact expectations by enumeration."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.algorithms import avatar, grpo
from turnwise_jax.algorithms.types import Actions, Mixture, reduce_terms

A = 12


def settings(**changes) -> avatar.Settings:
    chosen = avatar.Settings(**changes)
    chosen.check()
    return chosen


def sample(length: int, seed: int, *, replayed: bool = False, weight=1.0, kl_weight=1.0) -> Actions:
    """One answer of ``length`` tokens whose ratios lie around 1; junk where nothing is."""
    rng = np.random.default_rng(seed)
    mask = np.arange(A) < length
    logp = np.where(mask, rng.uniform(-3, 0, A), np.nan).astype(np.float32)
    old = (logp + np.where(mask, rng.normal(0, 0.4, A), 0)).astype(np.float32)
    ref = (logp + np.where(mask, rng.normal(0, 0.3, A), 0)).astype(np.float32)
    mixture = Mixture(ref, np.asarray(replayed), np.float32(weight), np.float32(kl_weight))
    return Actions(logp, old, old, mask, np.zeros(A, np.int32), mixture)


@partial(jax.jit, static_argnums=2)
def loss(actions, advantage, chosen):
    return avatar.loss(actions, jnp.reshape(jnp.asarray(advantage, jnp.float32), 1), chosen)


def brute_loss(actions: Actions, advantage: float, chosen: avatar.Settings) -> float:
    """Eq. 2, 5 and 6 token by token in float64."""
    tokens = np.flatnonzero(actions.mask_A)
    length, total = len(tokens), 0.0
    for place, t in enumerate(tokens):
        x = place / (length - 1) if length > 1 else None
        curve = {
            "u": lambda x: (2 * x - 1) ** 2,
            "linear_decay": lambda x: 1 - x,
            "linear_incline": lambda x: x,
            "uniform": lambda x: 0.0,
        }[chosen.tas_shape]
        weight = 1.0 if x is None else 1 + chosen.tas_strength * curve(x)
        gaps = (actions.logp_A - actions.old_logp_A).astype(np.float64)[tokens]
        whole = chosen.ratio == "sequence" and actions.mixture.replayed
        ratio = np.exp(gaps.sum() if whole else gaps[place])
        if chosen.truncate and actions.mixture.replayed:
            ratio = min(ratio, chosen.truncate)
        shaped = weight * advantage
        clipped = min(max(ratio, 1 - chosen.clip_low), 1 + chosen.clip_high)
        token = -min(ratio * shaped, clipped * shaped)
        if chosen.dual_clip and shaped < 0:
            token = min(token, -chosen.dual_clip * shaped)
        gap = float(actions.mixture.ref_logp_A[t]) - float(actions.logp_A[t])
        kl = {"k2": gap * gap / 2, "k3": np.exp(gap) - 1 - gap}[chosen.kl_kind]
        total += float(actions.mixture.weight) * token / length
        total += chosen.kl * float(actions.mixture.kl_weight) * kl / length
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tas_shape": "linear_decay", "tas_strength": 1.0},
        {"tas_shape": "linear_incline", "kl_kind": "k2"},
        {"tas_shape": "uniform", "kl": 0.0},
        {"truncate": 1.1, "kl_kind": "k2"},
        {"dual_clip": 3.0, "clip_low": 0.1, "clip_high": 0.3},
        {"ratio": "sequence"},
    ],
)
@pytest.mark.parametrize(("length", "replayed"), [(9, False), (5, True), (1, True), (1, False)])
def test_loss_equals_brute_force(changes, length, replayed):
    chosen = settings(**changes)
    for seed, advantage in enumerate((-1.3, 0.7, 0.0)):
        actions = sample(length, seed, replayed=replayed, weight=1.7, kl_weight=0.4)
        terms = loss(actions, advantage, chosen)
        np.testing.assert_allclose(
            terms.total, brute_loss(actions, advantage, chosen), rtol=2e-5, atol=1e-6
        )
        assert terms.count == 1


def test_an_answer_without_tokens_adds_nothing():
    terms = loss(sample(0, 0), 2.0, settings())
    assert (terms.total, terms.count) == (0, 0)


def test_shaping_the_advantage_weighs_the_clipped_loss_and_leaves_the_kl_alone():
    """Eq. 6 in eq. 2, against the listing, which multiplies the finished loss of each token."""
    plain, shaped = settings(tas_shape="uniform", kl=0.0), settings(kl=0.0)
    mask = np.arange(A) < 7
    for seed in range(4):
        whole = sample(7, seed)

        def alone(t, whole=whole):
            return whole._replace(mask_A=np.arange(A) == t)

        tokens = [float(loss(alone(t), -0.8, plain).total) for t in range(7)]
        weight = np.asarray(avatar.shaped_advantages(1.0, mask, shaped))[:7]
        np.testing.assert_allclose(
            loss(whole, -0.8, shaped).total, np.mean(weight * tokens), rtol=1e-5
        )
        kl = loss(whole, 0.0, settings(kl=0.5)).total
        np.testing.assert_allclose(
            loss(whole, 0.0, settings(kl=0.5, tas_shape="uniform")).total, kl, rtol=1e-6
        )


def test_the_u_has_mean_one_and_a_third_of_its_strength_for_long_answers():
    mask = np.ones(4001, bool)
    weight = avatar.shaped_advantages(1.0, mask, settings(tas_strength=0.6))
    np.testing.assert_allclose(np.mean(weight), 1 + 0.6 / 3, atol=1e-3)


def test_without_replay_reference_and_shape_it_is_grpo():
    chosen = settings(tas_shape="uniform", kl=0.0)
    plain = grpo.Settings(dual_clip=1e9, eps=1e-4)
    for seed in range(5):
        actions = sample(6, seed)._replace(mixture=None)
        ours = loss(actions, 0.9 - seed, chosen)
        theirs = grpo.loss(actions, jnp.asarray([0.9 - seed], jnp.float32), plain)
        np.testing.assert_allclose(ours.total, theirs.total, rtol=1e-6)
        for name, value in theirs.means.items():
            np.testing.assert_allclose(ours.means[name], value, rtol=1e-6)


# Eq. 3: what the weights make of a plain mean.


@pytest.mark.parametrize(
    ("fresh", "replayed", "empty"), [(4, 4, 0), (6, 2, 3), (3, 0, 5), (1, 7, 0)]
)
@pytest.mark.parametrize("mean", avatar.MEANS)
@pytest.mark.parametrize("kl_mean", avatar.MEANS)
def test_a_plain_mean_of_weighted_losses_is_equation_3(fresh, replayed, empty, mean, kl_mean):
    chosen = settings(replay_weight=0.6, mean=mean, kl_mean=kl_mean)
    rng = np.random.default_rng(fresh)
    value, penalty = rng.normal(size=(2, fresh + replayed + empty))
    old = np.arange(fresh + replayed + empty) >= fresh
    trains = np.arange(fresh + replayed + empty) < fresh + replayed
    weight, kl_weight = avatar.sample_weights(trains, old, chosen)
    assert not weight[~trains].any()
    assert not kl_weight[~trains].any()

    def joined(x, kind, alpha):
        parts = x[:fresh], x[fresh : fresh + replayed]
        if kind == "samples":
            return (parts[0].sum() + alpha * parts[1].sum()) / trains.sum()
        return parts[0].mean() + (alpha * parts[1].mean() if replayed else 0.0)

    np.testing.assert_allclose((weight * value)[trains].mean(), joined(value, mean, 0.6), rtol=1e-6)
    common = 1.0 if kl_mean == "samples" else 0.6
    np.testing.assert_allclose(
        (kl_weight * penalty)[trains].mean(), joined(penalty, kl_mean, common), rtol=1e-6
    )


# Credit.


def test_fresh_advantages_are_equation_1():
    reward = np.array([2.0, -1.0, 1.0, 1.0])
    expected = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(avatar.fresh_advantages(reward, settings()), expected, rtol=1e-5)


@pytest.mark.parametrize("reward", [[1.0, 1.0, 1.0, 1.0], [2.0]])
def test_equal_rewards_and_groups_of_one_have_no_signal(reward):
    np.testing.assert_array_equal(avatar.fresh_advantages(np.array(reward), settings()), 0.0)


def test_readings_of_the_reference_score():
    reward, average = np.array([2.0, 1.0, -1.0, 5.0]), np.array([0.5, 1.5, -0.5, 0.0])
    stored, mask = np.array([0.3, -0.2, 1.0, 9.0]), np.array([True, True, True, False])
    args = reward, average, stored, mask
    spread = reward[:3].std(ddof=1) + 1e-4
    of = partial(avatar.replayed_advantages, *args)
    baseline = (reward - average)[:3] / spread
    np.testing.assert_allclose(of(settings())[:3], baseline, rtol=1e-5)
    factor = np.maximum(average, 0.1)[:3] * (reward[:3] - reward[:3].mean()) / spread
    np.testing.assert_allclose(of(settings(vcrs="multiplicative"))[:3], factor, rtol=1e-5)
    np.testing.assert_allclose(of(settings(vcrs="none"))[:3], stored[:3], rtol=1e-6)
    for vcrs in avatar.VCRS:
        assert of(settings(vcrs=vcrs))[3] == 0


def test_vanished_advantages_come_back_by_the_moving_average():
    """All rewards equal: nothing to learn when fresh, a signal once replayed (issue: vanishing)."""
    reward = np.full(4, 2.0)
    assert not np.asarray(avatar.fresh_advantages(reward, settings())).any()
    again = avatar.replayed_advantages(reward, np.full(4, 0.5), np.zeros(4), np.ones(4), settings())
    np.testing.assert_allclose(again, 1.5 / 1.0001, rtol=1e-5)


# Edge: a replayed sample that the policy has come to exclude.


@pytest.mark.parametrize("advantage", [-2.0, 2.0, 0.0])
def test_a_replayed_sample_of_probability_zero_harms_nothing(advantage):
    actions = sample(5, 3, replayed=True)

    def objective(logp_A):
        one = actions._replace(logp_A=logp_A)
        return avatar.loss(one, jnp.asarray([advantage]), settings()).total

    logp_A = jnp.where(jnp.arange(A) == 2, -jnp.inf, jnp.asarray(actions.logp_A))
    value, slope = jax.value_and_grad(objective)(logp_A)
    assert np.isfinite(value)
    assert np.isfinite(slope[:5]).all()
    assert slope[2] == 0


# The importance ratio, in expectation: every answer of a tabular policy is enumerated.

VOCAB, STEPS = 3, 2
ANSWERS = np.array(list(itertools.product(range(VOCAB), repeat=STEPS)))
WORTH = np.random.default_rng(5).normal(size=len(ANSWERS)).astype(np.float32)


def answer_logprobs(theta, last: bool):
    """f32[answers, steps] of a policy with a table per step; the second one sees the first token.

    ``last``: only the second token is a choice of the policy, the first one is drawn uniformly.
    """
    first = jax.nn.log_softmax(theta[0, 0])[ANSWERS[:, 0]]
    second = jax.nn.log_softmax(theta[1], axis=-1)[ANSWERS[:, 0], ANSWERS[:, 1]]
    return jnp.stack([jnp.full_like(first, -np.log(VOCAB)) if last else first, second], axis=1)


def expected_gradient(theta, behaviour, chosen, *, replayed, last):
    """Exact expectation over answers of the behaviour policy of the gradient of the loss."""
    old_NA = jax.lax.stop_gradient(answer_logprobs(behaviour, last))
    mask_A = np.array([not last, True])
    probability_N = jnp.exp(old_NA.sum(1))

    def objective(theta):
        logp_NA = answer_logprobs(theta, last)

        def one(logp_A, old_A, worth):
            mixture = Mixture(old_A, jnp.asarray(replayed), jnp.float32(1), jnp.float32(1))
            turn = jnp.zeros(STEPS, jnp.int32)
            actions = Actions(logp_A, old_A, old_A, jnp.asarray(mask_A), turn, mixture)
            return avatar.loss(actions, worth[None], chosen).total

        return jnp.sum(probability_N * jax.vmap(one)(logp_NA, old_NA, jnp.asarray(WORTH)))

    return jax.grad(objective)(theta)


OPEN = {"clip_low": 0.999, "clip_high": 1e6, "tas_shape": "uniform", "kl": 0.0}


def tables(seed: int):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(2, VOCAB, VOCAB)), jnp.float32)


def test_expected_replayed_gradient_is_the_fresh_one_for_single_decisions():
    """One decision an answer: per-token ratios are exact, and no bias is left."""
    theta, behaviour = tables(0), tables(1)
    chosen = settings(**OPEN)
    fresh = expected_gradient(theta, theta, chosen, replayed=False, last=True)
    off = expected_gradient(theta, behaviour, chosen, replayed=True, last=True)
    assert float(jnp.abs(fresh).max()) > 0.01
    np.testing.assert_allclose(off, fresh, rtol=1e-4, atol=1e-6)


def test_without_the_ratio_the_replayed_gradient_would_be_wrong():
    theta, behaviour = tables(0), tables(1)
    chosen = settings(**OPEN)
    fresh = expected_gradient(theta, theta, chosen, replayed=False, last=True)
    naive = expected_gradient(behaviour, behaviour, chosen, replayed=False, last=True)
    assert float(jnp.abs(naive - fresh).max()) > 0.01


@pytest.mark.parametrize("shape", ["uniform", "u", "linear_incline"])
def test_ratios_of_whole_answers_are_exact_for_any_length(shape):
    """Eq. 4 as it is written, with the token mean and the temporal weights of eq. 2 and 6."""
    theta, behaviour = tables(0), tables(1)
    chosen = settings(**{**OPEN, "tas_shape": shape, "ratio": "sequence"})
    fresh = expected_gradient(theta, theta, chosen, replayed=False, last=False)
    off = expected_gradient(theta, behaviour, chosen, replayed=True, last=False)
    assert float(jnp.abs(fresh).max()) > 0.01
    np.testing.assert_allclose(off, fresh, rtol=1e-4, atol=1e-6)


def test_ratios_of_tokens_correct_each_token_for_its_own_drift_alone():
    """Exact where the other tokens did not drift, and truncation is what brings a bias in."""
    theta = tables(0)
    behaviour = theta.at[1].set(tables(1)[1])
    fresh = expected_gradient(theta, theta, settings(**OPEN), replayed=False, last=False)
    off = expected_gradient(theta, behaviour, settings(**OPEN), replayed=True, last=False)
    np.testing.assert_allclose(off[1], fresh[1], rtol=1e-4, atol=1e-6)
    assert float(jnp.abs(off[0] - fresh[0]).max()) > 1e-3
    bounded = settings(**OPEN, truncate=1.0)
    cut = expected_gradient(theta, behaviour, bounded, replayed=True, last=False)
    assert float(jnp.abs(cut[1] - fresh[1]).max()) > 1e-3


def test_splitting_a_mixed_batch_changes_nothing():
    chosen = settings()
    rows = [sample(n % 5 + 1, n, replayed=n >= 4, weight=1 + n / 8) for n in range(8)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *rows)
    advantage = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    per_row = jax.vmap(partial(avatar.loss, settings=chosen))
    whole = reduce_terms(per_row(stacked, advantage))
    halves = [
        reduce_terms(per_row(jax.tree.map(lambda x, h=h: x[h::2], stacked), advantage[h::2]))
        for h in range(2)
    ]
    np.testing.assert_allclose(whole.total, halves[0].total + halves[1].total, rtol=1e-5)
    assert whole.count == halves[0].count + halves[1].count


@pytest.mark.parametrize(
    "changes",
    [
        {"tas_shape": "v"},
        {"vcrs": "mean"},
        {"mean": "tokens"},
        {"kl_mean": "all"},
        {"kl_kind": "k4"},
        {"tas_strength": -0.1},
        {"replay_weight": -1.0},
        {"kl": -0.1},
        {"truncate": -1.0},
        {"truncate": 0.5},
        {"kl_kind": "k1"},
        {"dual_clip": 0.5},
        {"clip_low": 1.2},
        {"ratio": "word"},
        {"eps": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(changes):
    with pytest.raises(ValueError):
        avatar.Settings(**changes).check()
