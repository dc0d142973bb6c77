"""Grouped-query attention whose keys come in runs, some of them shared by the rows of a group.

The rollouts of one prompt have their context in common: its keys and values exist once, every
rollout has only its own. Each run is attended by itself, and the partial softmaxes are merged by
their log-sum-exp, which gives the one softmax over all keys exactly:
``softmax([s1, s2]) v = (e^(m1-m) t1 o1 + e^(m2-m) t2 o2) / (e^(m1-m) t1 + e^(m2-m) t2)`` with peaks
``m1``, ``m2``, ``m = max(m1, m2)``, normalisers ``t1``, ``t2`` and outputs ``o1``, ``o2``.

Scores are never kept. The backward pass makes them again from queries and keys, block by block, and
needs of the forward pass only its output ``o`` and each query's log-sum-exp ``l``: weights are
``p = exp(s - l)``, and with the output's slope ``g`` those of the scores are
``p * (g v - sum(g * o))`` (Dao et al. 2022, FlashAttention, appendix B).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

MASKED = -1e30  # finite, so that a query without a visible key stays finite
QUERY_BLOCK = 64  # queries that attend at a time; few scores stay in a CPU's cache
WIDE_BLOCK = 512  # the same for processors that need large products
PARTS, PART_BLOCKS = 4, 4  # most lengths that a causal run is cut to, and least blocks between them
KeysValues = tuple[Array, Array, Array]  # a run without ``causal``


class Run(NamedTuple):
    """Keys and values that queries attend to, ``[b, N, S, C]`` each.

    With as many rows as there are queries each row has its own. With fewer, ``b`` divides the
    queries' ``B`` rows, and ``B / b`` consecutive ones share a row of keys.

    ``valid``: bool ``[b, S]``, keys that may be seen at all. ``causal``: these are the queries' own
    keys, and query t sees keys 0..t; otherwise every query sees all of them.

    Keys and values must be finite everywhere, also where ``valid`` is False: what is not seen gets
    weight 0, and 0 times NaN is NaN. Hiding them would write all keys and values once more for
    every decoded token, which takes a CPU longer than the attention itself. A cache meets this: it
    begins as zeros and holds what a model has written.
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


class _Part(NamedTuple):
    """Blocks ``first`` to ``last - 1`` of the queries; of a causal run they see ``seen`` keys."""

    first: int
    last: int
    seen: int


class _Form(NamedTuple):
    """What is static: which runs are causal, and whether blocks are wide."""

    causal: tuple[bool, ...]
    wide: bool


def attend(query: Array, runs: Sequence[Run], *, wide: bool = False) -> Array:
    """Attention with one float32 softmax over all runs of keys, scaled by ``C ** -0.5``.

    Args:
      query: ``[B, T, N, G, C]``, N key-value heads of G query heads each, not yet scaled.
      runs: at least one. A query that sees no key of any run gets some finite value, and its
        gradients are 0.
      wide: larger blocks, as suits TPUs and GPUs.

    Returns:
      ``[B, T, N, G, C]`` in the query's dtype. Queries attend in blocks, forwards and backwards, so
      that memory does not grow with ``T * S``. It can be differentiated once, backwards.

    Raises:
      ValueError: no run, or shapes that do not belong together.
    """
    _check(query, runs)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    form = _Form(tuple(run.causal for run in runs), wide)
    return _attend(form, query, [(run.key, run.value, run.valid) for run in runs])


def causal_pairs(length: int) -> int:
    """Query-key pairs that so many queries are multiplied with of a causal run of as many keys,
    in blocks that are not wide."""
    size, parts = _blocks(length, QUERY_BLOCK)
    return sum((part.last - part.first) * size * part.seen for part in parts)


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


