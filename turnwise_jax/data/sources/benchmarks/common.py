"""What the benchmark readers share: annotation files, media paths, answers, and the one turn."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from turnwise_jax.data.records import ClipSpec, Dialogue, Question
from turnwise_jax.data.sources.fields import Fields, writable
from turnwise_jax.data.sources.json_lines import UNREADABLE, read_rows
from turnwise_jax.data.sources.qa import THINK_SYSTEM, Media, one_turn, read_media
from turnwise_jax.data.sources.questions import user_text
from turnwise_jax.errors import InputError

FilePath = str | os.PathLike[str]
_VIDEO_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm")
_LETTER = re.compile(r"\(?([A-Za-z])\)?(?:[.:)].*)?", re.DOTALL)  # "B", "(b)", "B.", "B. a dog"
_WHOLE = (None, None)  # the span of a whole clip


def records(path: FilePath, user_turns: FilePath | None) -> Iterator[dict[str, Any]]:
    """The rows of a table: a JSON array, JSON lines (``.jsonl``) or ``.parquet``.

    What is not a mapping comes as ``{UNREADABLE: reason}``, which ``checked`` refuses.

    Raises:
      InputError: missing or unreadable file, or ``user_turns`` is given.
    """
    suffix = Path(path).suffix
    if suffix == ".jsonl":
        refuse_user_turns(user_turns)
        yield from (row for _, row in read_rows(path, lambda row: None))
    elif suffix == ".parquet":
        refuse_user_turns(user_turns)
        yield from _table(path)
    else:
        entries = document(path, user_turns)
        if not isinstance(entries, list):
            raise InputError("must hold a list of records", file=path)
        yield from map(as_record, entries)


def document(path: FilePath, user_turns: FilePath | None) -> Any:
    """The value of a JSON file.

    Raises:
      InputError: missing, not text or not JSON, or ``user_turns`` is given.
    """
    refuse_user_turns(user_turns)
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError("no such file", file=path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"not readable as JSON: {error}", file=path) from error


def mapping(path: FilePath, user_turns: FilePath | None) -> dict[str, Any]:
    """The value of a JSON file that holds one object; raises as ``document``."""
    value = document(path, user_turns)
    if not isinstance(value, dict):
        raise InputError("must hold a mapping from names to records", file=path)
    return value


def as_record(entry: Any) -> dict[str, Any]:
    """The entry if it is a mapping, else what ``checked`` refuses."""
    return entry if isinstance(entry, dict) else {UNREADABLE: "must be a mapping"}


def refuse_user_turns(user_turns: FilePath | None) -> None:
    if user_turns is not None:
        raise InputError("this format has no file of user turns", file=user_turns)


def name_of(value: Any, otherwise: str) -> str:
    """A record's name: the value of the field that holds it, if that is usable."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    named = isinstance(value, str) and value and writable(value)
    return str(value) if whole or named else otherwise


def checked(file: str, name: str, row: dict[str, Any]) -> Fields:
    """Access to the fields of a record.

    Raises:
      InputError: the row could not be read as one.
    """
    if UNREADABLE in row:
        raise InputError(row[UNREADABLE], file=file, record=name)
    return Fields(file, name)


def asked(fields: Fields, value: Any, field: str) -> str:
    """Text that may not be empty, without blanks around it."""
    text = fields.text(value, field).strip()
    if not text:
        fields.fail(field, "is empty")
    return text


def chosen_letter(fields: Fields, value: Any, field: str, options: Sequence[str]) -> str:
    """The truth of benchmarks that give the letter of the right option."""
    text = asked(fields, value, field)
    match = _LETTER.fullmatch(text)
    letter = match[1].upper() if match else ""
    if not letter or letter not in ascii_uppercase[: len(options)]:
        fields.fail(field, f"must be the letter of one of {len(options)} options, got {text!r}")
    return letter


def chosen_text(fields: Fields, value: Any, field: str, options: Sequence[str]) -> str:
    """The truth of benchmarks that give the right option's text: the letter of the first such."""
    text = asked(fields, value, field)
    if text not in options:
        fields.fail(field, f"must be the text of one of {len(options)} options, got {text!r}")
    return ascii_uppercase[options.index(text)]


def choice_question(
    text: str, letter: str, options: Sequence[str], *, category: str, sound: str = ""
) -> Question:
    """A multiple-choice question."""
    return Question(text, letter, "multiple_choice", tuple(options), category, sound)


def found(root: FilePath, candidates: Iterable[str]) -> str:
    """The first of the relative paths that exists below ``root``; the first of all if none does."""
    paths = list(candidates)
    return next((path for path in paths if os.path.exists(Path(root, path))), paths[0])


def video_file(root: FilePath, folders: Iterable[str], stem: str) -> str:
    """Where a video lies that is known by its name without suffix: see ``found``."""
    names = [f"{folder}/{stem}" for folder in folders]
    return found(root, [name + suffix for name in names for suffix in _VIDEO_SUFFIXES])


def watched(
    fields: Fields,
    path: str,
    field: str,
    *,
    root: FilePath,
    clip: ClipSpec | None,
    span: tuple[Any, Any] = _WHOLE,
) -> Media:
    """A video, or the span of it in seconds, with its own sound; ``field`` named it."""
    return read_media(
        fields,
        video=path,
        images=None,
        audio=None,
        span=span,
        root=root,
        clip=clip or ClipSpec(),
        names=(field, "images", "audio"),
    )


def pictured(
    fields: Fields,
    images: Sequence[str],
    audio: str | None,
    *,
    names: tuple[str, str],
    root: FilePath,
    clip: ClipSpec | None,
) -> Media:
    """Pictures and one sound; ``names`` of the fields that named them."""
    return read_media(
        fields,
        video=None,
        images=list(images),
        audio=audio,
        span=_WHOLE,
        root=root,
        clip=clip or ClipSpec(),
        names=("video", *names),
    )


def open_dialogue(fields: Fields, question: Question, media: Media) -> Dialogue:
    """The one turn of a benchmark question, left to the policy."""
    return one_turn(
        fields.record, question, user_text(question), media, THINK_SYSTEM, None, fields.file
    )


def _table(path: FilePath) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except FileNotFoundError as error:
        raise InputError("no such file", file=path) from error
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"not readable as parquet: {error}", file=path) from error
