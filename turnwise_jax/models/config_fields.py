"""Reading a model's ``config.json``: each field is checked, and named when it is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from turnwise_jax.errors import InputError


class ConfigFields:
    """The fields of one ``config.json``; every reader raises InputError with file and field."""

    def __init__(self, raw: Mapping[str, Any], file: str | os.PathLike[str] | None):
        self.raw, self.file = raw, file

    def error(self, name: str, message: str) -> InputError:
        """What to raise about one field."""
        return InputError(message, file=self.file, field=name)

    def section(self, name: str) -> Mapping[str, Any]:
        """A nested object of the file; empty if it is not there."""
        return self.subsection(self.raw, name)

    def subsection(self, section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """A nested object of a section; empty if it is not there or null."""
        value = section.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(name, "not an object")
        return value

    def integer(
        self, section: Mapping[str, Any], name: str, default: Any, *, minimum: int = 1
    ) -> int:
        """An integer; a default of None means that the field is required."""
        value = section.get(name, default)
        if value is None:
            raise self.error(name, "missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"{value!r} is not an integer >= {minimum}")
        return value

    def number(self, section: Mapping[str, Any], name: str, default: Any) -> float:
        """A positive number."""
        value = section.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.error(name, f"{value!r} is not a positive number")
        return float(value)

    def integers(
        self, section: Mapping[str, Any], name: str, default: tuple[int, ...]
    ) -> tuple[int, ...]:
        """A list of integers, as a tuple."""
        values = section.get(name, default)
        if not isinstance(values, list | tuple) or not all(type(v) is int for v in values):
            raise self.error(name, f"{values!r} is not a list of integers")
        return tuple(values)
