"""What the baselines' losses add: balanced classes (StreamPro), a KL term (ThinkStream)."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from turnwise_jax.algorithms import grpo, sft
from turnwise_jax.algorithms.sft import class_weights
from turnwise_jax.algorithms.types import Actions, Mixture

K = 4


def actions(lengths=(3, 1, 4), padding: int = 3, seed: int = 0) -> Actions:
    rng = np.random.default_rng(seed)
    turn = np.repeat(np.arange(len(lengths)), lengths)
    count = len(turn) + padding
    mask = np.arange(count) < len(turn)
    logp = np.where(mask, rng.uniform(-3, 0, count), np.nan).astype(np.float32)
    turn = np.pad(turn, (0, padding), constant_values=7).astype(np.int32)
    return Actions(logp, logp, logp, mask, turn)


@pytest.mark.parametrize(
    ("counts", "beta", "expected"),
    [
        ([90, 10], 0.0, [1.0, 1.0]),  # every class has one effective sample
        ([50, 50], 0.9999, [1.0, 1.0]),
        ([2, 1], 0.5, [2 / (1 + 1.5), 2 * 1.5 / (1 + 1.5)]),  # E = 1.5 and 1
        ([7, 0], 0.9999, [1.0, 0.0]),  # a class that is not there
        ([0, 0], 0.9999, [0.0, 0.0]),
    ],
)
def test_weights_of_classes_by_the_effective_number(counts, beta, expected):
    np.testing.assert_allclose(class_weights(counts, beta), expected, rtol=1e-6)


@pytest.mark.parametrize("counts", [(900, 100), (3, 1), (100_000, 10)])
def test_weights_against_the_sum_that_defines_them(counts):
    """E_k = 1 + beta + ... + beta^(n_k - 1)."""
    effective = [sum(0.9999**i for i in range(n)) for n in counts]
    expected = np.asarray([2 / e / (1 / effective[0] + 1 / effective[1]) for e in effective])
    np.testing.assert_allclose(class_weights(counts, 0.9999), expected, rtol=1e-5)
    assert class_weights(counts, 0.9999)[1] > 1 > class_weights(counts, 0.9999)[0]


@partial(jax.jit, static_argnums=2)
def sft_loss(acts: Actions, weight_K, settings):
    return sft.loss(acts, weight_K, settings)


@pytest.mark.parametrize("place", [0, 1])
def test_the_deciding_token_has_its_classes_weight_and_the_others_that_of_text(place):
    """Eq. 4, token by token, over all trained tokens."""
    acts = actions()
    weight_K = np.asarray([0.25, 1.75, 0.25, 9.0], np.float32)
    settings = sft.Settings(balance="classes", decision_token=place, text_weight=2.0)
    terms = sft_loss(acts, weight_K, settings)
    expected, token = 0.0, 0
    for turn, length in enumerate((3, 1, 4)):
        for index in range(length):
            weight = weight_K[turn] if index == place else 2.0
            expected -= weight * float(acts.logp_A[token])
            token += 1
    assert float(terms.total) == pytest.approx(expected, rel=1e-6)
    assert float(terms.count) == 8
    nll, count = terms.means["nll"]  # of the plain loss, so that runs can be compared
    assert float(nll / count) == pytest.approx(-acts.logp_A[:8].mean(), rel=1e-6)


def test_without_balance_the_weights_are_not_read():
    acts = actions()
    plain = sft_loss(acts, np.zeros(K, np.float32), sft.Settings())
    odd = sft_loss(acts, np.full(K, np.nan, np.float32), sft.Settings())
    jax.tree.map(np.testing.assert_array_equal, plain, odd)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("balance", "tokens", "balance"), ("beta", 1.0, "beta"), ("beta", -0.1, "beta"),
     ("text_weight", -1.0, "text_weight"), ("decision_token", -1, "decision_token")],
)  # fmt: skip
def test_impossible_settings_of_the_balance_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        sft.Settings(**{field: value}).check()


# The KL term of GRPO.


def with_reference(acts: Actions, seed: int = 1) -> Actions:
    reference = acts.logp_A + np.random.default_rng(seed).normal(0, 0.5, acts.logp_A.shape)
    one = np.ones((), np.float32)
    mixture = Mixture(reference.astype(np.float32), np.zeros((), bool), one, one)
    return acts._replace(mixture=mixture)


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("reduction", ["batch_token", "trajectory_token", "turn"])
def test_the_kl_term_is_in_the_same_mean_as_the_surrogate(kind, reduction):
    acts = with_reference(actions())
    advantage_K = np.asarray([1.0, -0.5, 0.25, 0.0], np.float32)
    settings = grpo.Settings(reduction=reduction, kl=0.3, kl_kind=kind)
    found = grpo.loss(acts, advantage_K, settings)
    plain = grpo.loss(acts, advantage_K, settings._replace(kl=0.0))
    assert "kl" not in plain.means
    gap = (acts.mixture.ref_logp_A - acts.logp_A)[:8].astype(np.float64)
    kl = {"k2": gap**2 / 2, "k3": np.exp(gap) - 1 - gap}[kind]
    turns = np.split(kl, [3, 4])
    mean = {
        "batch_token": kl.sum(),
        "trajectory_token": kl.mean(),
        "turn": np.mean([turn.mean() for turn in turns]),
    }[reduction]
    assert float(found.total - plain.total) == pytest.approx(0.3 * mean, rel=1e-4)
    assert float(found.count) == float(plain.count)
    total, count = found.means["kl"]
    assert float(total / count) == pytest.approx(kl.mean(), rel=1e-4)


def test_a_batch_without_a_reference_has_no_kl_term():
    acts, advantage_K = actions(), np.ones(K, np.float32)
    found = grpo.loss(acts, advantage_K, grpo.Settings(kl=0.3))
    jax.tree.map(
        np.testing.assert_array_equal, found, grpo.loss(acts, advantage_K, grpo.Settings())
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"kl": -1.0}, "kl must"), ({"kl_kind": "k9"}, "kl_kind"),
     ({"kl": 0.1, "kl_kind": "k1"}, "kl_kind is 'k1', whose gradient")],
)  # fmt: skip
def test_impossible_settings_of_the_kl_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        grpo.Settings(**changes).check()
    grpo.Settings(kl=0.1, kl_kind="k2").check()
    assert not grpo.Settings().reference
    assert grpo.Settings(kl=1e-3).reference
