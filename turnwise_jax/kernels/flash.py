"""``attend`` on TPUs, by the splash attention that ships with jax: no scores in memory.

Splash attention takes one run of keys under a mask that it can compute. So the runs are laid end to
end, a shared one once for each of its rows (keys of one layer, a small part of what the scores
would take), and the mask is that of a causal query behind all earlier keys. Keys that may not be
seen get a segment of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from turnwise_jax.kernels.attention import Run

LANES = 128
BLOCKS = (512, 256, 128)  # queries or keys of one tile, the largest that wastes little


def fits(query: Array, runs: Sequence[Run]) -> bool:
    """Whether such queries and runs can be attended in this way, and gain by it.

    A query's own keys come last, heads fill the lanes, and there are enough queries for a tile.
    """
    ordered = not any(run.causal for run in runs[:-1])
    return ordered and query.shape[1] >= LANES and query.shape[-1] % LANES == 0


def flash_attend(query: Array, runs: Sequence[Run], *, interpret: bool = False) -> Array:
    """What ``attend`` computes; arguments and result are the same.

    Args:
      interpret: run the kernel without a TPU, step by step.

    Raises:
      ValueError: runs that do not fit (see ``fits``).
    """
    # Only TPU programs need it, and it takes a second to import.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    if not fits(query, runs):
        raise ValueError(f"queries {query.shape} and their runs do not fit the kernel")
    rows, length, heads, group, width = query.shape
    key, value, valid = (
        jnp.concatenate([_per_row(run[part], rows) for run in runs], axis=1 if part == 2 else 2)
        for part in range(3)
    )
    before = valid.shape[1] - (length if runs[-1].causal else 0)
    tile_q, tile_k = _tile(length), _tile(valid.shape[1])
    query = jnp.moveaxis(query, 1, 3).reshape(rows, heads * group, length, width)
    query = _padded(query * jnp.asarray(width**-0.5, query.dtype), 2, tile_q)
    key, value, valid = (
        _padded(key, 2, tile_k),
        _padded(value, 2, tile_k),
        _padded(valid, 1, tile_k),
    )
    shape = (query.shape[2], key.shape[2])
    mask = splash.CausalMask(shape, offset=before) if runs[-1].causal else splash.FullMask(shape)
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask] * (heads * group)),
        block_sizes=splash.BlockSizes(
            block_q=tile_q,
            block_kv=tile_k,
            block_q_dkv=tile_q,
            block_kv_dkv=tile_k,
            block_kv_dkv_compute=tile_k,
            block_q_dq=tile_q,
            block_kv_dq=tile_k,
        ),
        interpret=interpret,
    )
    segments = splash.SegmentIds(
        q=jnp.zeros((rows, shape[0]), jnp.int32), kv=jnp.where(valid, 0, 1).astype(jnp.int32)
    )
    mixed = jax.vmap(kernel)(query, key, value, segment_ids=segments)
    mixed = mixed.reshape(rows, heads, group, shape[0], width)[:, :, :, :length]
    return jnp.moveaxis(mixed, 3, 1).astype(query.dtype)


def _per_row(x: Array, rows: int) -> Array:
    """``x [b, ...]`` with an entry for each of the rows, which share them in order."""
    return x if x.shape[0] == rows else jnp.repeat(x, rows // x.shape[0], axis=0)


def _tile(length: int) -> int:
    """The largest tile whose padding is at most a tenth of the length; else the smallest."""
    return next((tile for tile in BLOCKS if -length % tile <= length // 10), BLOCKS[-1])


def _padded(x: Array, axis: int, multiple: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths)
