"""Parameters <-> checkpoint tensors: the name table's row, and how a row is read and written.

A family lists one :class:`Entry` per parameter. Reading goes from the memory-mapped file to the
devices, a tensor at a time, and into its layer of the stacked array there; writing goes back the
same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Sharding, SingleDeviceSharding

from turnwise_jax.errors import InputError
from turnwise_jax.models.lora import A, B, Lora, merged_kernel
from turnwise_jax.models.params import Path, named
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

    def block(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """Where a block of the parameter (one layer of it) lies in the tensor."""
        return index[::-1] if self.matrix else index

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
    abstract: Mapping[Path, jax.ShapeDtypeStruct],
    shardings: Mapping[Path, Sharding] | None = None,
) -> dict[Path, jax.Array]:
    """Every parameter in the dtype of ``abstract``, read one tensor at a time.

    With ``shardings`` a process reads only its own devices' blocks. The host never holds more than
    one tensor: each goes to its devices, and into its place in the stack of layers there.
    """
    reader = _Reader(checkpoint, spelling)
    default = SingleDeviceSharding(jax.devices()[0])
    return {
        entry.path: reader.read(
            entry,
            np.dtype(abstract[entry.path].dtype),
            default if shardings is None else shardings[entry.path],
        )
        for entry in entries
    }


class _Reader(NamedTuple):
    checkpoint: Checkpoint
    spelling: Mapping[str, str]

    def read(self, entry: Entry, dtype: np.dtype, sharding: Sharding) -> jax.Array:
        shape = entry.param_shape
        blocks: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            spans = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
            blocks.setdefault(spans, []).append(device)
        arrays = [
            array
            for spans, devices in blocks.items()
            for array in self._block(entry, dtype, spans, devices)
        ]
        return jax.make_array_from_single_device_arrays(shape, sharding, arrays)

    def _block(
        self,
        entry: Entry,
        dtype: np.dtype,
        spans: tuple[tuple[int, int], ...],
        devices: Sequence[jax.Device],
    ) -> list[jax.Array]:
        """One block of a parameter on each of ``devices``."""
        inner = spans if entry.layers is None else spans[1:]
        where = entry.block(tuple(slice(*span) for span in inner))
        first, last = (0, 1) if entry.layers is None else spans[0]
        lead = () if entry.layers is None else (last - first,)
        sizes = tuple(stop - start for start, stop in inner)
        out = [jnp.zeros((*lead, *sizes), dtype, device=device) for device in devices]
        for layer in range(first, last):
            name = self.spelling[entry.names[layer]]
            tensor = self.checkpoint.read(name, where, matrix=entry.matrix)
            at = layer - first if lead else None
            # Waiting keeps the next tensor from being read while this one is still in flight.
            for i, device in enumerate(devices):
                placed = jax.device_put(tensor, device)
                out[i] = jax.block_until_ready(_insert(out[i], placed, at, entry.matrix))
        return out


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def _insert(into: jax.Array, tensor: jax.Array, layer: int | None, matrix: bool) -> jax.Array:
    """``into`` with a tensor of the file as its layer, or as all of it."""
    value = (tensor.T if matrix else tensor).astype(into.dtype)
    return value if layer is None else jax.lax.dynamic_update_index_in_dim(into, value, layer, 0)


def tensors(entries: Sequence[Entry], params: nnx.State, lora: Lora | None = None) -> list[Tensor]:
    """Every tensor still to be written, in table order; adapters are merged into their kernels."""
    values, out = named(params), []
    for entry in entries:
        value = values[entry.path]
        if value.shape != entry.param_shape:
            raise InputError(
                f"shape {list(value.shape)}, {list(entry.param_shape)} expected",
                field="/".join(entry.path),
            )
        parts = [value]
        if (adapter := (*entry.path[:-1], A)) in values and entry.path[-1] == "kernel":
            parts += [values[adapter], values[*entry.path[:-1], B]]
        for layer, name in enumerate(entry.names):
            fetch = functools.partial(_fetch, entry, parts, layer, lora)
            out.append(Tensor(name, entry.shape, np.dtype(value.dtype), fetch))
    return out


def _fetch(entry: Entry, parts: Sequence[jax.Array], layer: int, lora: Lora | None) -> np.ndarray:
    """One layer of a parameter, or all of it, as a tensor of the file."""
    value, *adapter = parts if entry.layers is None else [part[layer] for part in parts]
    if adapter:
        if lora is None:
            raise InputError("has an adapter, but is saved without one", field="/".join(entry.path))
        value = merged_kernel(value, *adapter, lora.scale)
    return entry.to_tensor(_on_host(value))


def _on_host(value: jax.Array | np.ndarray) -> np.ndarray:
    """The whole value; where processes hold parts of it, all of them must ask."""
    if getattr(value, "is_fully_addressable", True):
        return np.asarray(value)
    return multihost_utils.process_allgather(value, tiled=True)
