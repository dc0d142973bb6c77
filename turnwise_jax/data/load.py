"""Dialogue files to checked dialogues."""

from __future__ import annotations

import math
import os
from pathlib import Path

from turnwise_jax.data import DATASETS
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.errors import InputError

ON_BAD_RECORD = ("raise", "skip")


def load_dialogues(
    source: str,
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    user_turns: str | os.PathLike[str] | None = None,
    on_bad_record: str = "raise",
    clip: ClipSpec | None = None,
) -> tuple[list[Dialogue], list[str]]:
    """Reads every dialogue of a file, or of a folder's files. No pixels are touched.

    Args:
      source: a name in ``data.DATASETS``.
      path: a file, or a folder: then all files below it that the source's ``PATTERN`` names, in
        the order of their names.
      root: where relative media paths start; if None that folder, or the folder of the one file.
      user_turns: companion file of formats that have one; found by name if None.
      on_bad_record: "raise" stops at the first bad record, "skip" leaves it out.
      clip: how formats that name whole clips show them; formats that name frames pay no heed.

    Returns:
      (dialogues, one line for each record that was left out).

    Raises:
      InputError: unknown source, no file, a file that cannot be read, a bad record under "raise",
        or no usable record at all.
    """
    if source not in DATASETS:
        raise InputError(f"must be one of {', '.join(DATASETS)}, got {source!r}", field="source")
    check_on_bad_record(on_bad_record)
    module = DATASETS[source]
    files = record_files(source, Path(path))
    if user_turns is not None and len(files) > 1:
        raise InputError(f"goes with one file, {path} has {len(files)}", field="user_turns")
    if root is None:
        root = path if Path(path).is_dir() else Path(path).parent
    clip = checked_clip(clip)
    dialogues: list[Dialogue] = []
    skipped: list[str] = []
    for file in files:
        for name, row in module.rows(file, user_turns=user_turns):
            try:
                dialogues.append(module.parse(name, row, file=file, root=root, clip=clip))
            except InputError as error:
                if on_bad_record == "raise":
                    raise
                skipped.append(str(error))
    if not dialogues:
        reason = f"; the first of {len(skipped)} bad ones: {skipped[0]}" if skipped else ""
        raise InputError(f"holds no usable record{reason}", file=path)
    return dialogues, skipped


def record_files(source: str, path: Path) -> list[str]:
    """The file itself, or the folder's files of the source's form, at least one."""
    if path.is_file():
        return [os.fspath(path)]
    if not path.is_dir():
        raise InputError("no such file", file=path)
    pattern = DATASETS[source].PATTERN
    found = [os.fspath(file) for file in sorted(path.glob(pattern)) if file.is_file()]
    if not found:
        raise InputError(f"holds no file {pattern}; name the one to use", file=path)
    return found


def find_records(source: str, root: str | os.PathLike[str]) -> Path:
    """The one file of a data set's folder that has the source's format.

    Raises:
      InputError: no such folder, or not exactly one such file in it; names those that are there.
    """
    pattern = DATASETS[source].PATTERN
    if not Path(root).is_dir():
        raise InputError("no such directory", file=root, field="data.root")
    found = sorted(Path(root).glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        raise InputError(
            f"holds {len(found)} files {pattern}{': ' * bool(names)}{names}; name the one to use",
            file=root,
            field="data.path",
        )
    return found[0]


def checked_clip(clip: ClipSpec | None) -> ClipSpec:
    """The usual one if None; refuses what shows nothing, before any record is blamed for it."""
    clip = clip or ClipSpec()
    for field, least in (("frames", 1), ("turn_frames", 1), ("interval", 1e-3), ("context", 0.0)):
        if not least <= getattr(clip, field) < math.inf:
            message = f"must be at least {least:g} and finite, got {getattr(clip, field):g}"
            raise InputError(message, field=field)
    return clip


def check_on_bad_record(value: str) -> None:
    """Refuses anything but "raise" and "skip"."""
    if value not in ON_BAD_RECORD:
        raise InputError(f"must be 'raise' or 'skip', got {value!r}", field="on_bad_record")
