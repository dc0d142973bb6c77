"""``attend`` on NVIDIA GPUs, by cuDNN's fused attention: no scores in memory.

cuDNN attends to one run of keys, of which the first few count, and returns each query's log-sum-exp
beside its values. So every run is attended by itself, a shared one once by the queries of all rows
that share it, and the values are merged as in ``attend``. Backwards each run is given the merged
values and log-sum-exp: ``exp(s - lse)`` are then its weights in the one softmax over all runs, and
the gradients of the runs add up (the backward pass of FlashAttention-2, arXiv:2307.08691, needs
nothing else of the forward pass). Tokens that do not count are moved behind those that do. Lengths
are always given: without them cuDNN's gradients are not always finite
(github.com/NVIDIA/cudnn-frontend/issues/1072).

jax offers the log-sum-exp only rounded and without its gradient. Both calls that are exact lie in
a private module, the same in jax 0.10 and 0.11. They are tried once on the GPU itself; without
them, or if they should give anything but what ``attend`` gives, that is used.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from turnwise_jax.kernels.attention import MASKED, Run, attend

LEAST = 64  # queries of a row: a tile of cuDNN's; fewer are quick to attend as they are
WIDTHS = (8, 128)  # a head's width is a multiple of the first, at most the second, on every GPU
DTYPES = ("bfloat16", "float16")
# 9.13 and 9.14 read beyond their memory in CUDA graphs, with masks of lengths and many keys
# (github.com/NVIDIA/TransformerEngine/pull/2344); XLA runs programs as such graphs.
FAULTY = range(91300, 91500)
TOLERANCE = 0.06  # of the trial, relative to the largest entry: a few roundings of bfloat16


class Calls(NamedTuple):
    """The two kernels. Of ``key, value [b, S, N, C]`` the first ``count [b]`` are seen, at least 1.

    ``forward``: ``(query [b, T, H, C], key, value, count, causal)`` gives values ``[b, T, H, C]``
    and float32 log-sum-exp of the scores times ``C ** -0.5``, ``[b, H, T]``; H is a multiple of N.

    ``backward``: ``(query, key, value, count, causal, lse, mixed, slope)`` gives the gradients of
    query, key and value from that of ``mixed``.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., tuple[Array, Array, Array]]


def fits(query: Array, runs: Sequence[Run]) -> bool:
    """Whether such queries and runs can be attended in this way on this machine's GPU."""
    return _suits(query, runs) and usable()


def _suits(query: Array, runs: Sequence[Run]) -> bool:
    """A causal run is the queries' own, and dtypes, head width and number of queries suit."""
    rows, length, *_, width = query.shape
    own = all(run.key.shape[0::2] == (rows, length) for run in runs if run.causal)
    dtypes = {query.dtype.name, *(x.dtype.name for run in runs for x in (run.key, run.value))}
    multiple, most = WIDTHS
    wide = width % multiple == 0 and width <= most
    return own and wide and length >= LEAST and len(dtypes) == 1 and dtypes <= set(DTYPES)


def cudnn_attend(query: Array, runs: Sequence[Run], calls: Calls | None = None) -> Array:
    """What ``attend`` computes; arguments and result are the same.

    Only where a causal run has tokens that do not count before some that do, the queries of the
    former get another finite value.

    Args:
      calls: the kernels, cuDNN's if None.

    Raises:
      ValueError: queries and runs that do not suit (see ``fits``).
      ImportError: this jax has no such kernels, or finds no cuDNN.
    """
    if not _suits(query, runs):
        raise ValueError(f"queries {query.shape} {query.dtype} and their runs do not fit cuDNN")
    rows, length, heads, group, width = query.shape
    causal = tuple(run.causal for run in runs)
    keys = tuple((run.key, run.value, run.valid) for run in runs)
    flat = query.reshape(rows, length, heads * group, width)
    return _merged(calls or cudnn_calls(), causal, flat, keys).reshape(query.shape)


