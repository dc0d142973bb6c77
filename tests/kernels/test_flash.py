"""Attention by tiles equals plain attention, in value and gradient; the kernel runs interpreted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels.attention import Run, attend
from turnwise_jax.kernels.flash import fits, flash_attend

N, G, C = 1, 2, 128


def make(rng, rows, length, *runs):
    """Queries ``[rows, length, N, G, C]`` and runs of (rows, keys, causal) with holes in them."""

    def floats(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    made = []
    for own, keys, causal in runs:
        valid = rng.random((own, keys)) < 0.8
        valid[:, 0] = True
        made.append(
            Run(floats(own, N, keys, C), floats(own, N, keys, C), jnp.asarray(valid), causal)
        )
    return floats(rows, length, N, G, C), made


SHAPES = {
    "causal": (2, 130, (2, 130, True)),
    "shared context and own": (2, 130, (1, 70, False), (2, 130, True)),
    "all keys": (1, 128, (1, 200, False)),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_tiles_give_the_values_and_gradients_of_plain_attention(shape):
    rng = np.random.default_rng(0)
    query, runs = make(rng, *shape)
    weight = jnp.asarray(rng.normal(size=query.shape), jnp.float32)
    seen = jnp.ones(query.shape[:2], bool)
    if runs[-1].causal:  # a query whose own key counts sees something
        seen = runs[-1].valid if len(runs) == 1 else seen

    def loss(attention, query, pairs):
        made = [run._replace(key=k, value=v) for run, (k, v) in zip(runs, pairs, strict=True)]
        out = attention(query, made)
        return jnp.sum(jnp.where(seen[..., None, None, None], out * weight, 0.0)), out

    def interpreted(query, runs):
        return flash_attend(query, runs, interpret=True)

    pairs = [(run.key, run.value) for run in runs]
    (slopes, out), (expected, plain) = (
        jax.grad(lambda q, p, a=a: loss(a, q, p), argnums=(0, 1), has_aux=True)(query, pairs)
        for a in (interpreted, attend)
    )
    kept = np.asarray(seen)
    np.testing.assert_allclose(np.asarray(out)[kept], np.asarray(plain)[kept], atol=2e-5)
    for one, other in zip(jax.tree.leaves(slopes), jax.tree.leaves(expected), strict=True):
        assert float(jnp.abs(other).max()) > 0.1
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_what_does_not_fit_is_refused():
    rng = np.random.default_rng(1)
    query, runs = make(rng, 1, 128, (1, 128, True))
    assert fits(query, runs)
    assert not fits(query[:, :100], runs)  # too few queries for a tile
    assert not fits(query[..., :64], runs)  # heads that do not fill the lanes
    own_first = [*runs, runs[0]._replace(causal=False)]
    assert not fits(query, own_first)
    with pytest.raises(ValueError, match="do not fit"):
        flash_attend(query, own_first)
