"""Chunked log-probabilities and entropies: values, gradients, and no [T, V] array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import (
    importance_ratio,
    logprobs_and_entropy,
    token_entropy,
    token_logprobs,
)

from .jaxprs import shapes
from .reference import softmax_logprobs

T, D, V = 6, 16, 37


def problem(seed=0, dtype=jnp.float32, size=V):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(T, D)), dtype)
    head = jnp.asarray(rng.normal(size=(D, size)), dtype)
    target = rng.integers(0, size, T).astype(np.int32)
    target[:2] = [0, size - 1]  # both ends of the vocabulary
    return hidden, head, jnp.asarray(target)


def expected(hidden, head, target, temperature=1.0):
    """Float64 log-probabilities of the targets and entropies."""
    table = softmax_logprobs(
        np.asarray(hidden, np.float64), np.asarray(head, np.float64), temperature
    )
    return table[np.arange(T), np.asarray(target)], -np.sum(np.exp(table) * table, axis=1)


def naive(hidden, head, target, temperature):
    """Differentiable, with the full [T, V] table."""
    logits = hidden.astype(jnp.float32) @ head.astype(jnp.float32) / temperature
    table = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(table, target[:, None], 1)[:, 0], -jnp.sum(jnp.exp(table) * table, 1)


@pytest.mark.parametrize("chunk", [1, 5, 36, 37, 38, 8192])
@pytest.mark.parametrize("temperature", [1.0, 1.2, 0.6])
def test_values_equal_float64_whatever_the_chunk(chunk, temperature):
    """Fault 15 and 16: tempered, over the full vocabulary; the chunk need not divide it."""
    arguments = problem()
    logprob, entropy = logprobs_and_entropy(*arguments, temperature=temperature, chunk=chunk)
    expected_logprob, expected_entropy = expected(*arguments, temperature)
    np.testing.assert_allclose(logprob, expected_logprob, atol=2e-5)
    np.testing.assert_allclose(entropy, expected_entropy, atol=2e-5)


@pytest.mark.parametrize("chunk", [5, 36, 37])
def test_gradients_equal_those_of_the_full_table(chunk):
    hidden, head, target = problem()
    weight = jnp.linspace(-1.0, 2.0, T)

    def total(function, hidden, head):
        logprob, entropy = function(hidden, head, target, temperature=0.7)
        return jnp.sum(weight * logprob) + jnp.sum(weight[::-1] * entropy)

    actual = jax.grad(total, (1, 2))(
        lambda *a, **k: logprobs_and_entropy(*a, chunk=chunk, **k), hidden, head
    )
    for one, other in zip(actual, jax.grad(total, (1, 2))(naive, hidden, head), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-5)


@pytest.mark.parametrize(
    ("hidden_type", "head_type"),
    [(jnp.bfloat16, jnp.bfloat16), (jnp.bfloat16, jnp.float32), (jnp.float32, jnp.bfloat16)],
)
def test_bfloat16_inputs_accumulate_in_float32(hidden_type, head_type):
    """Against float64 on the same rounded inputs: only the products' rounding is left."""
    hidden, head, target = problem(2)
    hidden, head = hidden.astype(hidden_type), head.astype(head_type)
    logprob, entropy = logprobs_and_entropy(hidden, head, target, chunk=10)
    assert logprob.dtype == entropy.dtype == jnp.float32
    expected_logprob, expected_entropy = expected(hidden, head, target)
    np.testing.assert_allclose(logprob, expected_logprob, atol=2e-5)
    np.testing.assert_allclose(entropy, expected_entropy, atol=2e-5)
    slopes = jax.grad(lambda h, w: jnp.sum(token_logprobs(h, w, target, chunk=10)), (0, 1))(
        hidden, head
    )
    reference = jax.grad(lambda h, w: jnp.sum(naive(h, w, target, 1.0)[0]), (0, 1))(
        hidden.astype(jnp.float32), head.astype(jnp.float32)
    )
    for slope, wanted, kind in zip(slopes, reference, (hidden_type, head_type), strict=True):
        assert slope.dtype == kind
        np.testing.assert_allclose(slope.astype(jnp.float32), wanted, atol=2e-2)


def test_fault_38_no_array_of_tokens_times_vocabulary_in_value_or_gradient():
    num_tokens, width, size, chunk = 24, 4, 1000, 128
    hidden, head = jnp.ones((num_tokens, width)), jnp.ones((width, size))
    target = jnp.zeros(num_tokens, jnp.int32)

    def loss(hidden, head):
        logprob, entropy = logprobs_and_entropy(hidden, head, target, chunk=chunk)
        return jnp.sum(logprob + entropy)

    traced = jax.make_jaxpr(jax.value_and_grad(loss, (0, 1)))(hidden, head)
    sizes = {int(np.prod(shape)) for shape in shapes(traced)}
    largest = max(sizes)
    assert largest == width * size  # the head's gradient
    assert num_tokens * chunk in sizes
    assert not any(num_tokens in shape and size in shape for shape in shapes(traced))


