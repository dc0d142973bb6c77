"""Prepared frames and sounds on disk, within a bounded number of bytes.

Decoding and resizing a dialogue's media costs far more than reading back what came of it. An entry
holds what one file gives for one list of times: resized uint8 frames, not yet cut into patches (a
quarter of the float patches, half of the uint8 ones where a patch holds an image twice), or float32
log-mel sounds. Its name is a digest of all that it depends on, so that nothing is ever out of date:
path, size and modification time of the file, times, preprocessing, library versions.

Any number of threads and processes may share a directory. Entries appear whole or not at all, those
used longest ago go first, and one that is damaged is removed and decoded again. A disk that cannot
be written costs time, never a run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
import PIL

import turnwise_jax
from turnwise_jax.data.video import identity
from turnwise_jax.errors import InputError

FORMAT = 1  # raise it when the same media come to give other frames or sounds
MADE_WITH = {
    "format": FORMAT,
    "turnwise": turnwise_jax.__version__,
    "av": [av.__version__, *(f"{k} {v}" for k, v in sorted(av.library_versions.items()))],
    "pillow": PIL.__version__,
    "numpy": np.__version__,
    "scipy": version("scipy"),
}
ENTRY, PARTIAL, SIZE = ".media", ".partial", "size"
_HEAD = struct.Struct("<8sII")  # mark, CRC-32 of all that follows, bytes of the JSON description
_MARK = b"turnwise"
_SPARE = 32  # this part of the room is freed beside what is needed, so that not every write scans

Arrays = list[np.ndarray]


class FrameCache:
    """Arrays by the media file they were made of and the settings they were made with.

    Args:
      directory: made if missing; other files in it are left alone.
      room: bytes of all entries together.

    Attributes:
      hits, misses: how often an entry was there, and how often it had to be made.

    Raises:
      InputError: the directory cannot be made.
    """

    def __init__(self, directory: str | os.PathLike[str], room: int):
        self.directory, self.room = Path(directory), room
        self.hits = self.misses = 0
        self._counting = threading.Lock()
        self._measured = self._warned = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot be made: {error.strerror}", file=directory, field="data.cache_dir"
            ) from error

    def arrays(self, path: str, settings: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """What ``make`` gives, from disk if it has been made before.

        Args:
          path: the media file; what is wrong with it is for ``make`` to say.
          settings: JSON-able, all that the arrays depend on beside the file.
          make: decodes; its errors pass through and are not remembered.
        """
        key = _key(path, settings)
        found = None if key is None else self._read(key)
        with self._counting:
            self.hits += found is not None
            self.misses += found is None
        if found is not None:
            return found
        made = make()
        if key is not None and key == _key(path, settings):  # not replaced while it was read
            self._write(key, made)
        return made

    def _place(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.directory / name[:2] / f"{name}{ENTRY}"

    def _read(self, key: str) -> Arrays | None:
        """The arrays of an entry, which counts as used now; None if there is none that is whole."""
        place = self._place(key)
        try:
            data = place.read_bytes()
        except OSError:
            return None
        arrays = _unpacked(data, key)
        with suppress(OSError):
            if arrays is None:
                place.unlink()
            else:
                _touch(place)
        return arrays

    def _write(self, key: str, arrays: Arrays) -> None:
        """One process writes at a time: what is there is counted, and never exceeds the room."""
        parts = _packed(key, arrays)
        size = sum(len(part) for part in parts)
        if size > self.room:
            return
        place = self._place(key)
        partial = place.with_suffix(PARTIAL)
        try:
            with self._counted() as count:
                if place.exists():
                    return
                self._make_room(count, size)
                place.parent.mkdir(exist_ok=True)
                with open(partial, "wb") as handle:
                    handle.writelines(parts)
                _touch(partial)
                os.replace(partial, place)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            self._warn(error)

    @contextmanager
    def _counted(self) -> Iterator[IO[str]]:
        """The file that holds the bytes of all entries, locked."""
        with open(self.directory / SIZE, "a+", encoding="ascii") as handle:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle

    def _make_room(self, count: IO[str], size: int) -> None:
        """Counts ``size`` more bytes before they are written, so that a crash can only overcount.

        What is really there is looked at by every process once, and when it seems too much.
        """
        total = _number(count)
        if not self._measured or total is None or total + size > self.room:
            total = self._freed(size)
            self._measured = True
        count.seek(0)
        count.truncate()
        count.write(str(total + size))
        count.flush()

    def _freed(self, size: int) -> int:
        """Bytes of the entries, once the oldest are gone if there is no room for ``size`` more."""
        found = []
        for file in self.directory.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(OSError):
                if file.suffix == PARTIAL:  # of a process that died in the middle of it
                    file.unlink()
                elif file.suffix == ENTRY:
                    status = file.stat()
                    found.append((status.st_mtime_ns, status.st_size, file))
        total = sum(own for _, own, _ in found)
        if total + size > self.room:
            aim = self.room - size - self.room // _SPARE
            for _, own, file in sorted(found):
                if total <= aim:
                    break
                file.unlink(missing_ok=True)
                total -= own
        return total

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            print(
                f"{self.directory}: frames are not kept there: {error.strerror or error}",
                file=sys.stderr,
                flush=True,
            )


def open_cache(directory: str, gigabytes: float) -> FrameCache | None:
    """The cache of ``data.cache_dir`` and ``data.cache_gb`` (10^9 bytes); None without a directory.

    Raises:
      InputError: no room, or a directory that cannot be made.
    """
    if not directory:
        return None
    if not (math.isfinite(gigabytes) and gigabytes > 0):
        raise InputError(f"must be above 0, got {gigabytes!r}", field="data.cache_gb")
    return FrameCache(directory, int(gigabytes * 1e9))


def _key(path: str, settings: Mapping[str, Any]) -> str | None:
    """All that an entry depends on, as text; None if the file cannot be used."""
    try:
        modified, size = identity(path)
    except InputError:
        return None
    file = [os.path.abspath(path), size, modified]
    return json.dumps({"file": file, **settings, "made_with": MADE_WITH}, sort_keys=True)


def _packed(key: str, arrays: Sequence[np.ndarray]) -> list[bytes | memoryview]:
    """The parts of an entry: head, description, values."""
    described = [[array.dtype.str, array.shape] for array in arrays]
    text = json.dumps({"key": key, "arrays": described}).encode()
    values = [memoryview(np.ascontiguousarray(array)).cast("B") for array in arrays if array.size]
    check = zlib.crc32(text)
    for part in values:
        check = zlib.crc32(part, check)
    return [_HEAD.pack(_MARK, check, len(text)), text, *values]


def _unpacked(data: bytes, key: str) -> Arrays | None:
    """The arrays of an entry, bytes read-only; None if it is not whole or of another key."""
    if len(data) < _HEAD.size:
        return None
    mark, check, length = _HEAD.unpack_from(data)
    if mark != _MARK or zlib.crc32(memoryview(data)[_HEAD.size :]) != check:
        return None
    start = _HEAD.size + length
    description = json.loads(data[_HEAD.size : start])
    if description["key"] != key:
        return None
    arrays = []
    for kind, shape in description["arrays"]:
        count = math.prod(shape)
        values = np.frombuffer(data, kind, count, start) if count else np.empty(0, kind)
        start += values.nbytes
        if values.itemsize > 1:  # numbers where the processor likes them
            values = values.copy()
        arrays.append(values.reshape(shape))
    return arrays


def _number(handle: IO[str]) -> int | None:
    handle.seek(0)
    text = handle.read(32)
    return int(text) if text.isascii() and text.isdigit() else None


def _touch(place: Path) -> None:
    """Used now, to the nanosecond: the clock that files get by themselves ticks in milliseconds."""
    now = time.time_ns()
    os.utime(place, ns=(now, now))
