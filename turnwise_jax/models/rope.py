"""Rotary positions: several axes in the text decoder, height and width in the vision tower."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def section_axes(sections: Sequence[int]) -> np.ndarray:
    """Position axis of each frequency, int32 ``[sum(sections)]``: 0 0 .. 1 1 .. 2 2 .."""
    return np.repeat(np.arange(len(sections), dtype=np.int32), sections)


def interleaved_axes(sections: Sequence[int]) -> np.ndarray:
    """Position axis of each frequency, int32 ``[sum(sections)]``: 0 1 2 0 1 2 .. 0 0.

    Axis a > 0 takes every ``len(sections)``-th frequency from a on, ``sections[a]`` of them; axis 0
    takes what is left.
    """
    count = len(sections)
    axes = np.zeros(sum(sections), np.int32)
    for axis, size in enumerate(sections[1:], 1):
        axes[axis : size * count : count] = axis
    return axes


def multi_axis_table(
    positions: jax.Array, axes: np.ndarray, theta: float
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines ``[B, T, C/2]`` (float32) for positions ``[B, A, T]``.

    Frequency j of C/2 is ``theta ** (-2 j / C)`` and turns with position axis ``axes[j]``.
    """
    half = len(axes)
    frequency = jnp.asarray(theta ** (-np.arange(half, dtype=np.float64) / half), jnp.float32)
    chosen = jnp.moveaxis(positions, 1, 2)[..., axes].astype(jnp.float32)
    angle = chosen * frequency[None, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def grid_table(hw: jax.Array, head_dim: int, theta: float = 10000.0) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines ``[..., C/2]`` for grid positions ``[..., 2]`` (row, column).

    The first C/4 frequencies turn with the row, the other C/4 with the column.
    """
    quarter = head_dim // 4
    frequency = jnp.asarray(theta ** (-np.arange(quarter, dtype=np.float64) / quarter), jnp.float32)
    angle = hw.astype(jnp.float32)[..., None] * frequency.reshape((1,) * hw.ndim + (-1,))
    angle = angle.reshape(*hw.shape[:-1], 2 * quarter)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the pairs ``(x[..., j], x[..., j + C/2])``; computed in float32, returned as ``x``.

    ``x`` is ``[*lead, H.., C]`` and the table ``[*lead, C/2]``: head axes stand between.
    """
    cos, sin = (
        part.reshape(*part.shape[:-1], *(1,) * (x.ndim - part.ndim), part.shape[-1])
        for part in table
    )
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
