"""JSON lines: one record a line, written as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from turnwise_jax.data.sources.fields import writable
from turnwise_jax.errors import InputError
from turnwise_jax.files import replacing

UNREADABLE = "unreadable"  # key of the reason why a line holds no record


def read_rows(
    path: str | os.PathLike[str], name: Callable[[dict[str, Any]], Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(record name, raw record) of each line that is not blank.

    A line that is not a JSON object comes as ``{UNREADABLE: reason}``.

    Args:
      name: what a record calls itself; where that is no text with something in it and no whole
        number, the record is called ``line N``.

    Raises:
      InputError: the file is missing or not text.
    """
    try:
        with open(path, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    row = _json_object(line)
                    given = name(row)
                    whole = isinstance(given, int) and not isinstance(given, bool)
                    named = isinstance(given, str) and given and writable(given)
                    yield str(given) if whole or named else f"line {number}", row
    except FileNotFoundError as error:
        raise InputError("no such file", file=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"not readable as text: {error}", file=path) from error


def write_rows(rows: Iterable[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes one line for each record; the file is replaced in one go."""
    with replacing(path) as partial, open(partial, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def _json_object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {UNREADABLE: f"not JSON: {error}"}
    return row if isinstance(row, dict) else {UNREADABLE: "not a JSON object"}
