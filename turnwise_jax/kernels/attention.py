"""Grouped-query attention whose keys come in runs, some of them shared by the rows of a group.

The rollouts of one prompt have their context in common: its keys and values exist once, every
rollout has only its own. Each run is attended by itself, and the partial softmaxes are merged by
their log-sum-exp, which gives the one softmax over all keys exactly:
``softmax([s1, s2]) v = (e^(m1-m) t1 o1 + e^(m2-m) t2 o2) / (e^(m1-m) t1 + e^(m2-m) t2)`` with peaks
``m1``, ``m2``, ``m = max(m1, m2)``, normalisers ``t1``, ``t2`` and outputs ``o1``, ``o2``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

MASKED = -1e30  # finite, so that a query without a visible key stays finite
QUERY_BLOCK = 512  # queries that attend at a time; bounds the float32 [T, S] scores


class Run(NamedTuple):
    """Keys and values that queries attend to, ``[b, N, S, C]`` each.

    With as many rows as there are queries each row has its own. With fewer, ``b`` divides the
    queries' ``B`` rows, and ``B / b`` consecutive ones share a row of keys.

    ``valid``: bool ``[b, S]``, keys that may be seen at all. ``causal``: these are the queries' own
    keys, and query t sees keys 0..t; otherwise every query sees all of them.
    """

    key: Array
    value: Array
    valid: Array
    causal: bool = False

    def visible(self, index: Array) -> Array:
        """Which keys the queries ``index`` ``[t]`` see, bool ``[b, t or 1, S]``."""
        if not self.causal:
            return self.valid[:, None, :]
        earlier = index[:, None] >= jnp.arange(self.valid.shape[1])[None, :]
        return earlier[None] & self.valid[:, None, :]


class _Partial(NamedTuple):
    """One run's part of a softmax, float32 ``[B, T, N, G, 1 or C]``: ``exp(s - peak)`` summed,
    and the sum of values so weighted."""

    peak: Array
    total: Array
    mixed: Array


def attend(query: Array, runs: Sequence[Run]) -> Array:
    """Attention with one float32 softmax over all runs of keys, scaled by ``C ** -0.5``.

    Args:
      query: ``[B, T, N, G, C]``, N key-value heads of G query heads each, not yet scaled.
      runs: at least one. A query that sees no key of any run gets some finite value.

    Returns:
      ``[B, T, N, G, C]`` in the query's dtype. Above ``QUERY_BLOCK`` queries attend in blocks, each
      recomputed in the backward pass, so that memory does not grow with ``T * S``.

    Raises:
      ValueError: no run, or shapes that do not belong together.
    """
    _check(query, runs)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    length = query.shape[1]
    if length <= QUERY_BLOCK:
        return _attend_block(query, jnp.arange(length), runs)
    blocks = -(-length // QUERY_BLOCK)
    padded = jnp.pad(query, ((0, 0), (0, blocks * QUERY_BLOCK - length), *((0, 0),) * 3))
    split = jnp.moveaxis(padded.reshape(-1, blocks, QUERY_BLOCK, *query.shape[2:]), 1, 0)
    index = jnp.arange(blocks * QUERY_BLOCK).reshape(blocks, QUERY_BLOCK)

    def block(inputs: tuple[Array, Array]) -> Array:
        return _attend_block(*inputs, runs)

    mixed = jnp.moveaxis(jax.lax.map(jax.checkpoint(block), (split, index)), 0, 1)
    return mixed.reshape(padded.shape)[:, :length]


def _check(query: Array, runs: Sequence[Run]) -> None:
    if query.ndim != 5 or not runs:
        raise ValueError(f"query should be [B, T, N, G, C] with a run of keys, got {query.shape}")
    rows, _, heads, _, width = query.shape
    for key, value, valid, _ in runs:
        fits = key.ndim == 4 and key.shape == value.shape
        fits = fits and valid.shape == (key.shape[0], key.shape[2])
        if not fits or rows % key.shape[0] or key.shape[1] != heads or key.shape[3] != width:
            raise ValueError(
                f"keys {key.shape}, values {value.shape} and valid {valid.shape} should be "
                f"[b, N, S, C] and [b, S] for queries {query.shape}, with b a divisor of {rows}"
            )


def _attend_block(query: Array, index: Array, runs: Sequence[Run]) -> Array:
    parts = [_attend_run(query, index, run) for run in runs]
    if len(parts) == 1:
        return (parts[0].mixed / parts[0].total).astype(query.dtype)
    peak = functools.reduce(jnp.maximum, [part.peak for part in parts])
    scales = [jnp.exp(part.peak - peak) for part in parts]
    mixed = sum(part.mixed * scale for part, scale in zip(parts, scales, strict=True))
    total = sum(part.total * scale for part, scale in zip(parts, scales, strict=True))
    return (mixed / total).astype(query.dtype)


def _attend_run(query: Array, index: Array, run: Run) -> _Partial:
    """Rows of one key-value head are the queries of all that share it: both products are plain
    matmuls."""
    batch, length, heads, group, width = query.shape
    own = run.key.shape[0]
    split = (own, batch // own, length, heads, group)
    rows = jnp.moveaxis(query.reshape(*split, width), 3, 1).reshape(own, heads, -1, width)
    score = jnp.einsum("bnrc,bnsc->bnrs", rows, run.key, preferred_element_type=jnp.float32)
    visible = run.visible(index)[:, None, None, :, None]  # [b, heads, sharers, t, group, S]
    score = score.reshape(own, heads, batch // own, length, group, -1)
    score = jnp.where(visible, score, MASKED).reshape(own, heads, rows.shape[2], -1)
    peak = jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True))
    weight = jnp.exp(score - peak)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    mixed = jnp.einsum(
        "bnrs,bnsc->bnrc",
        weight.astype(query.dtype),
        run.value,
        preferred_element_type=jnp.float32,
    )

    def per_query(x: Array) -> Array:
        x = x.reshape(own, heads, batch // own, length, group, -1)
        return jnp.moveaxis(x, 1, 3).reshape(batch, length, heads, group, -1)

    return _Partial(*map(per_query, (peak, total, mixed)))
