"""MMDuet2's view of ProactiveVideoQA with extracted pictures, ``<subset>-frame_input_format.json``.

Read in PINTO0309/MMDuet2, ``proactive_eval/inference.py`` (commit cd3854d)::

    {"question_id": "x.mp4%Q0",
     "conversation": [{"role": "user",
                       "content": [{"type": "image", "image": "frames/x/000001.jpg"},
                                   {"type": "image", "image": "frames/x/000002.jpg"},
                                   {"type": "text", "text": "What ...?"}]}, ...]}

Every user turn is a decision; one with ``skip_inference`` is shown with the next one, as the script
does. Content that is text alone is a turn without pictures. Time is implicit: pictures shown so far
times the seconds per picture, which the file's name tells (``..._2_sec_per_frame...``), else
``data.interval``. ``must_reply`` is refused: it puts words into the model's mouth. A leading system
turn replaces the policy's own system text in the script; the benchmark's files have none, so it is
refused.

Windows and question come from ``<subset>-proactivevideoqa_format.json`` beside it, or from the file
given as ``data.user_turns``. Media: the pictures, ``file://`` left off, relative ones below the
root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.data.records import ClipSpec, Frame, Turn
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.errors import InputError

_VIEW, _ANNOTATIONS = "frame_input_format.json", "proactivevideoqa_format.json"
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)_sec_per_frame")


def is_view(path: common.FilePath) -> bool:
    """Whether a file is of this form, by its name."""
    return Path(path).name.endswith(_VIEW)


def rows(
    path: common.FilePath, *, annotations: common.FilePath | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``question_id``, each with its annotation under ``annotation``.

    Raises:
      InputError: either file is missing or unreadable, or two annotations have one id.
    """
    companion = Path(annotations) if annotations is not None else _companion(Path(path))
    by_question: dict[str, dict[str, Any]] = {}
    for row in common.records(companion, None):
        question = common.name_of(row.get("question_id"), "")
        if question in by_question:
            message = "another annotation has this id"
            raise InputError(message, file=companion, record=question, field="question_id")
        if question:
            by_question[question] = row
    for number, row in enumerate(common.records(path, None)):
        question = common.name_of(row.get("question_id"), "")
        name = question or f"question {number}"
        yield name, {**row, "annotation": by_question.get(question)}


def turns(
    fields: Fields, row: dict[str, Any], *, root: common.FilePath, clip: ClipSpec | None
) -> tuple[Turn, ...]:
    """The decisions of a record, at least one, with the pictures and texts before each.

    Raises:
      InputError: names file, record and field.
    """
    match = _INTERVAL.search(Path(fields.file).name)
    interval = float(match[1]) if match else (clip or ClipSpec()).interval
    made: list[Turn] = []
    frames: list[Frame] = []
    texts: list[str] = []
    shown = 0
    for index, raw in enumerate(fields.sequence(row.get("conversation"), "conversation")):
        at = f"conversation[{index}]"
        entry = fields.mapping(raw, at)
        if entry.get("role") != "user" or entry.get("must_reply"):
            fields.fail(at, "must be a turn of the user without must_reply")
        pictures, text = _content(fields, entry.get("content"), f"{at}.content", root)
        frames += pictures
        texts += [text] if text else []
        shown += len(pictures)
        if not entry.get("skip_inference"):
            made.append(Turn(tuple(frames), "\n".join(texts), shown * interval))
            frames, texts = [], []
    if not made or not shown:
        fields.fail("conversation", "holds no turn with a picture that is to be answered")
    return tuple(made)


def _content(
    fields: Fields, value: Any, field: str, root: common.FilePath
) -> tuple[list[Frame], str]:
    """The pictures and the text of one user turn."""
    if isinstance(value, str):
        return [], value
    frames: list[Frame] = []
    texts: list[str] = []
    items: Sequence[Any] = fields.sequence(value, field)
    for index, raw in enumerate(items):
        at = f"{field}[{index}]"
        item = fields.mapping(raw, at)
        if item.get("type") == "image" and not texts:
            path = fields.text(item.get("image"), f"{at}.image").removeprefix("file://")
            frames.append(fields.frame(path, f"{at}.image", root))
        elif item.get("type") == "text":
            texts.append(fields.text(item.get("text"), f"{at}.text"))
        else:
            fields.fail(at, "must be an image, before all text, or a text")
    return frames, "".join(texts)


def _companion(path: Path) -> Path:
    """The subset's annotations beside a file of this form: their names begin alike."""
    subset = path.name.split("-")[0]
    found = sorted(path.parent.glob(f"{subset}-*{_ANNOTATIONS}"))
    plain = path.with_name(f"{subset}-{_ANNOTATIONS}")
    if plain.exists() or not found:
        return plain
    if len(found) > 1:
        names = ", ".join(other.name for other in found)
        raise InputError(f"may belong to any of {names}; name one", file=path, field="user_turns")
    return found[0]
