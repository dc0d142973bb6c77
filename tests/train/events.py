"""Reads TensorBoard event files: length-prefixed records, with two checksums left unchecked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def scalars(directory: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in every file of a directory, in order."""
    found = []
    for path in sorted(directory.glob("events*")):
        for event in _events(path.read_bytes()):
            for value in event.summary.value:
                found.append((value.tag, event.step, value.simple_value))
    return found


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size
