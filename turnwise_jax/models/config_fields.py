"""Reading a model's ``config.json``: each field is checked, and named when it is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from turnwise_jax.errors import InputError

Record = TypeVar("Record")


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

    def record(self, section: Mapping[str, Any], kind: type[Record], **defaults: Any) -> Record:
        """A dataclass from the section's fields of the same names.

        Whole numbers, tuples of them and positive numbers are told apart by the dataclass's own
        annotations. ``defaults`` are for fields without one.
        """
        readers: dict[str, Callable[..., Any]] = {"int": self.integer, "float": self.number}
        values = {}
        for f in fields(kind):  # type: ignore[arg-type]
            default = defaults.get(f.name, None if f.default is MISSING else f.default)
            values[f.name] = readers.get(str(f.type), self.integers)(section, f.name, default)
        return kind(**values)

    def token_ids(self, kind: type) -> dict[str, int]:
        """Every ``*_token_id`` field of a configuration class that the file has."""
        return {
            name: self.integer(self.raw, name, None, minimum=0)
            for name in token_id_names(kind)
            if name in self.raw
        }

    def tied(self) -> bool:
        """Whether head and embedding are one, said at the top or in the text section."""
        return any(
            bool(section.get("tie_word_embeddings", False))
            for section in (self.raw, self.section("text_config"))
        )


def token_id_names(kind: Any) -> list[str]:
    """Fields of a configuration class that hold token ids."""
    return [f.name for f in fields(kind) if f.name.endswith("_token_id")]


def pixel_statistics(
    config: Any, raw: Mapping[str, Any], file: str | os.PathLike[str] | None
) -> dict[str, tuple[float, ...]]:
    """``image_mean`` and ``image_std`` of a ``preprocessor_config.json``, else the config's own.

    Raises:
      InputError: not one number per channel.
    """
    stats = {}
    for name in ("image_mean", "image_std"):
        values = raw.get(name, getattr(config, name))
        if not isinstance(values, list | tuple) or len(values) != config.vision.in_channels:
            raise InputError(
                f"{values!r} is not {config.vision.in_channels} numbers", file=file, field=name
            )
        stats[name] = tuple(float(value) for value in values)
    return stats


def override(
    parts: Mapping[str, Any], own: set[str], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword overrides sorted out: those named in ``own``, and each part with its ``part_`` ones.

    Args:
      parts: dataclasses by the prefix that names their fields.
      own: names without a prefix.
      overrides: ``{"text_hidden_size": 32, "image_token_id": 7, ...}``.
    """
    out: dict[str, Any] = {}
    given: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for name, value in overrides.items():
        part, _, rest = name.partition("_")
        if name in own:
            out[name] = value
        else:
            given[part][rest] = value
    return out | {part: replace(record, **given[part]) for part, record in parts.items()}
