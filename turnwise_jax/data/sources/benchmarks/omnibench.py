"""OmniBench: an image and a sound for each question, options without letters.

Read in multimodal-art-projection/OmniBench, ``README.md`` and
``dataset/batch-5_1142_20240817.jsonl`` (commit 3507ef2). A line::

    {"index": 0, "task type": "...", "audio type": "speech", "question": "...",
     "options": ["...", "...", "...", "..."], "answer": "<text of an option>",
     "audio_path": "x.mp3", "image_path": "x.png", "audio content": "...", "image content": "..."}

Media: ``mm_data/audio`` and ``mm_data/image``. Category: ``task type``. The transcript ``audio
content`` becomes the question's sound caption, which no policy is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.questions import read_options

PATTERN = "dataset/*.jsonl"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``index``."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("index"), f"question {number}"), row


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
    question = common.choice_question(
        common.asked(fields, row.get("question"), "question"),
        common.chosen_text(fields, row.get("answer"), "answer", options),
        options,
        category=common.asked(fields, row.get("task type"), "task type"),
        sound=fields.text(row.get("audio content") or "", "audio content"),
    )
    media = common.pictured(
        fields,
        [f"mm_data/image/{common.asked(fields, row.get('image_path'), 'image_path')}"],
        f"mm_data/audio/{common.asked(fields, row.get('audio_path'), 'audio_path')}",
        names=("image_path", "audio_path"),
        root=root,
        clip=clip,
    )
    return common.open_dialogue(fields, question, media)
