"""MMVU: expert questions about videos, five options or an open answer.

Read in yale-nlp/MMVU, ``data/validation.json`` (commit 4d54223) and ``utils/video_process.py``
(a014867). A list of::

    {"id": "validation_1", "question_type": "multiple-choice", "question": "...", "answer": "A",
     "video": "https://huggingface.co/datasets/yale-nlp/MMVU/resolve/main/videos/Art/0.mp4",
     "choices": {"A": "...", ..., "E": "..."}, "metadata": {"subject": "Chemistry", ...}}

An ``open-ended`` question has empty choices and an answer in words; it becomes ``free_form``, which
compares words, where the benchmark asks a language model to judge. Media: the part of ``video``
behind ``/resolve/main/``, a copy of the data set's own folders. Category: ``metadata.subject``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Question
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.questions import read_options

PATTERN = "validation.json"
_HUB = "/resolve/main/"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``id``."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("id"), f"question {number}"), row


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
    path = common.asked(fields, row.get("video"), "video").split(_HUB)[-1]
    question = _question(fields, row)
    media = common.watched(fields, path, "video", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)


def _question(fields: Fields, row: dict[str, Any]) -> Question:
    text = common.asked(fields, row.get("question"), "question")
    metadata = fields.mapping(row.get("metadata"), "metadata")
    category = common.asked(fields, metadata.get("subject"), "metadata.subject")
    kind = row.get("question_type")
    if kind == "open-ended":
        answer = common.asked(fields, row.get("answer"), "answer")
        return Question(text, answer, "free_form", category=category)
    if kind != "multiple-choice":
        fields.fail("question_type", f"must be multiple-choice or open-ended, got {kind!r}")
    choices = fields.mapping(row.get("choices"), "choices")
    options = read_options(
        fields, {key: choices[key] for key in choices if choices[key]}, "choices"
    )
    letter = common.chosen_letter(fields, row.get("answer"), "answer", options)
    return common.choice_question(text, letter, options, category=category)
