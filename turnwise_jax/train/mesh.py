"""One mesh of devices, and where a run's parameters, moments and batches live on it.

Parameters and their moments follow the rules of ``models/sharding.py``; rows of a batch are split
over ``data`` and ``fsdp``. Rollouts run on the same mesh with the same parameters, their rows split
in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from turnwise_jax.rollout.placement import AXES, Placement, by_host, make_mesh, placed
from turnwise_jax.train.optim import Optimizer
from turnwise_jax.train.state import Batch, TrainState, copied, split_params

__all__ = ["AXES", "Layout", "by_host", "make_mesh"]


class Layout(Placement):
    """Where a run's batches and state live."""

    @classmethod
    def of(cls, mesh: Mesh) -> Layout:
        """On a mesh of all processes' devices."""
        return cls(mesh, jax.process_count())

    def place(self, batch: Batch) -> Batch:
        """This process's part of a batch as part of the whole one, on the devices."""
        return self.split(batch)

    def shapes(self, batch: Batch) -> Batch:
        """What ``place`` would give, without values."""
        return self.split_shapes(batch)

    def create_state(
        self,
        params: nnx.State,
        optimizer: Optimizer,
        freeze: Sequence[str],
        config: Any,
        *,
        reference: bool = False,
    ) -> TrainState:
        """State before the first step, every array created where it belongs.

        Args:
          config: the model's.
          reference: with a copy of what is trained.

        Raises:
          InputError: a mesh that the model cannot be split over, or ``freeze`` as ``split_params``.
        """
        places = self.param_shardings(params, config)
        trained, frozen = split_params(jax.device_put(params, places), freeze)
        moments = self._moments(optimizer, trained, split_params(places, freeze)[0])
        return TrainState(
            step=self._zero(),
            skipped=self._zero(),
            trained=trained,
            frozen=frozen,
            opt_state=jax.jit(optimizer.init, out_shardings=moments)(trained),
            reference=copied(trained) if reference else None,
        )

    def state_shapes(
        self,
        params: nnx.State,
        optimizer: Optimizer,
        freeze: Sequence[str],
        config: Any,
        *,
        reference: bool = False,
    ) -> TrainState:
        """What ``create_state`` would give, without values, from parameters without values."""
        places = self.param_shardings(params, config)
        trained, frozen = split_params(jax.tree.map(placed, params, places), freeze)
        moments = self._moments(optimizer, trained, split_params(places, freeze)[0])
        count = placed(jax.ShapeDtypeStruct((), np.int32), self.whole)
        opt_state = jax.tree.map(placed, jax.eval_shape(optimizer.init, trained), moments)
        kept = trained if reference else None
        return TrainState(count, count, trained, frozen, opt_state, kept)

    def _moments(self, optimizer: Optimizer, trained: nnx.State, places: nnx.State) -> Any:
        """Where the optimizer's state lives: moments as their parameters, the rest everywhere."""
        return optax.tree.map_params(
            optimizer,
            lambda _, place: place,
            jax.eval_shape(optimizer.init, trained),
            places,
            transform_non_params=lambda _: self.whole,
        )

    def _zero(self) -> jax.Array:
        return jax.make_array_from_callback((), self.whole, lambda _: np.zeros((), np.int32))
