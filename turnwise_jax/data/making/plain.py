"""Entries from a JSON list, or JSON lines, of videos with questions and timed answers.

::

    [{"video": "kitchen.mp4",
      "question": "What is the cook doing?",
      "answers": [{"span": [4.0, 9.5], "text": "He cuts an onion."},
                  {"span": ["0:12", "0:15"], "text": "He washes the knife."}]},
     {"id": "tour", "video": "city/tour.mp4", "system": "You are a guide.",
      "questions": [{"text": "Name the buildings.", "time": 0},
                    {"text": "Which of them is the oldest?", "time": "1:02:30"}],
      "answers": []}]

Times are seconds or ``h:mm:ss``. ``question`` is asked at the start. ``id`` is the video's name if
it is missing, the second entry of a video is called ``name%Q2``. Other fields are not read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise_jax.data.clip import Question
from turnwise_jax.data.making.entries import Answer, Entry, filled, make_entry, read_seconds
from turnwise_jax.data.sources.benchmarks.common import checked, name_of, records
from turnwise_jax.data.sources.fields import Fields

FilePath = str | os.PathLike[str]


def rows(path: FilePath) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, raw entry): the ``id``, else the video's name, else ``entry N``.

    Raises:
      InputError: missing or unreadable file.
    """
    seen: Counter[str] = Counter()
    for number, row in enumerate(records(path, None), 1):
        video = row.get("video")
        usual = (Path(video).stem if isinstance(video, str) else "") or f"entry {number}"
        seen[usual] += 1
        if seen[usual] > 1:
            usual = f"{usual}%Q{seen[usual]}"
        yield name_of(row.get("id"), usual), row


def parse(name: str, row: dict[str, Any], *, file: str, root: FilePath) -> Entry:
    """One entry; its video is opened, below ``root`` if its path is relative.

    Raises:
      InputError: names file, record and field.
    """
    fields = checked(file, name, row)
    system = row.get("system")
    return make_entry(
        fields,
        name,
        os.path.join(root, filled(fields, row.get("video"), "video")),
        _questions(fields, row),
        [
            _answer(fields, raw, f"answers[{index}]")
            for index, raw in enumerate(fields.sequence(row.get("answers"), "answers"))
        ],
        system=None if system is None else filled(fields, system, "system"),
    )


def _questions(fields: Fields, row: dict[str, Any]) -> list[Question]:
    single, listed = row.get("question"), row.get("questions")
    if single is not None and listed is not None:
        fields.fail("question", "stands beside questions; use one of the two")
    if listed is None:
        return [Question(filled(fields, single, "question"))]
    questions: list[Question] = []
    for index, raw in enumerate(fields.sequence(listed, "questions")):
        at = f"questions[{index}]"
        entry = fields.mapping(raw, at)
        time = read_seconds(fields, entry.get("time", 0), f"{at}.time")
        if questions and time <= questions[-1].time:
            fields.fail(f"{at}.time", f"must be after the question at {questions[-1].time:g} s")
        questions.append(Question(filled(fields, entry.get("text"), f"{at}.text"), time))
    if not questions:
        fields.fail("questions", "is empty; ask at least one")
    return questions


def _answer(fields: Fields, raw: Any, at: str) -> Answer:
    entry = fields.mapping(raw, at)
    span = fields.sequence(entry.get("span"), f"{at}.span")
    if len(span) != 2:
        fields.fail(f"{at}.span", f"must be [start, end], got {len(span)} values")
    start, end = (read_seconds(fields, value, f"{at}.span[{i}]") for i, value in enumerate(span))
    return Answer(start, end, filled(fields, entry.get("text"), f"{at}.text"), at)
