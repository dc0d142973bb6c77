"""Attention over runs of keys: a float64 loop, runs that rows share, blocks, what is not seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import attention
from turnwise_jax.kernels.attention import Run, attend

B, T, N, G, C = 4, 3, 2, 2, 5


def runs_of(rng, *sizes):
    """(keys, values, mask) of runs with (b, T or 1, S); every query sees a key."""
    out = []
    for rows, queries, keys in sizes:
        mask = rng.random((rows, queries, keys)) < 0.6
        mask[:, :, 0] = True
        key, value = rng.normal(size=(2, rows, N, keys, C))
        out.append((key, value, mask))
    return out


def as_runs(arrays):
    def run(key, value, mask):
        def visible(index):
            return jnp.asarray(mask) if mask.shape[1] == 1 else jnp.asarray(mask)[:, index]

        return Run(jnp.asarray(key, jnp.float32), jnp.asarray(value, jnp.float32), visible)

    return [run(*each) for each in arrays]


def loop(query, arrays):
    """Softmax over all visible keys, one query at a time, in float64."""
    out = np.zeros_like(query)
    for b, t, n, g in np.ndindex(query.shape[:4]):
        seen = [
            (query[b, t, n, g] @ key[own, n, s] / np.sqrt(query.shape[-1]), value[own, n, s])
            for key, value, mask in arrays
            for own in [b * len(key) // len(query)]
            for s in range(key.shape[2])
            if mask[own, min(t, mask.shape[1] - 1), s]
        ]
        weights = np.exp(np.array([score for score, _ in seen]))
        out[b, t, n, g] = weights @ np.array([value for _, value in seen]) / weights.sum()
    return out


SHAPES = {
    "own": [(B, T, 7)],
    "shared": [(2, 1, 7)],
    "shared by all": [(1, 1, 7), (B, T, 3)],
    "shared and own": [(2, 1, 7), (B, T, 3)],
    "context, turns and own": [(2, 1, 6), (B, 1, 4), (B, T, 3)],
    "shared, query by query": [(2, T, 7), (B, T, 3)],
}


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES.keys())
def test_it_is_one_softmax_over_all_visible_keys(sizes):
    rng = np.random.default_rng(0)
    query, arrays = rng.normal(size=(B, T, N, G, C)), runs_of(rng, *sizes)
    found = jax.jit(lambda q: attend(q, as_runs(arrays)))(jnp.float32(query))
    np.testing.assert_allclose(found, loop(query, arrays), atol=1e-5, rtol=0)


@pytest.mark.parametrize("block", [2, 512])
def test_a_shared_run_has_the_gradients_of_its_copies(monkeypatch, block):
    """Keys of a context get the sum over the rows that share it, whatever the block."""
    monkeypatch.setattr(attention, "QUERY_BLOCK", block)
    rng = np.random.default_rng(1)
    query = jnp.asarray(rng.normal(size=(B, T, N, G, C)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=query.shape), jnp.float32)
    (key, value, mask), own = runs_of(rng, (2, 1, 7), (B, T, 3))
    shared = jnp.asarray(key, jnp.float32), jnp.asarray(value, jnp.float32)

    def loss(shared, copies):
        query_, (key, value) = query, [jnp.repeat(x, copies, axis=0) for x in shared]
        seen = jnp.repeat(jnp.asarray(mask), copies, axis=0)
        runs = [Run(key, value, lambda index: seen), *as_runs([own])]
        return jnp.sum(attend(query_, runs) * weight)

    once, copied = (jax.jit(jax.grad(loss), static_argnums=1)(shared, n) for n in (1, 2))
    for one, other in zip(once, copied, strict=True):
        assert float(jnp.abs(one).max()) > 0.1
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


def test_keys_out_of_sight_have_no_gradient_and_no_part():
    rng = np.random.default_rng(2)
    query = jnp.asarray(rng.normal(size=(B, T, N, G, C)), jnp.float32)
    (key, value, mask), own = runs_of(rng, (2, 1, 7), (B, T, 3))
    seen = mask[:, 0]

    def out(key):
        runs = [Run(key, jnp.asarray(value, jnp.float32), lambda index: jnp.asarray(mask))]
        return attend(query, runs + as_runs([own]))

    moved = key + np.where(seen[:, None, :, None], 0.0, 100.0)
    np.testing.assert_array_equal(out(jnp.float32(moved)), out(jnp.float32(key)))
    slope = jax.grad(lambda key: jnp.sum(out(key) ** 2))(jnp.float32(key))
    np.testing.assert_array_equal(np.abs(slope).max(axis=(1, 3)) > 0, seen)


def test_a_query_that_sees_nothing_is_finite():
    query = jnp.ones((2, 1, 1, 1, 4))
    blind = Run(
        jnp.ones((1, 1, 3, 4)), jnp.ones((1, 1, 3, 4)), lambda i: jnp.zeros((1, 1, 3), bool)
    )
    sight = Run(
        jnp.ones((2, 1, 2, 4)), jnp.full((2, 1, 2, 4), 7.0), lambda i: jnp.ones((2, 1, 2), bool)
    )
    assert np.isfinite(attend(query, [blind])).all()
    assert np.isfinite(attend(query, [blind, blind])).all()
    np.testing.assert_allclose(attend(query, [blind, sight]), 7.0)  # nothing of the blind run


@pytest.mark.parametrize(
    "shape",
    [(3, 1, 5, 4), (2, 2, 5, 4), (2, 1, 5, 3), (2, 1, 5)],
    ids=["rows", "heads", "width", "rank"],
)
def test_shapes_that_do_not_belong_together_are_refused(shape):
    with pytest.raises(ValueError, match="should be"):
        attend(jnp.ones((4, 1, 1, 1, 4)), [Run(jnp.ones(shape), jnp.ones(shape), lambda i: i)])
    with pytest.raises(ValueError, match="a run of keys"):
        attend(jnp.ones((4, 1, 1, 1, 4)), [])
