"""Key-value cache of the text decoder: rows of different lengths in one static shape."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class KVCache(NamedTuple):
    """Keys and values of every layer; row b holds its first ``length[b]`` of S slots.

    ``k``, ``v``: ``[L, B, N, S, C]`` (layers, rows, key-value heads, slots, head width). Slots come
    after heads, so that attention reads them without a transpose and so that the two minor axes
    fill an accelerator's tiles even with two heads. ``length``: int32 ``[B]``.
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array

    @property
    def capacity(self) -> int:
        """Slots per row, S."""
        return self.k.shape[3]

    def repeat(self, times: int) -> KVCache:
        """Each row ``times`` in a row: ``[B]`` -> ``[B * times]`` (rollouts of one prompt)."""
        return KVCache(
            jnp.repeat(self.k, times, axis=1),
            jnp.repeat(self.v, times, axis=1),
            jnp.repeat(self.length, times, axis=0),
        )

    def append(self, k: jax.Array, v: jax.Array, count: jax.Array) -> KVCache:
        """Write the first ``count[b]`` of T new entries ``[L, B, N, T, C]`` behind row b's last.

        Only those are written: what lies past them, and past the last slot, is dropped. Lengths
        stop at the capacity.
        """
        return KVCache(
            _write(self.k, k, self.length, count),
            _write(self.v, v, self.length, count),
            jnp.minimum(self.length + count, self.capacity),
        )


def empty_cache(
    layers: int, batch: int, heads: int, length: int, width: int, dtype: DTypeLike
) -> KVCache:
    """A cache without entries: zeros ``[layers, batch, heads, length, width]``."""
    shape = (layers, batch, heads, length, width)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))


def _write(cache: jax.Array, chunk: jax.Array, length: jax.Array, count: jax.Array) -> jax.Array:
    """``cache`` with ``chunk[:, b, :, :count[b]]`` at slot ``length[b]`` of each row.

    A slice write whose padding would run past the end is moved back by XLA, over older entries.
    So the window starts early enough to fit, and keeps what it already holds elsewhere.
    """
    size = min(chunk.shape[3], cache.shape[3])

    def row(cache_row, chunk_row, length, count):
        start = jnp.clip(length, 0, cache_row.shape[2] - size)
        old = jax.lax.dynamic_slice_in_dim(cache_row, start, size, axis=2)
        offset = jnp.arange(size) - (length - start)
        moved = jnp.take(chunk_row, jnp.clip(offset, 0, size - 1), axis=2)
        new = jnp.where(((offset >= 0) & (offset < count))[None, None, :, None], moved, old)
        return jax.lax.dynamic_update_slice_in_dim(cache_row, new, start, axis=2)

    rows = jax.vmap(row, in_axes=(1, 1, 0, 0), out_axes=1)
    return rows(cache, chunk.astype(cache.dtype), length, count)
