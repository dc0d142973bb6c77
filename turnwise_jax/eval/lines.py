"""JSON-lines files that a kill may tear: read without a torn last line, mended before appending."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from turnwise_jax.errors import InputError


def iter_lines(
    path: str | os.PathLike[str], *, missing_ok: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSON-lines file; blank lines and a torn last one not.

    Raises:
      InputError: a line other than a torn last one is not a JSON object, or the file is missing
        and ``missing_ok`` is False.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        if missing_ok:
            return
        raise InputError("no such file", file=path) from None
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path) from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it: the writer was stopped in mid-line
                return
            raise InputError("is not JSON", file=path, record=f"line {number}") from error
        if not isinstance(record, dict):
            raise InputError("is not a JSON object", file=path, record=f"line {number}")
        yield number, record


class LineWriter:
    """Appends JSON objects to a file, one whole line each.

    Opening it repairs what a killed process left: a torn last line is cut off, a whole one that
    lacks its newline is ended.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend(self.path)
        self._handle = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._handle.write(line.encode() + b"\n")

    def close(self) -> None:
        os.fsync(self._handle.fileno())
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mend(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    tail = data.rpartition(b"\n")[2]
    if not tail:
        return
    with open(path, "r+b") as handle:
        try:
            json.loads(tail)
        except ValueError:
            handle.truncate(len(data) - len(tail))
        else:
            handle.seek(0, os.SEEK_END)
            handle.write(b"\n")
