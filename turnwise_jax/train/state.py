"""What a training run carries from step to step, and the batch that a step consumes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.errors import InputError
from turnwise_jax.models.base import TokenRows
from turnwise_jax.models.lora import is_adapter
from turnwise_jax.models.params import Path, named
from turnwise_jax.train.optim import Optimizer


class TrainState(NamedTuple):
    """Parameters in two parts, so that the optimizer holds moments for the trained part only."""

    step: Array  # i32[], updates made or refused
    skipped: Array  # i32[], updates refused because they were not finite
    trained: nnx.State
    frozen: nnx.State
    opt_state: Any
    reference: nnx.State | None = None  # the trained part as it was at first, if the method asks

    @property
    def params(self) -> nnx.State:
        """All parameters, as the model takes them."""
        return nnx.merge_state(self.trained, self.frozen)

    @property
    def reference_params(self) -> nnx.State:
        """All parameters of the reference policy."""
        return nnx.merge_state(self.reference, self.frozen)

    @property
    def fixed(self) -> tuple[nnx.State, nnx.State | None]:
        """What never changes in a run: read from where the run began, not from its checkpoints."""
        return self.frozen, self.reference

    def kept(self) -> dict[str, Any]:
        """What a checkpoint of the run holds: all but what is ``fixed``."""
        fixed = ("frozen", "reference")
        return {name: part for name, part in self._asdict().items() if name not in fixed}


class Batch(NamedTuple):
    """One update's worth of data. Rows are trajectories: N = B x G, padded to T tokens.

    ``media`` holds each distinct frame and sound once; ``media_index_NT`` says which of its
    features stands at which token (-1: none), so the G rollouts of a prompt share them.
    """

    media: Any  # MediaInput of the model family, Media if they are encoded already, or None
    tokens_NT: Array  # i32
    positions_N3T: Array  # i32, M-RoPE
    media_index_NT: Array  # i32
    valid_NT: Array  # bool
    action_pos_NA: Array  # i32, index of the hidden state that predicts the action
    action_target_NA: Array  # i32
    action_mask_NA: Array  # bool
    turn_id_NA: Array  # i32, decision turn 0..K-1
    sampler_logp_NA: Array  # f32, as recorded while sampling; zeros for given replies
    old_logp_NA: Array  # f32, of replayed rows; of all with inner epochs or sampled ahead
    advantage_NK: Array  # f32; zeros for supervised rows
    mixture: Mixture | None = None  # stacked, if fresh and replayed rows share the batch
    context: TokenRows | None = None  # [b, C], each before N / b consecutive rows


def split_params(params: nnx.State, freeze: Sequence[str]) -> tuple[nnx.State, nnx.State]:
    """(trained, frozen) by top-level group name, as in ``policy.freeze``.

    With adapters these alone are trained, and ``freeze`` says nothing that they do not.

    Raises:
      InputError: a name that the model does not have, or nothing left to train.
    """
    groups = set(params.keys())
    for name in freeze:
        if name not in groups:
            raise InputError(
                f"the model has no parameter group {name!r}; it has {', '.join(sorted(groups))}",
                field="policy.freeze",
            )
    if set(freeze) >= groups:
        raise InputError("every parameter is frozen", field="policy.freeze")
    adapted = any(is_adapter(path) for path in named(params))
    trains = trained_names(freeze, adapted=adapted)
    return nnx.split_state(params, lambda path, _: trains(path), ...)


def towers_fixed(params: nnx.State, freeze: Sequence[str]) -> bool:
    """Whether only the text side is trained, so that frames and sounds encode to the same always.

    Raises:
      InputError: as ``split_params``.
    """
    trained, _ = split_params(params, freeze)
    return all(path[0] == "text" for path in named(trained))


def trained_names(freeze: Sequence[str], *, adapted: bool) -> Callable[[Path], bool]:
    """Which parameters are trained: all but the frozen groups, or the adapters alone."""
    frozen = frozenset(freeze)
    return is_adapter if adapted else lambda path: path[0] not in frozen


def create_state(
    params: nnx.State, optimizer: Optimizer, freeze: Sequence[str], *, reference: bool = False
) -> TrainState:
    """State before the first step; ``reference``: with a copy of what is trained."""
    trained, frozen = split_params(params, freeze)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        trained=trained,
        frozen=frozen,
        opt_state=optimizer.init(trained),
        reference=copied(trained) if reference else None,
    )


def copied(params: nnx.State) -> nnx.State:
    """The same values in arrays of their own: a state's arrays are donated one by one."""
    return jax.tree.map(jnp.copy, params)


def fingerprint(state: TrainState) -> int:
    """A sum over all bits and names of what is fixed, to tell one run's start from another's."""
    return int(_checksum(state.fixed))


@jax.jit
def _checksum(fixed: tuple[nnx.State, nnx.State | None]) -> Array:
    total = jnp.zeros((), jnp.uint32)
    for number, params in enumerate(part for part in fixed if part is not None):
        for path, leaf in named(params).items():
            bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
            factor = jnp.uint32(zlib.crc32("/".join(path).encode(), number) | 1)
            total += factor * jnp.sum(bits, dtype=jnp.uint32)
    return total


def split_rows(batch: Batch, parts: int) -> Batch:
    """Rows ``[N, ...]`` as ``[parts, N / parts, ...]``; the media are left out (None).

    Part i takes every ``parts``-th row from row i on. Rows that are split over devices in blocks
    stay where they are, and the rollouts of one prompt fall into different parts; with a context it
    is every ``parts``-th of these, with all rows that share it.
    """
    units = len(batch.tokens_NT if batch.context is None else batch.context.tokens)

    def split(x: Array) -> Array:
        taken = jnp.swapaxes(x.reshape(units // parts, parts, -1, *x.shape[1:]), 0, 1)
        return taken.reshape(parts, x.shape[0] // parts, *x.shape[1:])

    return jax.tree.map(split, batch._replace(media=None))
