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


# Batched over rows by name, so that a compiler that splits rows and heads over devices moves none
# of it; a plain ``at[:, rows, :, slots].set`` makes it gather the whole cache.
_ROW_SCATTER = jax.lax.ScatterDimensionNumbers(
    update_window_dims=(0, 2, 4),
    inserted_window_dims=(3,),
    scatter_dims_to_operand_dims=(3,),
    operand_batching_dims=(1,),
    scatter_indices_batching_dims=(0,),
)


def _write(cache: jax.Array, chunk: jax.Array, length: jax.Array, count: jax.Array) -> jax.Array:
    """``cache`` with ``chunk[:, b, :, :count[b]]`` at slot ``length[b]`` of each row.

    A scatter, because a slice write whose padding would run past the end is moved back by XLA, over
    older entries. Padding gets slots past the end, all different, and is dropped.
    """
    index = jnp.arange(chunk.shape[3])[None, :]
    used = index < count[:, None]
    slots = jnp.where(used, length[:, None] + index, cache.shape[3] + index)
    return jax.lax.scatter(
        cache,
        slots[..., None],
        chunk.astype(cache.dtype),
        _ROW_SCATTER,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )
