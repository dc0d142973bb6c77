"""Meshes, and where a batch lives on one: rows split over ``data`` and ``fsdp``, all else whole.

Each process holds its own rows as NumPy arrays. Together, in the order of the mesh, they are the
rows of the global arrays that compiled functions take and give. With one process that is all of
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import Media
from turnwise_jax.models.sharding import BATCH, CACHE, ROWS, param_shardings

AXES = (*ROWS, "tensor")


def make_mesh(sizes: Mapping[str, int]) -> Mesh:
    """The mesh of a config's ``mesh`` section, over the first devices if there are more.

    Raises:
      InputError: an axis below 1, more devices asked for than there are; on several hosts, fewer,
        or a ``tensor`` axis that leaves a host.
    """
    for axis in AXES:
        if sizes[axis] < 1:
            raise InputError(f"must be at least 1, is {sizes[axis]}", field=f"mesh.{axis}")
    counts = tuple(sizes[axis] for axis in AXES)
    wanted, there = math.prod(counts), jax.device_count()
    shape = " x ".join(map(str, counts))
    if wanted > there:
        raise InputError(f"{shape} needs {wanted} devices, there are {there}", field="mesh")
    kinds = (AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(counts, AXES, axis_types=kinds, devices=jax.devices()[:wanted])
    if jax.process_count() == 1:
        return mesh
    if wanted < there:
        raise InputError(
            f"{shape} leaves devices of some host out: there are {there}", field="mesh"
        )
    own = jax.local_device_count()
    if own % sizes["tensor"]:
        raise InputError(
            f"{sizes['tensor']} parts do not stay on one host of {own} devices",
            field="mesh.tensor",
        )
    return Mesh(by_host(mesh.devices), AXES, axis_types=kinds)


def by_host(devices: np.ndarray) -> np.ndarray:
    """Devices in an order that keeps each host's together, in the order given if that one does."""
    flat = list(devices.flat)
    runs = [process for process, _ in groupby(device.process_index for device in flat)]
    if runs != sorted(set(runs)):
        flat.sort(key=lambda device: device.process_index)  # stable: a host's own order stays
    return np.asarray(flat, object).reshape(devices.shape)


@dataclass(frozen=True)
class Placement:
    """Shardings on one mesh, and arrays in and out of them.

    Attributes:
      mesh: with the axes ``data``, ``fsdp`` and ``tensor``.
      processes: how many fill the mesh together.
    """

    mesh: Mesh
    processes: int = 1

    @classmethod
    def on_one_device(cls) -> Placement:
        """Everything on the first device of this process."""
        kinds = (AxisType.Auto,) * len(AXES)
        devices = jax.local_devices()[:1]
        return cls(jax.make_mesh((1, 1, 1), AXES, axis_types=kinds, devices=devices))

    @cached_property
    def rows(self) -> NamedSharding:
        """Of what has one entry per row, or per slice of media."""
        return NamedSharding(self.mesh, BATCH)

    @cached_property
    def cache(self) -> NamedSharding:
        """Of keys and values, ``[layers, rows, key-value heads, slots, width]``."""
        return NamedSharding(self.mesh, CACHE)

    @cached_property
    def whole(self) -> NamedSharding:
        """Of what every device has a copy of."""
        return NamedSharding(self.mesh, PartitionSpec())

    def param_shardings(self, params: nnx.State, config: Any) -> nnx.State:
        """Where each parameter of a model with this configuration lives."""
        return param_shardings(params, self.mesh, config)

    @property
    def row_parts(self) -> int:
        """Parts that a batch's rows are split into."""
        return math.prod(self.mesh.shape[axis] for axis in ROWS)

    @property
    def own_row_parts(self) -> int:
        """Those of them that belong to this process."""
        return self.row_parts // self.processes

    def copies(self, prompts: int, splits: int = 1) -> int:
        """How often each of this process's prompts is repeated so that all parts get as many.

        Divides the group size wherever the parts share the rows, ``prompts * group_size``, evenly.

        Args:
          splits: how many times every device's part is split once more.
        """
        parts = self.own_row_parts * splits
        return parts // math.gcd(prompts, parts)

    def settled(self, params: Any) -> Any:
        """Parameters bound to the device if there is but one; on a mesh they already are.

        Whether an array is bound is part of what a compilation depends on.
        """
        return jax.device_put(params, self.whole) if self.mesh.size == 1 else params

    def split(self, tree: Any) -> Any:
        """This process's rows ``[n, ...]`` as global arrays of all processes' rows.

        Arrays that are split already stay as they are, and so do encoded media, which are whole on
        every device.
        """
        return jax.tree.map(self._split, tree, is_leaf=_is_encoded)

    def split_shapes(self, tree: Any) -> Any:
        """What ``split`` would give, without values."""

        def shape(array: Any) -> Any:
            if _is_encoded(array):
                return placed(array, self.whole)
            whole = (array.shape[0] * self.processes, *array.shape[1:])
            return jax.ShapeDtypeStruct(whole, array.dtype, sharding=self.rows)

        return jax.tree.map(shape, tree, is_leaf=_is_encoded)

    def _split(self, array: Any) -> Any:
        if _is_encoded(array):
            return array
        if self.rows.is_fully_addressable:
            return jax.device_put(array, self.rows)
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return array
        return jax.make_array_from_process_local_data(self.rows, np.asarray(array))

    def own(self, tree: Any) -> Any:
        """This process's rows of global arrays, as NumPy arrays; waits for them."""
        if self.rows.is_fully_addressable:
            return jax.device_get(tree)
        return jax.tree.map(_own_rows, tree)


def _is_encoded(tree: Any) -> bool:
    return isinstance(tree, Media)


def placed(tree: Any, place: NamedSharding) -> Any:
    """Shapes and dtypes of arrays that live at ``place``."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        tree,
    )


def _own_rows(array: jax.Array) -> np.ndarray:
    """Shards in the order of their rows; devices of the ``tensor`` axis hold the same ones."""
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[first]) for first in sorted(parts)])
