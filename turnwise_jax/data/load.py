"""Dialogue files to checked dialogues."""

from __future__ import annotations

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
    """Reads every dialogue of a file. No pixels are touched.

    Args:
      source: a name in ``data.DATASETS``.
      root: where relative media paths start; the folder of ``path`` if None.
      user_turns: companion file of formats that have one; found by name if None.
      on_bad_record: "raise" stops at the first bad record, "skip" leaves it out.
      clip: how formats that name whole clips show them; formats that name frames pay no heed.

    Returns:
      (dialogues, one line for each record that was left out).

    Raises:
      InputError: unknown source, a file that cannot be read, a bad record under "raise", or no
        usable record at all.
    """
    if source not in DATASETS:
        raise InputError(f"must be one of {', '.join(DATASETS)}, got {source!r}", field="source")
    check_on_bad_record(on_bad_record)
    if not Path(path).is_file():
        raise InputError("no such file", file=path)
    module = DATASETS[source]
    root = Path(path).parent if root is None else root
    clip = clip or ClipSpec()
    dialogues: list[Dialogue] = []
    skipped: list[str] = []
    for name, row in module.rows(path, user_turns=user_turns):
        try:
            dialogues.append(module.parse(name, row, file=os.fspath(path), root=root, clip=clip))
        except InputError as error:
            if on_bad_record == "raise":
                raise
            skipped.append(str(error))
    if not dialogues:
        reason = f"; the first of {len(skipped)} bad ones: {skipped[0]}" if skipped else ""
        raise InputError(f"holds no usable record{reason}", file=path)
    return dialogues, skipped


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


def check_on_bad_record(value: str) -> None:
    """Refuses anything but "raise" and "skip"."""
    if value not in ON_BAD_RECORD:
        raise InputError(f"must be 'raise' or 'skip', got {value!r}", field="on_bad_record")