Keys = tuple[tuple[Array, Array, Array], ...]  # of every run: key, value and valid
Saved = tuple[Array, Keys, Array, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _merged(calls: Calls, causal: tuple[bool, ...], query: Array, keys: Keys) -> Array:
    """Values ``[B, T, H, C]`` of the queries ``[B, T, H, C]`` over all runs."""
    return _forward(calls, causal, query, keys)[0]


def _forward(
    calls: Calls, causal: tuple[bool, ...], query: Array, keys: Keys
) -> tuple[Array, Saved]:
    parts = [
        _attend_run(calls, _Packed.of(*run, own), query)
        for run, own in zip(keys, causal, strict=True)
    ]
    lse = jax.nn.logsumexp(jnp.stack([own for _, own in parts]), axis=0)
    mixed = sum(values.astype(jnp.float32) * jnp.exp(own - lse)[..., None] for values, own in parts)
    mixed = jnp.asarray(mixed, query.dtype)
    lse = jnp.where(lse > MASKED / 2, lse, -MASKED)  # weights 0 of a query that sees nothing
    return mixed, (query, keys, mixed, lse)


def _backward(
    calls: Calls, causal: tuple[bool, ...], saved: Saved, slope: Array
) -> tuple[Array, tuple[tuple[Array, Array, None], ...]]:
    query, keys, mixed, lse = saved
    total = jnp.zeros(query.shape, jnp.float32)
    slopes = []
    for run, own in zip(keys, causal, strict=True):
        packed = _Packed.of(*run, own)
        by_query, *by_keys = calls.backward(
            packed.queries(query),
            packed.key,
            packed.value,
            jnp.maximum(packed.count, 1),
            own,
            jnp.swapaxes(packed.queries(lse), 1, 2),
            packed.queries(mixed),
            jnp.where(_per_key_row(packed.count > 0), packed.queries(slope), 0),
        )
        total += packed.unpacked(by_query).reshape(query.shape)
        slopes.append((*map(packed.keys_back, by_keys), None))
    return total.astype(query.dtype), tuple(slopes)


_merged.defvjp(_forward, _backward)


class _Packed(NamedTuple):
    """A run as the kernels take it, tokens that count in front.

    ``key, value``: ``[b, S, N, C]``. ``count``: int32 ``[b]``. ``order``: int32 ``[b, S]``, from
    where each token came. ``causal``: the queries are moved as their keys are.
    """

    key: Array
    value: Array
    count: Array
    order: Array
    causal: bool

    @classmethod
    def of(cls, key: Array, value: Array, valid: Array, causal: bool) -> _Packed:
        order = jnp.argsort(~valid, axis=1, stable=True).astype(jnp.int32)
        count = jnp.sum(valid, axis=1, dtype=jnp.int32)
        key, value = (_moved(jnp.swapaxes(x, 1, 2), order) for x in (key, value))
        return cls(key, value, count, order, causal)

    def queries(self, x: Array) -> Array:
        """``x [B, T, ...]`` as ``[b, B / b * T, ...]``: rows that share keys one after another."""
        if self.causal:
            return _moved(x, self.order)
        return x.reshape(len(self.count), -1, *x.shape[2:])

    def unpacked(self, x: Array) -> Array:
        """What the queries gave, in their order, still ``[b, B / b * T, ...]``."""
        return _moved(x, self.rank) if self.causal else x

    def keys_back(self, x: Array) -> Array:
        """What ``[b, S, N, C]`` is for the keys as they came, ``[b, N, S, C]``."""
        return jnp.swapaxes(_moved(x, self.rank), 1, 2)

    @property
    def rank(self) -> Array:
        """Where each token went, the inverse of ``order``."""
        return jnp.argsort(self.order, axis=1)


def _attend_run(calls: Calls, packed: _Packed, query: Array) -> tuple[Array, Array]:
    """Values ``[B, T, H, C]`` and log-sum-exp ``[B, T, H]`` over one run.

    Without a token the kernel is shown one, which then has no part in the whole.
    """
    values, lse = calls.forward(
        packed.queries(query),
        packed.key,
        packed.value,
        jnp.maximum(packed.count, 1),
        packed.causal,
    )
    lse = jnp.swapaxes(lse, 1, 2)
    lse = jnp.where(packed.count[:, None, None] > 0, lse, MASKED)
    return (
        packed.unpacked(values).reshape(query.shape),
        packed.unpacked(lse).reshape(query.shape[:-1]),
    )


def _moved(x: Array, order: Array) -> Array:
    """``x [b, S, ...]`` with entry ``order[i, s]`` of row i at s."""
    return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1)


def _per_key_row(x: Array) -> Array:
    return x[:, None, None, None]


