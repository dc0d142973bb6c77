"""Writing files so that a killed process leaves the old one or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives the path of a new file beside ``path``, to be written and closed within the block.

    At the end of the block it is flushed to the disk and renamed to ``path``; if the block fails it
    is removed and ``path`` is as it was. Folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The number of the process: two that write one file do not write into each other's.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file, whole or not at all (:func:`replacing`)."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """:func:`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())