def _blocks(length: int, most: int) -> tuple[int, list[_Part]]:
    """Queries of a block, less than twice ``most``, and the blocks in parts."""
    count = max(length // most, 1)
    size = -(-length // count)
    count = -(-length // size)
    each = max(-(-count // PARTS), PART_BLOCKS)
    ends = [(first, min(first + each, count)) for first in range(0, count, each)]
    return size, [_Part(first, last, min(last * size, length)) for first, last in ends]


def _split(x: Array, size: int) -> Array:
    """``[B, T, ...] -> [blocks, B, size, ...]``, the last block filled up with zeros."""
    count = -(-x.shape[1] // size)
    x = jnp.pad(x, ((0, 0), (0, count * size - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(-1, count, size, *x.shape[2:]), 1, 0)


def _joined(blocks: Sequence[Array], length: int) -> Array:
    """What :func:`_split` has split, in parts."""
    x = jnp.moveaxis(jnp.concatenate(blocks), 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _seen(causal: Sequence[bool], arrays: Sequence[KeysValues], part: _Part) -> list[Run]:
    """The runs, causal ones only as far as the part's queries see."""
    ends = [part.seen if own else None for own in causal]
    return [
        Run(key[:, :, :end], value[:, :, :end], valid[:, :end], own)
        for (key, value, valid), own, end in zip(arrays, causal, ends, strict=True)
    ]


def _forward(form: _Form, query: Array, arrays: list[KeysValues]) -> tuple[Array, Array]:
    """Output ``[B, T, N, G, C]`` and log-sum-exp, float32 ``[B, T, N, G, 1]``."""
    size, parts = _blocks(query.shape[1], WIDE_BLOCK if form.wide else QUERY_BLOCK)
    split = _split(query, size)
    index = jnp.arange(split.shape[0] * size).reshape(-1, size)
    found = []
    for part in parts:
        block = functools.partial(_attend_block, runs=_seen(form.causal, arrays, part))
        own = slice(part.first, part.last)
        found.append(jax.lax.map(lambda x, block=block: block(*x), (split[own], index[own])))
    mixed, norm = zip(*found, strict=True)
    return _joined(mixed, query.shape[1]), _joined(norm, query.shape[1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: _Form, query: Array, arrays: list[KeysValues]) -> Array:
    return _forward(form, query, arrays)[0]


def _attend_and_keep(form: _Form, query: Array, arrays: list[KeysValues]) -> Any:
    mixed, norm = _forward(form, query, arrays)
    return mixed, (query, arrays, mixed, norm)


def _gradients(form: _Form, kept: Any, slope: Array) -> Any:
    query, arrays, mixed, norm = kept
    size, parts = _blocks(query.shape[1], WIDE_BLOCK if form.wide else QUERY_BLOCK)
    slope = slope.astype(query.dtype)
    along = jnp.sum(slope.astype(jnp.float32) * mixed, axis=-1, keepdims=True)
    split = [_split(x, size) for x in (query, slope, norm, along)]
    split.append(jnp.arange(split[0].shape[0] * size).reshape(-1, size))
    shapes = [(*key.shape[:2], key.shape[3], key.shape[2]) for key, _, _ in arrays]
    sums = [(jnp.zeros(shape, jnp.float32),) * 2 for shape in shapes]
    found = []
    for part in parts:
        runs = _seen(form.causal, arrays, part)

        def block(sums: Any, inputs: Any, runs: list[Run] = runs) -> Any:
            own, more = _block_gradients(runs, *inputs)
            return jax.tree.map(_added, sums, more), own

        sums, own = jax.lax.scan(block, sums, [x[part.first : part.last] for x in split])
        found.append(own)
    slopes = [
        (*(jnp.swapaxes(total, 2, 3).astype(key.dtype) for total in pair), None)
        for pair, (key, _, _) in zip(sums, arrays, strict=True)
    ]
    return _joined(found, query.shape[1]), slopes


_attend.defvjp(_attend_and_keep, _gradients)


def _added(total: Array, some: Array) -> Array:
    """The sum where there is something of ``some`` ``[b, N, C, at most S]``."""
    rest = total.shape[-1] - some.shape[-1]
    return total + jnp.pad(some, ((0, 0), (0, 0), (0, 0), (0, rest)))


def _attend_block(query: Array, index: Array, runs: Sequence[Run]) -> tuple[Array, Array]:
    parts = [_attend_run(query, index, run) for run in runs]
    peak = functools.reduce(jnp.maximum, [part.peak for part in parts])
    if len(parts) == 1:
        total, mixed = parts[0].total, parts[0].mixed
    else:
        scales = [jnp.exp(part.peak - peak) for part in parts]
        mixed = sum(part.mixed * scale for part, scale in zip(parts, scales, strict=True))
        total = sum(part.total * scale for part, scale in zip(parts, scales, strict=True))
    blind = peak < MASKED / 2
    norm = jnp.where(blind, -MASKED, peak + jnp.log(total))  # its weights are then 0 backwards
    return (mixed / total).astype(query.dtype), norm


def _attend_run(query: Array, index: Array, run: Run) -> _Partial:
    score = _scores(query, index, run)
    peak = jnp.max(score, axis=-1, keepdims=True)
    weight = jnp.exp(score - peak)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    mixed = _product("bnrs,bnsc->bnrc", weight.astype(query.dtype), run.value)
    return _Partial(*(_per_query(x, query) for x in (peak, total, mixed)))


def _block_gradients(
    runs: Sequence[Run], query: Array, slope: Array, norm: Array, along: Array, index: Array
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Gradients of a block of queries ``[B, t, N, G, C]`` and, for each run, what it adds to those
    of keys and values, float32 ``[b, N, C, S]``.

    In that order the large factor of each product, scores or weights, is read as it lies in memory.
    ``norm``: log-sum-exp, ``along``: ``sum(slope * output)``, both ``[B, t, N, G, 1]``.
    """
    own, others = jnp.zeros(query.shape, jnp.float32), []
    for run in runs:
        rows, slopes, norms, alongs = (_as_rows(x, run) for x in (query, slope, norm, along))
        weight = jnp.exp(_scores(query, index, run) - norms)
        change = weight * (_product("bnrc,bnsc->bnrs", slopes, run.value) - alongs)
        weight, change = weight.astype(query.dtype), change.astype(query.dtype)
        own += _per_query(_product("bnrs,bnsc->bnrc", change, run.key), query)
        key = _product("bnrc,bnrs->bncs", rows, change)
        others.append((key, _product("bnrc,bnrs->bncs", slopes, weight)))
    return own.astype(query.dtype), others


def _scores(query: Array, index: Array, run: Run) -> Array:
    """Float32 ``[b, N, B / b * t * G, S]``, with ``MASKED`` added where a key is not seen.

    Added and not put in its place: XLA on a CPU would write the scores out once more for that.
    """
    batch, length, heads, group, _ = query.shape
    score = _product("bnrc,bnsc->bnrs", _as_rows(query, run), run.key)
    own, _, _, keys = score.shape
    bias = jnp.where(run.visible(index), 0.0, MASKED)[:, None, None, :, None]
    split = score.reshape(own, heads, batch // own, length, group, keys)
    return (split + bias).reshape(score.shape)


def _product(axes: str, left: Array, right: Array) -> Array:
    return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32)


def _as_rows(x: Array, run: Run) -> Array:
    """``[B, t, N, G, C] -> [b, N, B / b * t * G, C]``.

    Rows of one key-value head are the queries of all that share it: products are plain matmuls.
    """
    batch, length, heads, group, width = x.shape
    own = run.key.shape[0]
    split = x.reshape(own, batch // own, length, heads, group, width)
    return jnp.moveaxis(split, 3, 1).reshape(own, heads, -1, width)


def _per_query(rows: Array, query: Array) -> Array:
    """The opposite of :func:`_as_rows`, for queries of that shape."""
    batch, length, heads, group, _ = query.shape
    own = rows.shape[0]
    split = rows.reshape(own, heads, batch // own, length, group, -1)
    return jnp.moveaxis(split, 1, 3).reshape(batch, length, heads, group, -1)
