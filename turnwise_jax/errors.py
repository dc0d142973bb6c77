"""The one exception for bad input: a single line that names file, record and field."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Something the user supplied cannot be used.

    The message is one line, ``file: record 'id': field 'name': what is wrong``, with the parts that
    are known. Command-line entry points print it and exit with status 2; library users catch it as
    a ``ValueError``.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | os.PathLike[str] | None = None,
        record: str | int | None = None,
        field: str | None = None,
    ):
        self.message = message
        self.file = None if file is None else os.fspath(file)
        self.record = record
        self.field = field
        where = []
        if self.file:
            where.append(self.file)
        if record is not None:
            where.append(f"record {record!r}")
        if field is not None:
            where.append(f"field {field!r}")
        super().__init__(": ".join([*where, " ".join(message.split())]))

    def __reduce__(self):
        return _rebuild, (self.message, self.file, self.record, self.field)


@contextmanager
def within(field: str) -> Iterator[None]:
    """Errors about a field of a part are told as errors about that field of the whole."""
    try:
        yield
    except InputError as error:
        name = f"{field}.{error.field}" if error.field else field
        raise InputError(error.message, file=error.file, record=error.record, field=name) from error


def _rebuild(message, file, record, field) -> InputError:
    return InputError(message, file=file, record=record, field=field)
