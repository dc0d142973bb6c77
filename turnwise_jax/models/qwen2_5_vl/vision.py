"""Vision tower of Qwen2.5-VL: windowed and full attention over the patches of each slice.

Qwen2.5-Omni has the same tower, with queries, keys and values projected one by one; ``config`` is
either family's.

The patches of a slice lie in windows, ``[S slices, NW windows, P slots]``, so windowed attention is
plain batched attention over P slots and full attention is over ``NW * P`` slots of the same array.
Windows at the right and lower edge, and slices smaller than the batch's largest, leave slots
unused: these are masked. Attention never crosses slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from turnwise_jax.errors import InputError
from turnwise_jax.kernels.attention import Run
from turnwise_jax.models.attention import plain_values
from turnwise_jax.models.layers import Build, Linear, RMSNorm, SwiGLU, scan_layers
from turnwise_jax.models.media import MediaInput
from turnwise_jax.models.patches import Slice, check_slices, normalise, refuse_sound, slice_count
from turnwise_jax.models.qwen2_5_vl.config import VisionConfig
from turnwise_jax.models.rope import grid_table, rotate

NORM_EPS = 1e-6


class Slots(NamedTuple):
    """Static room per slice: windows, patch slots of one window, merged tokens."""

    windows: int
    patches: int
    tokens: int


class VisionInput(NamedTuple):
    """Slices of a batch laid out for the vision tower.

    ``patches``: uint8 ``[S, NW, P, channels * frames * height * width]``, not normalised.
    ``valid``: bool ``[S, NW, P]``. ``hw``: int32 ``[S, NW, P, 2]``, row and column of the patch.
    ``tokens``: int32 ``[S, M]``, where merged token m (raster order) lies among the slice's
    ``NW * P / merge**2`` merged slots.
    """

    patches: np.ndarray | jax.Array
    valid: np.ndarray | jax.Array
    hw: np.ndarray | jax.Array
    tokens: np.ndarray | jax.Array


def slots_for(grids: Sequence[tuple[int, int]], config: Any) -> Slots:
    """The least room that holds a slice of any of ``grids`` (patches high, wide)."""
    sizes = [_window_sizes(h, w, config.vision) for h, w in grids]
    return Slots(
        windows=max((len(s) for s in sizes), default=1),
        patches=max((max(s) for s in sizes), default=config.merge**2),
        tokens=max((h * w for h, w in grids), default=config.merge**2) // config.merge**2,
    )


def vision_input(
    slices: Sequence[Slice],
    config: Any,
    *,
    slots: Slots | None = None,
    num_slices: int | None = None,
) -> VisionInput:
    """Lay out slices ``(uint8 [h * w, patch values], (h, w))`` for the tower (NumPy, on the host).

    Args:
      slices: patches in merge-grouped raster order, and the grid in patches.
      config: the model.
      slots: room per slice; by default the least that holds these slices. Fixed room keeps shapes
        static: see :func:`slots_for`.
      num_slices: slices in the result (at least one); the ones past ``len(slices)`` are empty.

    Raises:
      InputError: a grid that is not a whole number of merged tokens, or too large for ``slots``.
    """
    check_slices(slices, config)
    grids = [grid for _, grid in slices]
    room = slots or slots_for(grids, config)
    count = slice_count(slices, num_slices)
    shape = (count, room.windows, room.patches)
    patches = np.zeros((*shape, config.vision.patch_dim), np.uint8)
    valid = np.zeros(shape, bool)
    hw = np.zeros((*shape, 2), np.int32)
    tokens = np.zeros((count, room.tokens), np.int32)
    layouts = {grid: _layout(*grid, config.vision, room) for grid in set(grids)}
    for s, (values, grid) in enumerate(slices):
        layout = layouts[grid]
        at = (s, layout.window, layout.slot)
        patches[at] = values[layout.patch]
        valid[at] = True
        hw[at] = layout.hw
        tokens[s, : len(layout.place)] = layout.place
    return VisionInput(patches, valid, hw, tokens)


def media_input(
    slices: Sequence[Slice],
    sounds: Sequence[np.ndarray],
    config: Any,
    *,
    slots: Slots | None = None,
    num_slices: int | None = None,
    num_sounds: int = 0,
) -> MediaInput:
    """:func:`vision_input` as the family's whole input.

    Raises:
      InputError: sounds, which this family cannot hear; otherwise as :func:`vision_input`.
    """
    refuse_sound(config, sounds, num_sounds)
    if num_slices == 0:
        return MediaInput()
    return MediaInput(vision_input(slices, config, slots=slots, num_slices=num_slices))


def _window_sizes(h: int, w: int, config: VisionConfig) -> list[int]:
    unit = config.window * config.spatial_merge_size
    rows = [min(unit, h - top) for top in range(0, h, unit)]
    columns = [min(unit, w - left) for left in range(0, w, unit)]
    return [a * b for a in rows for b in columns]


class _Layout(NamedTuple):
    """Where the n patches of a slice go, window by window, and its merged tokens."""

    window: np.ndarray  # [n]
    slot: np.ndarray  # [n] within the window
    patch: np.ndarray  # [n] index of the patch in the slice as given
    hw: np.ndarray  # [n, 2] its row and column
    place: np.ndarray  # [n / merge**2] merged slot of each merged token in raster order


def _layout(h: int, w: int, config: VisionConfig, room: Slots) -> _Layout:
    merge, size = config.spatial_merge_size, config.window
    unit = merge * merge
    sizes = _window_sizes(h, w, config)
    tokens = h * w // unit
    if len(sizes) > room.windows or max(sizes) > room.patches or tokens > room.tokens:
        raise InputError(f"a {h} x {w} patch grid does not fit {room}")
    row, column = np.divmod(np.arange(tokens), w // merge)
    window = (row // size) * -(-(w // merge) // size) + column // size
    order = np.argsort(window, kind="stable")
    rank = np.arange(tokens) - np.searchsorted(window[order], window[order])
    place = np.empty(tokens, np.int64)
    place[order] = window[order] * (room.patches // unit) + rank
    inner = np.arange(unit)
    patch = (order[:, None] * unit + inner[None]).reshape(-1)
    return _Layout(
        window=np.repeat(window[order], unit),
        slot=(rank[:, None] * unit + inner[None]).reshape(-1),
        patch=patch,
        hw=np.stack(
            [
                np.repeat(row, unit)[patch] * merge + patch % unit // merge,
                np.repeat(column, unit)[patch] * merge + patch % merge,
            ],
            axis=-1,
        ),
        place=place,
    )


class Block(nnx.Module):
    """``x + proj(attention(norm(x)))``, then ``x + mlp(norm(x))``.

    ``fused``: one projection to queries, keys and values, otherwise one for each.
    """

    def __init__(self, build: Build, config: VisionConfig, *, fused: bool):
        width = config.hidden_size
        gain = (2 * config.depth) ** -0.5
        self.config = config
        self.norm1 = RMSNorm(build, width, NORM_EPS)
        self.fused = fused
        if fused:
            self.qkv = Linear(build, width, 3 * width, bias=True)
        else:
            self.q, self.k, self.v = (Linear(build, width, width, bias=True) for _ in range(3))
        self.proj = Linear(build, width, width, bias=True, gain=gain)
        self.norm2 = RMSNorm(build, width, NORM_EPS)
        self.mlp = SwiGLU(build, width, config.intermediate_size, bias=True, gain=gain)

    def __call__(
        self, x: jax.Array, table: tuple[jax.Array, jax.Array], valid: jax.Array, full: jax.Array
    ) -> jax.Array:
        """``[S, NW, P, C]`` -> the same; ``full`` (bool scalar) attends across windows."""
        query, key, value = self._project(self.norm1(x))
        heads = (rotate(query, table), rotate(key, table), value)
        if x.shape[1] == 1:
            mixed = _attend_slots(*heads, valid, windowed=False)
        else:
            mixed = jax.lax.cond(
                full,
                lambda: _attend_slots(*heads, valid, windowed=False),
                lambda: _attend_slots(*heads, valid, windowed=True),
            )
        x = x + self.proj(mixed.reshape(x.shape))
        return x + self.mlp(self.norm2(x))

    def _project(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Queries, keys and values ``[S, NW, P, H, C / H]``."""
        heads = (*x.shape[:3], self.config.num_heads, self.config.head_dim)
        if self.fused:
            parts = jnp.split(self.qkv(x), 3, axis=-1)
        else:
            parts = [part(x) for part in (self.q, self.k, self.v)]
        return tuple(part.reshape(heads) for part in parts)


