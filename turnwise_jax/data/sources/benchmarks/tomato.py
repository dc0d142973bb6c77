"""TOMATO: visual temporal reasoning, options without letters, the answer as a position.

Read in yale-nlp/TOMATO, ``data/*.json``, ``src/evaluate.py`` and ``src/generate_lib/qwen.py``
(commit 2161ce9). Each of the six files ``data/<reasoning type>.json``::

    {"0": {"question": "...", "options": ["...", "...", "..."], "answer": 2, "key": "0731-00",
           "demonstration_type": "object", "motion_type": "...", "variation": {...}, "note": ""}}

``answer`` counts from 0. Media: ``videos/<demonstration_type>/<key>.mp4``. Category: the reasoning
type, which is the file's name. One file is read at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.questions import read_options

PATTERN = "data/*.json"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by reasoning type and number."""
    task = Path(path).stem
    for number, entry in common.mapping(path, user_turns).items():
        yield f"{task}_{number}", common.as_record(entry)


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One question as an open turn.

    Raises:
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    options = read_options(fields, row.get("options"), "options")
    position = fields.number(row.get("answer"), "answer")
    if position not in range(len(options)):
        fields.fail("answer", f"must count one of {len(options)} options, got {position:g}")
    question = common.choice_question(
        common.asked(fields, row.get("question"), "question"),
        ascii_uppercase[int(position)],
        options,
        category=Path(file).stem,
    )
    folder = common.asked(fields, row.get("demonstration_type"), "demonstration_type")
    path = f"videos/{folder}/{common.asked(fields, row.get('key'), 'key')}.mp4"
    media = common.watched(fields, path, "key", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)
