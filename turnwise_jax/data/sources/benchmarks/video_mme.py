"""Video-MME: short, medium and long videos with three questions each, options with letters.

Read in EvolvingLMMs-Lab/lmms-eval, ``lmms_eval/tasks/videomme/utils.py`` (commit 0696573), and in
yogkul2000/AVATAR, ``eval/eval_videomme.py`` (c64455d). The rows of ``videomme/test-*.parquet``, or
of the same table as a JSON array or JSON lines::

    {"video_id": "001", "duration": "short", "domain": "Knowledge", "sub_category": "...",
     "url": "...", "videoID": "fFjv93ACGo8", "question_id": "001-1", "task_type": "...",
     "question": "...", "options": ["A. ...", "B. ...", "C. ...", "D. ..."], "answer": "C"}

Media: ``data/<videoID>`` with .mp4, .MP4 or .mkv, heard with its own track; subtitles are not read.
Long videos last up to an hour: set ``data.sound`` to False where the model hears less. Category:
``duration``, by which the benchmark's main table is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.questions import read_options

PATTERN = "videomme/*.parquet"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``question_id``."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("question_id"), f"question {number}"), row


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
        common.chosen_letter(fields, row.get("answer"), "answer", options),
        options,
        category=common.asked(fields, row.get("duration"), "duration"),
    )
    path = common.video_file(root, ["data"], common.asked(fields, row.get("videoID"), "videoID"))
    media = common.watched(fields, path, "videoID", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)
