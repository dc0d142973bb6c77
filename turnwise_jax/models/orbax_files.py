"""Parameters as an Orbax checkpoint beside ``config.json``: what a pod reads fastest.

Every process writes and reads its own part, in chunks, so that neither a slow disk nor a bucket has
to give a whole tensor to a host that needs a slice of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import jax
import orbax.checkpoint as ocp

from turnwise_jax.errors import InputError
from turnwise_jax.models.params import Path

PARAMS = "params"


def write_params(directory: FilePath, values: Mapping[Path, jax.Array]) -> None:
    """Write ``directory/params``; returns when it is complete. All processes call this."""
    with ocp.StandardCheckpointer() as writer:
        writer.save(directory.absolute() / PARAMS, {".".join(p): v for p, v in values.items()})


def read_params(
    directory: FilePath,
    shapes: Mapping[Path, jax.ShapeDtypeStruct],
    shardings: Mapping[Path, Any] | None,
) -> dict[Path, jax.Array]:
    """Every parameter in the dtype of ``shapes``; a process reads its own devices' parts.

    Raises:
      InputError: unreadable, or other parameters than ``shapes``; names the first.
    """
    file = directory.absolute() / PARAMS
    default = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {
        ".".join(path): jax.ShapeDtypeStruct(
            shape.shape, shape.dtype, sharding=shardings[path] if shardings else default
        )
        for path, shape in shapes.items()
    }
    with ocp.StandardCheckpointer() as reader:
        try:
            found = {
                name: tuple(leaf.shape)
                for name, leaf in reader.metadata(file).item_metadata.tree.items()
            }
            for name in sorted(found.keys() | wanted.keys()):
                shape = wanted[name].shape if name in wanted else None
                if found.get(name) != shape:
                    raise InputError(
                        f"shape {found.get(name)} in the checkpoint, {shape} expected",
                        file=file,
                        field=name,
                    )
            values = reader.restore(file, wanted)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot be read: {error}", file=file) from error
    return {path: values[".".join(path)] for path in shapes}
