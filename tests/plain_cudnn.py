"""What cuDNN's two attention kernels compute, written down plainly: a stand-in without a GPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from turnwise_jax.kernels.cudnn import Calls


def scores(query, key, count, causal):
    """Scores ``[b, N, G, T, S]`` and which of them count, as cuDNN's masks have it."""
    rows, length, heads, width = query.shape
    split = query.reshape(rows, length, key.shape[2], heads // key.shape[2], width)
    found = jnp.einsum("btngc,bsnc->bngts", split, key) * width**-0.5
    index = jnp.arange(key.shape[1])[None]
    seen = (index < count[:, None])[:, None, None, None]
    if causal:
        seen = seen & (index <= jnp.arange(length)[:, None])[None, None, None]
    return jnp.where(seen, found.astype(jnp.float32), -jnp.inf), split


def plain_forward(query, key, value, count, causal):
    score, _ = scores(query, key, count, causal)
    mixed = jnp.einsum("bngts,bsnc->btngc", jax.nn.softmax(score, axis=-1), value)
    lse = jax.nn.logsumexp(score, axis=-1)
    return mixed.reshape(query.shape).astype(query.dtype), lse.reshape(len(query), -1, lse.shape[3])


def plain_backward(query, key, value, count, causal, lse, mixed, slope):
    score, split = scores(query, key, count, causal)
    slope, mixed = (x.reshape(split.shape) for x in (slope, mixed))
    weight = jnp.exp(score - lse.reshape(*score.shape[:-1], 1))
    inner = jnp.moveaxis(jnp.sum(slope * mixed, axis=-1), 1, 3)[..., None]
    by_score = weight * (jnp.einsum("btngc,bsnc->bngts", slope, value) - inner)
    by_score = by_score * query.shape[-1] ** -0.5
    by_query = jnp.einsum("bngts,bsnc->btngc", by_score, key).reshape(query.shape)
    by_key = jnp.einsum("bngts,btngc->bsnc", by_score, split)
    by_value = jnp.einsum("bngts,btngc->bsnc", weight, slope)
    return tuple(x.astype(query.dtype) for x in (by_query, by_key, by_value))


PLAIN = Calls(plain_forward, plain_backward)
