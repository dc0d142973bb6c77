"""Entries from caption files beside videos: every caption is an answer, its span the window.

SubRip (``.srt``) and WebVTT (``.vtt``). ``clip.srt`` and ``clip.en.srt`` belong to the video
``clip.*`` in the same folder. Markup is dropped, the lines of a caption are joined, captions
without text are left out, as are WebVTT's headers, notes and styles.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise_jax.data.clip import Question
from turnwise_jax.data.making.entries import Answer, Entry, clock_seconds, make_entry
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.errors import InputError

SUFFIXES = (".srt", ".vtt")
VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".ts")
_ARROW = "-->"
_TAG = re.compile(r"</?[A-Za-z0-9][^<>]*>|\{\\[^{}]*\}")
_BLANK_LINES = re.compile(r"\n[ \t]*\n")

FilePath = str | os.PathLike[str]


def caption_files(path: FilePath) -> list[Path]:
    """The caption files of a folder and of those below it, by name; or the one file itself.

    Raises:
      InputError: none there.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise InputError(f"holds no captions ({', '.join(SUFFIXES)})", file=path)
    return found


def rows(path: FilePath) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, where its captions lie) of each caption file; the name is its path without suffix.

    Raises:
      InputError: as ``caption_files``.
    """
    top = Path(path) if Path(path).is_dir() else Path(path).parent
    for file in caption_files(path):
        yield str(file.relative_to(top).with_suffix("")), {"captions": file}


def parse(name: str, row: dict[str, Any], *, question: str, system: str | None) -> Entry:
    """The entry of one caption file; its video is looked for and opened.

    Raises:
      InputError: names file, caption and field.
    """
    file = row["captions"]
    fields = Fields(os.fspath(file), name)
    return make_entry(
        fields,
        name,
        str(_video_of(fields, file)),
        [Question(question)],
        read_captions(file),
        system=system,
    )


def read_captions(path: FilePath) -> list[Answer]:
    """The captions of a file in its order, those without text left out.

    Raises:
      InputError: not text, or a caption without readable times; names the caption.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"not readable as UTF-8 text: {error}", file=path) from error
    captions = []
    for block in _BLANK_LINES.split(text.strip()):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        timed = next((i for i, line in enumerate(lines) if _ARROW in line), None)
        if timed is None or lines[0].startswith(("NOTE", "STYLE", "REGION")):
            continue
        field = f"captions[{len(captions)}]"
        start, end = _span(path, lines[timed], field)
        said = html.unescape(_TAG.sub("", " ".join(lines[timed + 1 :])))
        captions.append(Answer(start, end, " ".join(said.split()), field))
    if not captions:
        raise InputError("holds no caption", file=path)
    return [caption for caption in captions if caption.text]


def _span(path: FilePath, line: str, field: str) -> tuple[float, float]:
    """Seconds of ``start --> end``; what follows the end says where to draw the caption."""
    before, _, after = line.partition(_ARROW)
    start = clock_seconds(before)
    end = clock_seconds((after.split() or [""])[0])
    if start is None or end is None:
        message = f"needs h:mm:ss --> h:mm:ss, got {line!r}"
        raise InputError(message, file=path, record=Path(path).stem, field=field)
    return start, end


def _video_of(fields: Fields, captions: Path) -> Path:
    """The video with the captions' name, or with that name without a language (``clip.en``)."""
    names = [captions.stem]
    if "." in captions.stem:
        names.append(captions.stem.rpartition(".")[0])
    for name in names:
        for path in sorted(captions.parent.iterdir()):
            if path.stem == name and path.suffix.lower() in VIDEO_SUFFIXES:
                return path
    fields.fail("video", f"no {names[-1]} with one of {', '.join(VIDEO_SUFFIXES)} beside it")
