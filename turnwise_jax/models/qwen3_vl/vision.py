"""Vision tower of Qwen3-VL: full attention over the patches of each slice, features at four depths.

A slice is a row of P slots, ``[S slices, P slots]``, its patches in merge-grouped raster order, so
that ``merge**2`` neighbouring slots make one token and tokens come out in raster order. Slots past
a slice's own patches are masked. Attention never crosses slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from turnwise_jax.errors import InputError
from turnwise_jax.kernels.attention import Run
from turnwise_jax.models.attention import plain_values
from turnwise_jax.models.layers import Build, Embedding, LayerNorm, Linear, scan_layers
from turnwise_jax.models.media import MediaInput
from turnwise_jax.models.patches import Slice, check_slices, normalise, refuse_sound, slice_count
from turnwise_jax.models.qwen3_vl.config import Config, VisionConfig
from turnwise_jax.models.rope import grid_table, rotate

NORM_EPS = 1e-6


class Slots(NamedTuple):
    """Static room per slice: patches, and the merged tokens they make."""

    patches: int
    tokens: int


class VisionInput(NamedTuple):
    """Slices of a batch laid out for the vision tower.

    ``patches``: uint8 ``[S, P, channels * frames * height * width]``, not normalised. ``valid``:
    bool ``[S, P]``. ``hw``: int32 ``[S, P, 2]``, row and column of the patch. ``corners``: int32
    ``[S, P, 4]``, the learned positions around the patch, ``weights``: float32 ``[S, P, 4]``, their
    bilinear weights.
    """

    patches: np.ndarray | jax.Array
    valid: np.ndarray | jax.Array
    hw: np.ndarray | jax.Array
    corners: np.ndarray | jax.Array
    weights: np.ndarray | jax.Array


def slots_for(grids: Sequence[tuple[int, int]], config: Config) -> Slots:
    """The least room that holds a slice of any of ``grids`` (patches high, wide)."""
    unit = config.merge**2
    patches = max((h * w for h, w in grids), default=unit)
    return Slots(patches, patches // unit)


def media_input(
    slices: Sequence[Slice],
    sounds: Sequence[np.ndarray],
    config: Config,
    *,
    slots: Slots | None = None,
    num_slices: int | None = None,
    num_sounds: int = 0,
) -> MediaInput:
    """Lay out slices ``(uint8 [h * w, patch values], (h, w))`` for the tower (NumPy, on the host).

    Args:
      slices: patches in merge-grouped raster order, and the grid in patches.
      sounds: none; this family does not hear.
      config: the model.
      slots: room per slice; by default the least that holds these slices. Fixed room keeps shapes
        static: see :func:`slots_for`.
      num_slices: slices in the result (at least one by default); the ones past ``len(slices)`` are
        empty.
      num_sounds: 0.

    Raises:
      InputError: a grid that is not a whole number of merged tokens, or too large for ``slots``;
        sounds.
    """
    refuse_sound(config, sounds, num_sounds)
    check_slices(slices, config)
    count = slice_count(slices, num_slices)
    if count == 0:
        return MediaInput()
    grids = [grid for _, grid in slices]
    room = slots or slots_for(grids, config)
    out = _empty(count, room, config.vision)
    layouts = {grid: _layout(*grid, config.vision) for grid in set(grids)}
    for s, (values, grid) in enumerate(slices):
        if len(values) > room.patches:
            h, w = grid
            raise InputError(f"a {h} x {w} grid does not fit in {room.patches} patches")
        own = (s, slice(len(values)))
        out.patches[own], out.valid[own] = values, True
        out.hw[own], out.corners[own], out.weights[own] = layouts[grid]
    return MediaInput(out)


def _empty(count: int, room: Slots, config: VisionConfig) -> VisionInput:
    shape = (count, room.patches)
    return VisionInput(
        np.zeros((*shape, config.patch_dim), np.uint8),
        np.zeros(shape, bool),
        np.zeros((*shape, 2), np.int32),
        np.zeros((*shape, 4), np.int32),
        np.zeros((*shape, 4), np.float32),
    )


def _layout(h: int, w: int, config: VisionConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``hw``, ``corners`` and ``weights`` of the h * w patches, merge-grouped."""
    merge, side = config.spatial_merge_size, config.position_side
    raster = np.arange(h * w).reshape(h // merge, merge, w // merge, merge)
    row, column = np.divmod(raster.swapaxes(1, 2).reshape(-1), w)
    row_taps, row_weights = (part[row] for part in _axis_taps(h, side))
    column_taps, column_weights = (part[column] for part in _axis_taps(w, side))
    corners = row_taps[:, :, None] * side + column_taps[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :]
    return np.stack([row, column], axis=-1), corners.reshape(-1, 4), weights.reshape(-1, 4)


def _axis_taps(size: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The two learned positions around each of ``size`` evenly spread ones, and their weights.

    The first and last of both stand at the same place. float32, in the reference's order of
    operations, so that the weights equal its own bit for bit.
    """
    place = np.arange(size, dtype=np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    below = np.floor(place)
    offsets = np.arange(2, dtype=np.float32)
    distance = np.abs(place[:, None] - below[:, None] - offsets[None])
    taps = np.minimum(below[:, None] + offsets[None], side - 1).astype(np.int32)
    return taps, np.maximum(np.float32(1) - distance, np.float32(0))


class MLP(nnx.Module):
    """``fc2(gelu(fc1(x)))`` with the tanh form of gelu."""

    def __init__(self, build: Build, width: int, hidden: int, *, gain: float):
        self.fc1 = Linear(build, width, hidden, bias=True)
        self.fc2 = Linear(build, hidden, width, bias=True, gain=gain)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fc2(jax.nn.gelu(self.fc1(x), approximate=True))


class Block(nnx.Module):
    """``x + proj(attention(norm(x)))``, then ``x + mlp(norm(x))``."""

    def __init__(self, build: Build, config: VisionConfig):
        width = config.hidden_size
        gain = (2 * config.depth) ** -0.5
        self.config = config
        self.norm1 = LayerNorm(build, width, NORM_EPS)
        self.qkv = Linear(build, width, 3 * width, bias=True)
        self.proj = Linear(build, width, width, bias=True, gain=gain)
        self.norm2 = LayerNorm(build, width, NORM_EPS)
        self.mlp = MLP(build, width, config.intermediate_size, gain=gain)

    def __call__(
        self, x: jax.Array, table: tuple[jax.Array, jax.Array], valid: jax.Array
    ) -> jax.Array:
        """``[S, P, C]`` -> the same."""
        heads, width = self.config.num_heads, self.config.head_dim
        qkv = self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, heads, width)
        query, key, value = (qkv[:, :, i] for i in range(3))
        query, key = rotate(query, table), rotate(key, table)
        key, value = jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)
        mixed = plain_values(query[:, :, :, None], [Run(key, value, valid)])
        x = x + self.proj(mixed.reshape(x.shape))
        return x + self.mlp(self.norm2(x))


class Merger(nnx.Module):
    """Joins ``merge**2`` neighbouring patches into one vector of the decoder's width.

    ``joined_norm`` normalises the joined vector, otherwise each patch on its own.
    """

    def __init__(self, build: Build, config: VisionConfig, *, joined_norm: bool):
        joined = config.hidden_size * config.spatial_merge_size**2
        self.joined, self.joined_norm = joined, joined_norm
        self.norm = LayerNorm(build, joined if joined_norm else config.hidden_size, NORM_EPS)
        self.fc1 = Linear(build, joined, joined, bias=True)
        self.fc2 = Linear(build, joined, config.out_hidden_size, bias=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[S, P, C]`` -> ``[S * P / merge**2, D]``."""
        x = self.norm(x.reshape(-1, self.joined if self.joined_norm else x.shape[-1]))
        return self.fc2(jax.nn.gelu(self.fc1(x.reshape(-1, self.joined)), approximate=False))


class Encoded(NamedTuple):
    """``features`` ``[S * M, D]``, ``deep`` ``[n, S * M, D]``, ``blocks`` ``[L, S, P, C]``."""

    features: jax.Array
    deep: jax.Array
    blocks: jax.Array | None


class Vision(nnx.Module):
    """Patches of the slices -> features of the merged tokens."""

    def __init__(self, build: Build, config: Config, *, remat: str):
        vision = config.vision

        def stacked(count: int) -> Build:
            return Build(build.rngs, build.dtype, build.param_dtype, (count,))

        self.config = config
        self.patch = Linear(build, vision.patch_dim, vision.hidden_size, bias=True)
        self.positions = Embedding(
            build, vision.num_position_embeddings, vision.hidden_size, vision.initializer_range
        )
        self.blocks = Block(stacked(vision.depth), vision)
        self.merger = Merger(build, vision, joined_norm=False)
        self.deep = Merger(stacked(len(vision.deepstack_visual_indexes)), vision, joined_norm=True)
        self.remat = remat

    def __call__(self, vision: VisionInput, *, every_layer: bool = False) -> Encoded:
        """Features in merged raster order and, if asked, each block's input."""
        config = self.config.vision
        x = self.patch(normalise(vision.patches, self.config, self.patch.dtype))
        x = x + self._learned_positions(vision).astype(x.dtype)
        table = grid_table(vision.hw, config.head_dim)
        taps = np.asarray(config.deepstack_visual_indexes)
        # Every block writes its output where the next tap will find it, so the tap's own is last.
        places = jnp.asarray(np.searchsorted(taps, np.arange(config.depth)))

        def body(block, carry, place):
            x, taken = carry
            y = block(x, table, vision.valid)
            taken = jax.lax.dynamic_update_index_in_dim(taken, y, place, 0)
            return (y, taken), x if every_layer else None

        taken = jnp.zeros((len(taps) + 1, *x.shape), x.dtype)
        (x, taken), blocks = scan_layers(self.blocks, body, (x, taken), places, remat=self.remat)
        _, deep = scan_layers(
            self.deep, lambda merger, carry, y: (carry, merger(y)), None, taken[:-1]
        )
        return Encoded(self.merger(x), deep, blocks)

    def _learned_positions(self, vision: VisionInput) -> jax.Array:
        """float32 ``[S, P, C]``: the table resampled to each slice's grid."""
        table = self.positions.embedding[...].astype(jnp.float32)
        return sum(
            jnp.take(table, vision.corners[..., i], axis=0, mode="clip")
            * vision.weights[..., i, None]
            for i in range(4)
        )
