"""The one exception for bad input: a single line that names file, record and field."""

from __future__ import annotations

import os


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


def _rebuild(message, file, record, field) -> InputError:
    return InputError(message, file=file, record=record, field=field)