@functools.cache
def cudnn_calls() -> Calls:
    """cuDNN's kernels.

    Raises:
      ImportError: this jax has none, or finds no cuDNN.
      NotImplementedError: a version of cuDNN that is known to fail.
    """
    try:
        from jax._src.cudnn import fused_attention_stablehlo as fused

        version = fused.check_cudnn_version()
        both = fused.dot_product_attention, fused._dot_product_attention_bwd_p_wrapper
        masks = fused.MaskType.PADDING, fused.MaskType.PADDING_CAUSAL
        layout = fused.AttentionLayout.BTNH.value
    except (ImportError, AttributeError, RuntimeError) as error:
        raise ImportError(f"no attention by cuDNN: {error}") from error
    if version in FAULTY:
        raise NotImplementedError(f"cuDNN {version} is known to fail; 9.15 and later are not")
    forwards, backwards = both

    def shared(query: Array, causal: bool) -> dict[str, Any]:
        return {"scale": query.shape[-1] ** -0.5, "mask_type": masks[causal]}

    def lengths(query: Array, count: Array) -> tuple[Array, Array]:
        return jnp.full(query.shape[:1], query.shape[1], jnp.int32), count

    def forward(
        query: Array, key: Array, value: Array, count: Array, causal: bool
    ) -> tuple[Array, Array]:
        shown, seen = lengths(query, count)
        options = shared(query, causal)
        return forwards(  # type: ignore[no-any-return]
            query, key, value, q_seqlen=shown, kv_seqlen=seen, return_residual=True, **options
        )

    def backward(
        query: Array,
        key: Array,
        value: Array,
        count: Array,
        causal: bool,
        lse: Array,
        mixed: Array,
        slope: Array,
    ) -> tuple[Array, Array, Array]:
        none = jnp.zeros(0, query.dtype)  # bias, offsets of packed rows, page tables
        return backwards.bind(  # type: ignore[no-any-return]
            *(query, key, value, none, *lengths(query, count), *(none,) * 4),
            *(lse, mixed, slope),
            **shared(query, causal),
            seed=0,
            dropout_rate=0.0,
            variadic_args=(False, False),
            layout=layout,
            sliding_window_length=None,
        )

    return Calls(forward, backward)


@functools.cache
def usable() -> bool:
    """Whether cuDNN gives on this machine's GPU what ``attend`` gives, tried once on a small case.

    Warns if not, where there is a cuDNN.
    """
    try:
        calls = cudnn_calls()
        # A thread of its own, as this one may be in the middle of tracing a program.
        with ThreadPoolExecutor(1) as aside:
            off = aside.submit(trial, calls).result()
    except ImportError:
        return False
    except Exception as error:  # whatever it is that this cuDNN, GPU or jax does not do
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    else:
        if off <= TOLERANCE:
            return True
        reason = f"values or gradients are off by {off:.3g}"
    warnings.warn(f"attention by cuDNN is not used: {reason}", stacklevel=2)
    return False


def trial(calls: Calls) -> float:
    """How far values and gradients of a small case are from ``attend``'s, relative to the largest.

    A shared run and one of the rows' own, both with tokens that do not count, as in training.
    """
    rows, length, before, heads, group, width = 2, 2 * LEAST, 96, 2, 2, 64
    shapes = {
        "query": (rows, length, heads, group, width),
        "slope": (rows, length, heads, group, width),
        "context": (2, 1, heads, before, width),
        "own": (2, rows, heads, length, width),
    }
    holes = jnp.arange(before)[None] % 3 != 1
    begun = jnp.arange(length)[None] < jnp.array([[100], [128]])

    def slopes(attention: Callable[..., Array], arrays: dict[str, Array]) -> list[Array]:
        def values(query: Array, context: Array, own: Array) -> Array:
            shared = Run(context[0], context[1], holes)
            return attention(query, [shared, Run(own[0], own[1], begun, causal=True)])

        mixed, pull = jax.vjp(values, arrays["query"], arrays["context"], arrays["own"])
        return [mixed, *pull(arrays["slope"])]

    def furthest() -> Array:
        half = {name: _spread(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
        single = {name: x.astype(jnp.float32) for name, x in half.items()}
        found = slopes(functools.partial(cudnn_attend, calls=calls), half)
        pairs = zip(found, slopes(attend, single), strict=True)
        off = [jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)) for a, b in pairs]
        return jnp.max(jnp.stack(off))

    return float(jax.jit(furthest)())


def _spread(shape: tuple[int, ...], seed: int) -> Array:
    """Numbers between -2 and 2 without an order to them, the same everywhere."""
    index = jnp.arange(math.prod(shape), dtype=jnp.float32).reshape(shape)
    return (2.0 * jnp.sin((index + 1.0) * (12.9898 + seed))).astype(jnp.bfloat16)
