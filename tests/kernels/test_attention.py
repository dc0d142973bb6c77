"""Attention over runs of keys: a float64 loop, runs that rows share, blocks, what is not seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import attention
from turnwise_jax.kernels.attention import Run, attend

from .jaxprs import equations

B, T, N, G, C = 4, 11, 2, 2, 5
BLOCKS = {"one block": (64, 4, 4), "one part": (2, 1, 1), "parts": (2, 3, 1), "of one": (2, 9, 1)}


@pytest.fixture(params=BLOCKS.values(), ids=BLOCKS.keys())
def blocks(request, monkeypatch):
    """Sizes of blocks and parts; the last block is longer than what is left for it."""
    for name, value in zip(("QUERY_BLOCK", "PARTS", "PART_BLOCKS"), request.param, strict=True):
        monkeypatch.setattr(attention, name, value)


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


def plain(query, runs):
    """The same with every score at once, and jax's own gradients."""
    index = jnp.arange(query.shape[1])
    scores, values = [], []
    for run in runs:
        copies = len(query) // len(run.key)
        key, value = (jnp.repeat(x, copies, axis=0) for x in (run.key, run.value))
        seen = jnp.repeat(run.visible(index), copies, axis=0)[:, :, None, None]
        score = jnp.einsum("btngc,bnsc->btngs", query, key) * query.shape[-1] ** -0.5
        scores.append(jnp.where(seen, score, -1e30))
        values.append(value)
    weight = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
    return jnp.einsum("btngs,bnsc->btngc", weight, jnp.concatenate(values, axis=2))


def slopes(form, query, runs):
    """Gradients with respect to the query and every run's keys and values."""
    weight = jnp.cos(jnp.arange(query.size, dtype=jnp.float32)).reshape(query.shape)

    def loss(query, pairs):
        own = [Run(*pair, *run[2:]) for pair, run in zip(pairs, runs, strict=True)]
        return jnp.sum(form(query, own).astype(jnp.float32) * weight)

    pairs = [run[:2] for run in runs]
    return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1)))(query, pairs))


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
def test_it_is_one_softmax_over_all_visible_keys(sizes, blocks):
    rng = np.random.default_rng(0)
    query, arrays = rng.normal(size=(B, T, N, G, C)), runs_of(rng, *sizes)
    found = jax.jit(lambda q: attend(q, as_runs(arrays)))(jnp.float32(query))
    np.testing.assert_allclose(found, loop(query, arrays), atol=1e-5, rtol=0)


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES.keys())
def test_gradients_are_those_of_all_scores_at_once(sizes, blocks):
    rng = np.random.default_rng(4)
    query, runs = jnp.float32(rng.normal(size=(B, T, N, G, C))), as_runs(runs_of(rng, *sizes))
    for found, wanted in zip(slopes(attend, query, runs), slopes(plain, query, runs), strict=True):
        assert found.shape == wanted.shape
        assert float(jnp.abs(wanted).max()) > 0.05
        np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("sizes", [SHAPES["shared and own"]])
def test_bfloat16_gradients_are_near(sizes, blocks):
    rng = np.random.default_rng(5)
    query, runs = jnp.float32(rng.normal(size=(B, T, N, G, C))), as_runs(runs_of(rng, *sizes))

    def half(x):
        return x.astype(jnp.bfloat16)

    halves = [Run(half(run.key), half(run.value), *run[2:]) for run in runs]
    found = slopes(attend, half(query), halves)
    for one, wanted in zip(found, slopes(plain, query, runs), strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one, wanted, atol=0.02 * float(jnp.abs(wanted).max()), rtol=0.05)


def test_in_a_loop_of_recomputed_layers_gradients_are_the_same(blocks):
    rng = np.random.default_rng(6)
    query = jnp.float32(rng.normal(size=(B, T, N, G, C)))
    runs = as_runs(runs_of(rng, *SHAPES["shared and own"]))

    def layers(form):
        def layer(x, _):
            return x + form(x, runs), None

        def network(query):
            body = jax.checkpoint(layer, prevent_cse=False)
            return jnp.sum(jnp.sin(jax.lax.scan(body, query, None, length=3)[0]))

        return jax.jit(jax.grad(network))(query)

    np.testing.assert_allclose(layers(attend), layers(plain), atol=2e-6, rtol=2e-5)


def test_scores_are_neither_kept_nor_made_for_keys_behind_a_part(monkeypatch):
    """What the backward pass is handed has no length twice; pairs are counted as multiplied."""
    for name, value in (("QUERY_BLOCK", 4), ("PARTS", 4), ("PART_BLOCKS", 2)):
        monkeypatch.setattr(attention, name, value)
    length = 44  # 11 blocks of 4 in parts of 3
    query = jnp.ones((1, length, 1, 1, C))
    run = Run(jnp.ones((1, 1, length, C)), jnp.ones((1, 1, length, C)), jnp.ones((1, length), bool))
    run = run._replace(causal=True)
    kept = jax.tree.leaves(jax.vjp(lambda q: attend(q, [run]), query)[1])
    assert max(array.size for array in kept) == query.size
    traced = jax.make_jaxpr(lambda q: attend(q, [run]))(query)
    products = [x for x in equations(traced) if x[0].primitive.name == "dot_general"]
    scores = [(eqn.outvars[0].aval.shape[-1], times) for eqn, times in products][::2]
    assert scores == [(12, 3), (24, 3), (36, 3), (44, 2)]  # keys, blocks
    assert attention.causal_pairs(length) == 12 * (12 + 24 + 36) + 8 * 44
    assert attention.causal_pairs(7) == 49  # too few queries to tell apart


def test_wide_blocks_have_more_queries_and_the_same_values(monkeypatch):
    for name, value in (("QUERY_BLOCK", 2), ("WIDE_BLOCK", 6)):
        monkeypatch.setattr(attention, name, value)
    rng = np.random.default_rng(2)
    query = jnp.asarray(rng.normal(size=(B, 12, N, G, C)), jnp.float32)
    runs = as_runs(runs_of(rng, (2, 7, False), (B, 12, True)))
    found = {}
    for wide, block in ((False, 2), (True, 6)):
        traced = jax.make_jaxpr(lambda q, wide=wide: attend(q, runs, wide=wide))(query)
        products = [eqn.outvars[0].aval.shape for eqn, _ in equations(traced)
                    if eqn.primitive.name == "dot_general"]  # fmt: skip
        assert {shape[2] for shape in products} == {block * G, block * G * B // 2}
        found[wide] = attend(query, runs, wide=wide)
    np.testing.assert_allclose(found[True], found[False], atol=1e-6)


def test_a_shared_run_has_the_gradients_of_its_copies(blocks):
    """Keys of a context get the sum over the rows that share it, whatever the block."""
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
    for slope in slopes(attend, query, [blind]):
        np.testing.assert_array_equal(slope, 0.0)


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
