"""Orbax checkpoints that hold everything a run needs to go on as if nothing had happened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from turnwise_jax.errors import InputError

_STATE, _META, _MEMORY = "state", "meta", "memory"


class Checkpointer:
    """Step-numbered checkpoints in one directory, written atomically.

    Orbax writes into a temporary directory and renames it when complete, so a killed process leaves
    either a whole checkpoint or a leftover that is never read and is removed by the next save.

    ``state`` is a pytree of arrays (parameters, optimizer state, step); ``meta`` is a JSON-able
    dict (data position, seed, judge cache location); ``memory`` holds named NumPy arrays of any
    sizes, the same in every process (a replay buffer).

    Args:
      directory: made if it is not there, unless ``read_only``.
      keep: newest checkpoints to keep.
      read_only: only look; what is unfinished there may belong to a process at work.
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 2, read_only: bool = False):
        self.directory = Path(directory).absolute()
        if read_only and not self.directory.is_dir():
            raise InputError("no checkpoints there", file=self.directory)
        self._manager = ocp.CheckpointManager(
            self.directory,
            item_handlers={
                _STATE: ocp.PyTreeCheckpointHandler(type_handler_registry=_whole_shards()),
                _META: ocp.JsonCheckpointHandler(),
                _MEMORY: ocp.StandardCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=not read_only, cleanup_tmp_directories=not read_only
            ),
        )

    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        step: int,
        state: Any,
        meta: dict[str, Any],
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Start saving; returns as soon as the arrays may change."""
        items = {_STATE: ocp.args.PyTreeSave(state), _META: ocp.args.JsonSave(meta)}
        if memory:
            items[_MEMORY] = ocp.args.StandardSave(dict(memory))
        self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Read checkpoint ``step`` into arrays of the shapes, dtypes and shardings of ``like``.

        The shardings need not be those with which it was saved.

        Raises:
          InputError: the checkpoint is damaged, or an array's place, shape or dtype differs from
            ``like``; names the first.
        """
        target = jax.tree.map(abstract, like)
        try:
            self._check(step, target)
            places = ocp.checkpoint_utils.construct_restore_args(target)
            arrays = ocp.args.PyTreeRestore(target, restore_args=places)
            args = ocp.args.Composite(**{_STATE: arrays, _META: ocp.args.JsonRestore()})
            restored = self._manager.restore(step, args=args)
        except (ValueError, KeyError, TypeError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the checkpoint of step {step} cannot be read: {error}", file=self.directory
            ) from error
        return restored[_STATE], restored[_META]

    def memory(self, step: int) -> dict[str, np.ndarray]:
        """The named arrays of checkpoint ``step``; none if it was saved without.

        Raises:
          InputError: they are damaged.
        """
        try:
            described = self._manager.item_metadata(step).get(_MEMORY)
            if described is None:
                if (self.directory / str(step) / _MEMORY).exists():
                    raise ValueError("its arrays are not described")
                return {}
            like = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in described.tree.items()}
            args = ocp.args.Composite(**{_MEMORY: ocp.args.StandardRestore(like)})
            return dict(self._manager.restore(step, args=args)[_MEMORY])
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise InputError(
                f"the memory of step {step} cannot be read: {error}", file=self.directory
            ) from error

    def _check(self, step: int, target: Any) -> None:
        """Every array of the checkpoint has its place and shape in ``target``, and the reverse."""
        saved = {
            ".".join(path): (tuple(array.shape), str(array.dtype))
            for path, array in ocp.tree.to_flat_dict(self._metadata(step).tree).items()
        }
        wanted = {
            ".".join(path): (array.shape, str(array.dtype))
            for path, array in ocp.tree.to_flat_dict(target).items()
        }
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                raise InputError(
                    f"the checkpoint of step {step} does not fit this configuration: it has "
                    f"{_describe(saved.get(name))}, {_describe(wanted.get(name))} expected",
                    file=self.directory,
                    field=name,
                )

    def _metadata(self, step: int) -> Any:
        found = self._manager.item_metadata(step)[_STATE]
        if found is None:
            raise ValueError("its arrays are not described")
        return found

    def close(self) -> None:
        """Wait until a save in progress is on disk, and end."""
        self._manager.close()


def abstract(array: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of an array, without its values."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _whole_shards() -> Any:
    """Orbax's way to write arrays, but a shard is written whole by one of the devices that have it.

    By default all of them write a part, and the slicing is compiled at the first save.
    """
    handlers = ocp.type_handlers
    return handlers.create_type_handler_registry(
        (jax.Array, handlers.ArrayHandler(use_replica_parallel=False)),
        (np.ndarray, handlers.NumpyHandler()),
    )


def _describe(array: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if array is None else f"{array[1]}{list(array[0])}"
