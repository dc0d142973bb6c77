"""One mesh of devices, and where a run's parameters, moments and batches live on it.

Parameters and their moments follow the rules of ``models/sharding.py``; rows of a batch are split
over ``data`` and ``fsdp``. Rollouts run on the same mesh with the same parameters; their rows are
not split, every device samples all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.models.sharding import BATCH, param_shardings
from turnwise_jax.train.optim import Optimizer
from turnwise_jax.train.state import Batch, TrainState, split_params

AXES = ("data", "fsdp", "tensor")


def make_mesh(config: ConfigDict) -> Mesh:
    """The mesh of ``config.mesh``, over the first devices if there are more.

    Raises:
      InputError: more devices asked for than there are; fewer, on several hosts.
    """
    sizes = tuple(config[axis] for axis in AXES)
    wanted, there = math.prod(sizes), jax.device_count()
    shape = " x ".join(map(str, sizes))
    if wanted > there:
        raise InputError(f"{shape} needs {wanted} devices, there are {there}", field="mesh")
    if jax.process_count() > 1 and wanted < there:
        raise InputError(
            f"{shape} leaves devices of some host out: there are {there}", field="mesh"
        )
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(sizes, AXES, axis_types=kinds, devices=jax.devices()[:wanted])


class Layout(NamedTuple):
    """Shardings on one mesh. ``rows``: of what has one entry per row; ``whole``: of all else."""

    mesh: Mesh
    rows: NamedSharding
    whole: NamedSharding

    @classmethod
    def of(cls, mesh: Mesh) -> Layout:
        return cls(mesh, NamedSharding(mesh, BATCH), NamedSharding(mesh, PartitionSpec()))

    @property
    def row_parts(self) -> int:
        """Parts that a batch's rows are split into."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def place(self, batch: Batch) -> Batch:
        """The batch on the devices. Frames go everywhere; the forward pass splits their work."""
        return jax.device_put(batch, self._of(batch))

    def shapes(self, batch: Batch) -> Batch:
        """What ``place`` would give, without values."""

        def shape(array: np.ndarray, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

        return jax.tree.map(shape, batch, self._of(batch))

    def _of(self, batch: Batch) -> Batch:
        rows = jax.tree.map(lambda _: self.rows, batch._replace(media=None))
        return rows._replace(media=jax.tree.map(lambda _: self.whole, batch.media))

    def create_state(
        self, params: nnx.State, optimizer: Optimizer, freeze: Sequence[str], config: Any
    ) -> TrainState:
        """State before the first step, every array created where it belongs.

        Args:
          config: the model's.

        Raises:
          InputError: a mesh that the model cannot be split over, or ``freeze`` as ``split_params``.
        """
        places = param_shardings(params, self.mesh, config)
        trained, frozen = split_params(jax.device_put(params, places), freeze)
        moments = optax.tree.map_params(
            optimizer,
            lambda _, place: place,
            jax.eval_shape(optimizer.init, trained),
            split_params(places, freeze)[0],
            transform_non_params=lambda _: self.whole,
        )
        return TrainState(
            step=jax.device_put(np.int32(0), self.whole),
            skipped=jax.device_put(np.int32(0), self.whole),
            trained=trained,
            frozen=frozen,
            opt_state=jax.jit(optimizer.init, out_shardings=moments)(trained),
        )
