"""Reading and writing the safetensors format with NumPy: memory-mapped in, atomic out.

A file is an 8-byte little-endian header length, a JSON header ``{name: {dtype, shape,
data_offsets}}``, and the tensors' bytes. A checkpoint is one ``model.safetensors``, or shards with
``model.safetensors.index.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from turnwise_jax.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100 * 1024 * 1024
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Tensor(NamedTuple):
    """A tensor still to be written; ``read()`` returns its value."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class _Place(NamedTuple):
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Checkpoint:
    """The tensors of a directory; only headers are read until a tensor is asked for."""

    def __init__(self, directory: str | os.PathLike[str]):
        """Raises InputError when files are missing, truncated or contradict the index."""
        self.path = Path(directory)
        self.bytes_read = 0
        self._places: dict[str, _Place] = {}
        single, index = self.path / SINGLE, self.path / INDEX
        if single.is_file():  # before the index, as in transformers
            self._places = dict(_header(single))
        elif index.is_file():
            self._open_shards(index)
        else:
            raise InputError(f"neither {SINGLE} nor {INDEX} found", file=self.path)

    def _open_shards(self, index: Path) -> None:
        weight_map = _json_object(index, index.read_bytes()).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError("no weight_map", file=index)
        for name in sorted(set(weight_map.values())):
            shard = self.path / Path(name).name
            if not shard.is_file():
                raise InputError(f"names {name}, which is missing", file=index, field="weight_map")
            self._places.update(_header(shard))
        for tensor, name in weight_map.items():
            place = self._places.get(tensor)
            if place is None or place.file.name != Path(name).name:
                raise InputError(
                    f"not in {name}, where the index puts it", file=index, field=tensor
                )

    def names(self) -> Iterator[str]:
        """All tensor names."""
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self._places[name].shape

    def file_of(self, name: str) -> Path:
        """The file that holds one tensor."""
        return self._places[name].file

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises InputError unless the tensor has this shape and a floating-point type."""
        place = self._places[name]
        if place.shape != shape:
            raise InputError(
                f"shape {list(place.shape)} in the file, {list(shape)} expected",
                file=place.file,
                field=name,
            )
        if place.dtype not in DTYPES:
            raise InputError(
                f"type {place.dtype} is not one of {', '.join(DTYPES)}", file=place.file, field=name
            )

    def drop(self, name: str) -> None:
        """Leave one tensor out of :meth:`names`."""
        del self._places[name]

    def read(self, name: str, index: tuple[slice, ...] = (), *, matrix: bool = False) -> np.ndarray:
        """A read-only view of one tensor, or of a block of it; as two axes if it is a ``matrix``.

        Its bytes are paged in when they are used, and let go with the view. ``bytes_read`` counts
        them.
        """
        place = self._places[name]
        whole = np.memmap(place.file, DTYPES[place.dtype], "r", place.offset, place.shape or (1,))
        view = whole.reshape((place.shape[0], -1) if matrix else place.shape)[index]
        self.bytes_read += view.nbytes
        return view


def _json_object(file: Path, data: bytes) -> dict:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InputError(f"not valid JSON ({error})", file=file) from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", file=file)
    return value


def _header(file: Path) -> Iterator[tuple[str, _Place]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise InputError("not a safetensors file, or cut short in its header", file=file)
        header = _json_object(file, stream.read(length))
    header.pop("__metadata__", None)
    start = 8 + length
    for name, entry in header.items():
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
            begin, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise InputError("malformed header entry", file=file, field=name) from None
        if not 0 <= begin <= end or start + end > size:
            raise InputError(
                f"cut short: {start + end} bytes needed, {size} found", file=file, field=name
            )
        if dtype in DTYPES and end - begin != int(np.prod(shape)) * DTYPES[dtype].itemsize:
            raise InputError(
                f"{end - begin} bytes do not make {dtype} {list(shape)}", file=file, field=name
            )
        yield name, _Place(file, dtype, shape, start + begin)


def write_checkpoint(
    directory: str | os.PathLike[str], tensors: Iterable[Tensor], *, max_shard_bytes: int
) -> list[Path]:
    """Write tensors in the given order, starting a new shard where one would pass the limit.

    One shard becomes ``model.safetensors``; several get numbered names and an index. The same
    tensors always give the same bytes. Values are fetched one at a time.

    Returns:
      The files written.
    """
    directory = Path(directory)
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(t.nbytes for t in shards[-1]) + tensor.nbytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        return [_write_file(directory / SINGLE, shards[0])]
    files, weight_map = [], {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        files.append(_write_file(directory / name, shard))
        weight_map.update({tensor.name: name for tensor in shard})
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return [*files, directory / INDEX]


def _write_file(file: Path, tensors: list[Tensor]) -> Path:
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    with file.open("wb") as stream:
        stream.write(len(data).to_bytes(8, "little"))
        stream.write(data)
        for tensor in tensors:
            stream.write(np.ascontiguousarray(tensor.read()).tobytes())
        stream.flush()
        os.fsync(stream.fileno())
    return file
