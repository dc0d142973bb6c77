"""A whole set, record by record: nothing stops at the first bad one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from turnwise_jax.data import DATASETS
from turnwise_jax.data.checking.dialogues import dialogue_problems
from turnwise_jax.data.checking.media import MediaFiles, uses
from turnwise_jax.data.checking.problems import Problem
from turnwise_jax.data.checking.tally import Tally
from turnwise_jax.data.load import checked_clip, record_files
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.progress import ProgressBar

FilePath = str | os.PathLike[str]


class Checked(NamedTuple):
    """What was found in a set: in the ``files`` of ``path``."""

    source: str
    path: Path
    files: list[str]
    tally: Tally
    media: MediaFiles
    problems: list[Problem]

    @property
    def unusable(self) -> int:
        """Records with something fatal."""
        return len({(problem.file, problem.row) for problem in self.problems if problem.fatal})

    @property
    def counts(self) -> Counter[str]:
        """Problems by kind."""
        return Counter(problem.kind for problem in self.problems)


def check_set(
    source: str,
    path: FilePath,
    *,
    root: FilePath | None = None,
    user_turns: FilePath | None = None,
    clip: ClipSpec | None = None,
    decode: bool = False,
) -> Checked:
    """Reads every record of a set and opens every media file once.

    Args:
      source: a name in ``data.DATASETS``.
      path: a file of that format, or a folder of them, as in ``load_dialogues``.
      root, user_turns, clip: as in ``load_dialogues``.
      decode: also decode the last frame that is shown of each video, and all pictures.

    Raises:
      InputError: unknown source, or a file that cannot be read at all.
    """
    if source not in DATASETS:
        raise InputError(f"must be one of {', '.join(DATASETS)}, got {source!r}", field="source")
    files = record_files(source, Path(path))
    if user_turns is not None and len(files) > 1:
        raise InputError(f"goes with one file, {path} has {len(files)}", field="user_turns")
    checked = Checked(source, Path(path), files, Tally(), MediaFiles(decode), [])
    if root is None:
        root = path if Path(path).is_dir() else Path(path).parent
    parse = partial(DATASETS[source].parse, root=root, clip=checked_clip(clip))
    total = sum(1 for _ in _rows(source, files, user_turns))
    if not total:
        raise InputError("holds no record", file=path)
    seen: set[str] = set()
    with ProgressBar("checking records", total) as bar:
        for file, number, name, row in _rows(source, files, user_turns):
            found = _record(checked, partial(parse, name, row, file=file), name, seen)
            checked.problems.extend(p._replace(file=file, row=number) for p in found)
            bar.update(1, f"{len(checked.problems)} problems")
    return checked


def _rows(
    source: str, files: Sequence[str], user_turns: FilePath | None
) -> Iterator[tuple[str, int, str, Any]]:
    """(file, number from 1, name, raw record) of every record."""
    for file in files:
        rows = DATASETS[source].rows(file, user_turns=user_turns)
        for number, (name, row) in enumerate(rows, 1):
            yield file, number, name, row


def _record(
    checked: Checked, parse: Callable[[], Dialogue], name: str, seen: set[str]
) -> Iterator[Problem]:
    """Counts a record and gives all that is wrong with it."""
    checked.tally.records += 1
    try:
        dialogue = parse()
    except InputError as error:
        yield _refused(checked.media, name, error)
    else:
        yield from _problems(checked, dialogue, seen)


def _problems(checked: Checked, dialogue: Dialogue, seen: set[str]) -> Iterator[Problem]:
    """Counts a dialogue and gives all that is wrong with it."""
    checked.tally.add(dialogue)
    if dialogue.id in seen:
        kind = "duplicate_id" if dialogue.open_turns else "same_id"
        yield Problem(dialogue.id, kind, "id", "another record is called so")
    seen.add(dialogue.id)
    yield from checked.media.problems(dialogue)
    yield from dialogue_problems(dialogue)
    yield from _past_the_end(checked.media, dialogue)


def _past_the_end(media: MediaFiles, dialogue: Dialogue) -> Iterator[Problem]:
    """Windows that end after the one video of their dialogue."""
    videos = {use.path for use in uses(dialogue) if use.kind == "video"}
    seconds = media.seconds(*videos) if len(videos) == 1 else None
    for number, window in enumerate(dialogue.windows if seconds is not None else ()):
        if window.end > seconds + 1e-3:
            message = f"ends at {window.end:g} s, the video at {seconds:.2f} s"
            yield Problem(dialogue.id, "window_past_end", f"windows[{number}]", message)


def _refused(media: MediaFiles, name: str, error: InputError) -> Problem:
    """A record that its reader refuses, for itself or for a file that it opens."""
    field = error.field or ""
    cause = error.__context__
    if isinstance(cause, InputError) and cause.file and cause.file != error.file:
        return media.problem(name, field, cause.file, cause)
    return Problem(name, "unreadable", field, error.message)