def _attend_slots(
    query: jax.Array, key: jax.Array, value: jax.Array, valid: jax.Array, *, windowed: bool
) -> jax.Array:
    """Attention over each window's slots, or each slice's: ``[S, NW, P, H, C]``."""
    slices, windows, slots, heads, width = query.shape
    batch = slices * windows if windowed else slices
    query, key, value = (x.reshape(batch, -1, heads, width) for x in (query, key, value))
    runs = [Run(jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2), valid.reshape(batch, -1))]
    return plain_values(query[:, :, :, None], runs).reshape(slices, windows, slots, heads, width)


class Merger(nnx.Module):
    """Joins ``merge x merge`` neighbouring patches into one vector of the decoder's width."""

    def __init__(self, build: Build, config: VisionConfig):
        joined = config.hidden_size * config.spatial_merge_size**2
        self.norm = RMSNorm(build, config.hidden_size, NORM_EPS)
        self.fc1 = Linear(build, joined, joined, bias=True)
        self.fc2 = Linear(build, joined, config.out_hidden_size, bias=True)
        self.joined = joined

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[S, NW, P, C]`` -> ``[S, NW * P / merge**2, D]``."""
        x = self.norm(x).reshape(x.shape[0], -1, self.joined)
        return self.fc2(jax.nn.gelu(self.fc1(x), approximate=False))


class Vision(nnx.Module):
    """Patches of the slices -> features of the merged tokens."""

    def __init__(self, build: Build, config: Any, *, remat: str, fused: bool = True):
        vision = config.vision
        stacked = Build(build.rngs, build.dtype, build.param_dtype, (vision.depth,))
        self.config = config
        self.patch = Linear(build, vision.patch_dim, vision.hidden_size)
        self.blocks = Block(stacked, vision, fused=fused)
        self.merger = Merger(build, vision)
        self.remat = remat

    def __call__(
        self, vision: VisionInput, *, every_layer: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Features ``[S * M, D]`` in merged raster order, and, if asked, each block's input."""
        config = self.config.vision
        x = self.patch(normalise(vision.patches, self.config, self.patch.dtype))
        table = grid_table(vision.hw, config.head_dim)
        full = jnp.asarray(np.isin(np.arange(config.depth), config.fullatt_block_indexes))

        def body(block, x, full):
            return block(x, table, vision.valid, full), x if every_layer else None

        x, inputs = scan_layers(self.blocks, body, x, full, remat=self.remat)
        merged = jnp.take_along_axis(self.merger(x), vision.tokens[..., None], axis=1)
        return merged.reshape(-1, merged.shape[-1]), inputs
