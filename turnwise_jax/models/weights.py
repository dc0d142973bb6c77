"""Parameters <-> checkpoint tensors: the name table's row, and how a row is read and written.

A family lists one :class:`Entry` per parameter. Reading goes straight from the memory-mapped file
into the stacked array, a tensor at a time; writing goes back the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.errors import InputError
from turnwise_jax.models.params import Path, named, replaced
from turnwise_jax.models.safetensors import Checkpoint, Tensor


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter and its tensors.

    ``name`` is the tensor's name; with ``layers`` set it has a ``{}`` for the layer number and the
    parameter has a leading layer axis. ``shape`` is the tensor's shape in the file; a ``matrix`` is
    flattened to two axes and transposed, ``[out, in] -> [in, out]``.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    matrix: bool = False
    layers: int | None = None

    @property
    def names(self) -> list[str]:
        return (
            [self.name]
            if self.layers is None
            else [self.name.format(i) for i in range(self.layers)]
        )

    @property
    def param_shape(self) -> tuple[int, ...]:
        inner = self.shape
        if self.matrix:
            inner = (int(np.prod(self.shape[1:])), self.shape[0])
        return inner if self.layers is None else (self.layers, *inner)

    def to_param(self, tensor: np.ndarray) -> np.ndarray:
        """File layout -> parameter layout (one layer)."""
        return tensor.reshape(self.shape[0], -1).T if self.matrix else tensor

    def to_tensor(self, value: np.ndarray) -> np.ndarray:
        """Parameter layout (one layer) -> file layout."""
        return np.ascontiguousarray(value.T).reshape(self.shape) if self.matrix else value


def check_names(
    entries: Sequence[Entry],
    checkpoint: Checkpoint,
    spelling: Mapping[str, str],
    ignored: Callable[[str], bool],
) -> None:
    """Every tensor is there, has its shape and a float type, and nothing else is.

    ``spelling`` maps our names to the checkpoint's.

    Raises:
      InputError: naming file, tensor and both shapes.
    """
    expected: set[str] = set()
    for entry in entries:
        for name in entry.names:
            found = spelling.get(name)
            if found is None:
                raise InputError(
                    f"missing, shape {list(entry.shape)} expected", file=checkpoint.path, field=name
                )
            expected.add(found)
            checkpoint.check(found, entry.shape)
    for name in checkpoint.names():
        if name not in expected and not ignored(name):
            raise InputError(
                f"unexpected tensor of shape {list(checkpoint.shape(name))}",
                file=checkpoint.file_of(name),
                field=name,
            )


def read_params(
    entries: Sequence[Entry],
    checkpoint: Checkpoint,
    spelling: Mapping[str, str],
    abstract: nnx.State,
    param_dtype: DTypeLike,
    shardings: nnx.State | None = None,
) -> nnx.State:
    """Fill ``abstract`` from the checkpoint, cast to ``param_dtype``.

    With ``shardings`` (a pytree like ``abstract``) a process reads only its own devices' blocks.
    """
    places = {} if shardings is None else named(shardings)
    dtype = np.dtype(param_dtype)
    values = {
        entry.path: _read(entry, checkpoint, spelling, dtype, places.get(entry.path))
        for entry in entries
    }
    return replaced(abstract, values)


def _read(entry, checkpoint, spelling, dtype, sharding) -> jax.Array:
    def block(index: tuple[slice, ...]) -> np.ndarray:
        spans = [s.indices(n)[:2] for s, n in zip(index, entry.param_shape, strict=True)]
        out = np.empty([stop - start for start, stop in spans], dtype)
        inner = index if entry.layers is None else index[1:]
        first = 0 if entry.layers is None else spans[0][0]
        rows = [out] if entry.layers is None else list(out)
        for i, row in enumerate(rows):
            tensor = checkpoint.read(spelling[entry.names[first + i]])
            row[...] = entry.to_param(tensor)[inner]
        return out

    shape = entry.param_shape
    if sharding is None:
        return jnp.asarray(block((slice(None),) * len(shape)))
    return jax.make_array_from_callback(shape, sharding, block)


def tensors(entries: Sequence[Entry], params: nnx.State) -> list[Tensor]:
    """Every tensor still to be written, in table order."""
    values, out = named(params), []
    for entry in entries:
        value = values[entry.path]
        if value.shape != entry.param_shape:
            raise InputError(
                f"shape {list(value.shape)}, {list(entry.param_shape)} expected",
                field="/".join(entry.path),
            )
        for layer, name in enumerate(entry.names):
            fetch = functools.partial(_fetch, entry, value, layer)
            out.append(Tensor(name, entry.shape, np.dtype(value.dtype), fetch))
    return out


def _fetch(entry: Entry, value: jax.Array, layer: int) -> np.ndarray:
    return entry.to_tensor(np.asarray(value if entry.layers is None else value[layer]))
