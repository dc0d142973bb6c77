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
    """(keys, values, valid, causal) of runs with (rows, keys, causal); every query sees a key."""
    out = []
    for rows, keys, causal in sizes:
        valid = rng.random((rows, keys)) < 0.6
        valid[:, 0] = True
        key, value = rng.normal(size=(2, rows, N, keys, C))
        out.append((key, value, valid, causal))
    return out


def as_runs(arrays):
    return [
        Run(jnp.float32(k), jnp.float32(v), jnp.asarray(m), causal) for k, v, m, causal in arrays
    ]


def loop(query, arrays):
    """Softmax over all visible keys, one query at a time, in float64."""
    out = np.zeros_like(query)
    for b, t, n, g in np.ndindex(query.shape[:4]):
        seen = [
            (query[b, t, n, g] @ key[own, n, s] / np.sqrt(query.shape[-1]), value[own, n, s])
            for key, value, valid, causal in arrays
            for own in [b * len(key) // len(query)]
            for s in range(key.shape[2])
            if valid[own, s] and (s <= t or not causal)
        ]
        weights = np.exp(np.array([score for score, _ in seen]))
        out[b, t, n, g] = weights @ np.array([value for _, value in seen]) / weights.sum()
    return out


SHAPES = {
    "own": [(B, 7, False)],
    "own, causal": [(B, T, True)],
    "shared": [(2, 7, False)],
    "shared by all": [(1, 7, False), (B, T, True)],
    "shared and own": [(2, 7, False), (B, T, True)],
    "context, turns and own": [(2, 6, False), (B, 4, False), (B, T, True)],
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
    (key, value, valid, _), own = runs_of(rng, (2, 7, False), (B, T, True))
    shared = jnp.asarray(key, jnp.float32), jnp.asarray(value, jnp.float32)

    def loss(shared, copies):
        query_, (key, value) = query, [jnp.repeat(x, copies, axis=0) for x in shared]
        runs = [Run(key, value, jnp.repeat(jnp.asarray(valid), copies, axis=0)), *as_runs([own])]
        return jnp.sum(attend(query_, runs) * weight)

    once, copied = (jax.jit(jax.grad(loss), static_argnums=1)(shared, n) for n in (1, 2))
    for one, other in zip(once, copied, strict=True):
        assert float(jnp.abs(one).max()) > 0.1
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


def test_keys_out_of_sight_have_no_gradient_and_no_part():
    rng = np.random.default_rng(2)
    query = jnp.asarray(rng.normal(size=(B, T, N, G, C)), jnp.float32)
    (key, value, seen, _), own = runs_of(rng, (2, 7, False), (B, T, True))

    def out(key):
        return attend(query, [Run(key, jnp.float32(value), jnp.asarray(seen)), *as_runs([own])])

    moved = key + np.where(seen[:, None, :, None], 0.0, 100.0)
    np.testing.assert_array_equal(out(jnp.float32(moved)), out(jnp.float32(key)))
    slope = jax.grad(lambda key: jnp.sum(out(key) ** 2))(jnp.float32(key))
    np.testing.assert_array_equal(np.abs(slope).max(axis=(1, 3)) > 0, seen)


def test_a_query_that_sees_nothing_is_finite():
    query = jnp.ones((2, 1, 1, 1, 4))
    blind = Run(jnp.ones((1, 1, 3, 4)), jnp.ones((1, 1, 3, 4)), jnp.zeros((1, 3), bool))
    sight = Run(jnp.ones((2, 1, 2, 4)), jnp.full((2, 1, 2, 4), 7.0), jnp.ones((2, 2), bool))
    assert np.isfinite(attend(query, [blind])).all()
    assert np.isfinite(attend(query, [blind, blind])).all()
    np.testing.assert_allclose(attend(query, [blind, sight]), 7.0)  # nothing of the blind run


@pytest.mark.parametrize(
    ("shape", "valid"),
    [
        ((3, 1, 5, 4), (3, 5)),
        ((2, 2, 5, 4), (2, 5)),
        ((2, 1, 5, 3), (2, 5)),
        ((2, 1, 5), (2, 5)),
        ((2, 1, 5, 4), (2, 1, 5)),
    ],
    ids=["rows", "heads", "width", "rank", "valid"],
)
def test_shapes_that_do_not_belong_together_are_refused(shape, valid):
    with pytest.raises(ValueError, match="should be"):
        attend(
            jnp.ones((4, 1, 1, 1, 4)),
            [Run(jnp.ones(shape), jnp.ones(shape), jnp.ones(valid, bool))],
        )
    with pytest.raises(ValueError, match="a run of keys"):
        attend(jnp.ones((4, 1, 1, 1, 4)), [])