def test_fault_15_ratio_is_one_between_two_evaluations_at_any_temperature():
    hidden, head, target = problem(3)
    for temperature in (1.2, 0.6):
        old = token_logprobs(hidden, head, target, temperature=temperature, chunk=7)
        new = token_logprobs(hidden, head, target, temperature=temperature, chunk=37)
        ratio = importance_ratio(new, old, jnp.ones(T, bool))
        assert float(jnp.max(jnp.abs(ratio - 1))) < 1e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fault_13_garbage_in_masked_rows_reaches_nothing(bad):
    hidden, head, target = problem(4)
    mask = jnp.array([True, False, True, True, False, True])
    spoilt = jnp.where(mask[:, None], hidden, bad)
    spoilt_target = jnp.where(mask, target, -7)

    def total(hidden, head, target):
        logprob, entropy = logprobs_and_entropy(hidden, head, target, chunk=10, mask_T=mask)
        return jnp.sum(logprob) + jnp.sum(entropy)

    wanted = jax.value_and_grad(total, (0, 1))(hidden, head, target)
    actual = jax.value_and_grad(total, (0, 1))(spoilt, head, spoilt_target)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_fault_18_every_id_may_be_a_target():
    """Padding is told by the mask; no id, 0 included, is special."""
    hidden, head, _ = problem(5)
    target = jnp.zeros(T, jnp.int32)
    np.testing.assert_allclose(
        token_logprobs(hidden, head, target), expected(hidden, head, target)[0], atol=2e-5
    )


@pytest.mark.parametrize("stray", [-1, V, V + 3])
def test_a_target_outside_the_vocabulary_is_nan(stray):
    hidden, head, target = problem(6)
    logprob = token_logprobs(hidden, head, target.at[2].set(stray), chunk=10)
    assert np.isnan(logprob).tolist() == [False, False, True, False, False, False]


def test_extreme_logits_stay_finite():
    hidden, head, target = problem(7)
    logprob, entropy = logprobs_and_entropy(1e4 * hidden, head, target, chunk=10)
    np.testing.assert_allclose(logprob, expected(1e4 * hidden, head, target)[0], rtol=1e-4)
    assert np.all(np.isfinite(np.asarray(entropy)))


def test_a_uniform_distribution_has_the_largest_entropy():
    hidden, head, target = jnp.zeros((T, D)), jnp.ones((D, V)), jnp.zeros(T, jnp.int32)
    logprob, entropy = logprobs_and_entropy(hidden, head, target, chunk=10)
    np.testing.assert_allclose(entropy, np.log(V), rtol=1e-6)
    np.testing.assert_allclose(logprob, -np.log(V), rtol=1e-6)


def test_the_entropys_gradient_alone():
    hidden, head, target = problem(8)
    actual = jax.grad(lambda h: jnp.sum(token_entropy(h, head, temperature=1.3, chunk=10)))(hidden)
    wanted = jax.grad(lambda h: jnp.sum(naive(h, head, target, 1.3)[1]))(hidden)
    np.testing.assert_allclose(actual, wanted, atol=2e-5)


def test_under_shard_map_the_gradient_of_a_replicated_head_is_summed_over_devices():
    rows = jax.sharding.PartitionSpec("data")
    whole = jax.sharding.PartitionSpec()
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    hidden, head, target = problem(9)

    def gradients(hidden, head, target):
        return jax.grad(lambda h, w: jnp.sum(token_logprobs(h, w, target, chunk=10)), (0, 1))(
            hidden, head
        )

    sharded = jax.shard_map(
        gradients, mesh=mesh, in_specs=(rows, whole, rows), out_specs=(rows, whole)
    )
    for one, other in zip(
        jax.jit(sharded)(hidden, head, target), gradients(hidden, head, target), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_TD": jnp.ones((1, T, D))}, r"hidden_TD should be \[T, D\]"),
        ({"head_DV": jnp.ones((V, D))}, "head_DV has 37 entries on axis D, hidden_TD has 16"),
        ({"target_T": jnp.zeros(T - 1, jnp.int32)}, "target_T has 5 entries on axis T"),
        ({"target_T": jnp.zeros(T)}, "target_T should hold integer ids, got float32"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"chunk": 0}, "chunk must be positive"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    hidden, head, target = problem()
    arguments = {"hidden_TD": hidden, "head_DV": head, "target_T": target}
    with pytest.raises(ValueError, match=message):
        token_logprobs(**{**arguments, **change})
