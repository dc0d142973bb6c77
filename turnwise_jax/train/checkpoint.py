"""Orbax checkpoints that hold everything a run needs to go on as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from turnwise_jax.errors import InputError

_STATE, _META = "state", "meta"


class Checkpointer:
    """Step-numbered checkpoints in one directory, written atomically.

    Orbax writes into a temporary directory and renames it when complete, so a killed process leaves
    either a whole checkpoint or a leftover that is removed at the next start, never a torn one.

    ``state`` is a pytree of arrays (parameters, optimizer state, step); ``meta`` is a JSON-able
    dict (data position, seed, judge cache location).
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 2):
        self.directory = Path(directory).absolute()
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=True, cleanup_tmp_directories=True
            ),
        )

    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Start saving; returns as soon as the arrays are copied."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                **{_STATE: ocp.args.StandardSave(state), _META: ocp.args.JsonSave(meta)}
            ),
            force=True,
        )

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Read checkpoint ``step`` into arrays of the shapes, dtypes and shardings of ``like``.

        Raises:
          InputError: the checkpoint's tree or shapes differ from ``like``.
        """
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    **{_STATE: ocp.args.StandardRestore(target), _META: ocp.args.JsonRestore()}
                ),
            )
        except (ValueError, KeyError) as error:
            raise InputError(
                f"the checkpoint of step {step} does not fit this configuration ({error})",
                file=self.directory,
            ) from error
        return restored[_STATE], restored[_META]

    def wait(self) -> None:
        """Block until a save in progress is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()
