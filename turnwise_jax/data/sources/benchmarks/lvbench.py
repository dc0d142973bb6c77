"""LVBench: videos of up to two hours, options within the question's text.

Read in THUDM/LVBench, ``README.md``, ``lvbench/metrics/compute_accuracy.py`` and
``scripts/save_video_txt.py`` (commits 518df47, dd7d99d); that options stand in the text as shown,
in other public code that splits it. A line of ``video_info.meta.jsonl``::

    {"key": "<YouTube id>", "type": "...", "video_info": {...},
     "qa": [{"uid": "0", "question": "...?\\n(A) ...\\n(B) ...\\n(C) ...\\n(D) ...", "answer": "B",
             "question_type": ["reasoning", ...], "time_reference": "..."}]}

Media: ``<key>`` with .mp4, .MP4, .mkv or .webm in ``all_videos`` or ``videos``, heard with its own
track: set ``data.sound`` to False where the model hears less than hours. Category: the first
``question_type``; the benchmark's own tables count a question under each of its types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.json_lines import UNREADABLE
from turnwise_jax.data.sources.questions import read_options

PATTERN = "video_info.meta.jsonl"
_OPTION = re.compile(r"\n\s*(?=\([A-Z]\))")
_FOLDERS = ("all_videos", "videos")


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, one for each question of each video, named by ``uid``.

    A record is the entry of ``qa`` with its video's ``key``.
    """
    for number, line in enumerate(common.records(path, user_turns)):
        key, questions = line.get("key"), line.get("qa")
        if not isinstance(questions, list):
            yield (
                common.name_of(key, f"video {number}"),
                {UNREADABLE: line.get(UNREADABLE, "has no list qa")},
            )
            continue
        for place, entry in enumerate(questions):
            question = common.as_record(entry)
            otherwise = f"{common.name_of(key, f'video {number}')}_{place}"
            yield common.name_of(question.get("uid"), otherwise), {**question, "key": key}


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
    text, *choices = _OPTION.split(common.asked(fields, row.get("question"), "question"))
    options = read_options(fields, choices, "question")
    types = fields.texts(row.get("question_type"), "question_type")
    if not options:
        fields.fail("question", "holds no lines '(A) ...' with options")
    if not types:
        fields.fail("question_type", "is empty")
    question = common.choice_question(
        common.asked(fields, text, "question"),
        common.chosen_letter(fields, row.get("answer"), "answer", options),
        options,
        category=types[0],
    )
    path = common.video_file(root, _FOLDERS, common.asked(fields, row.get("key"), "key"))
    media = common.watched(fields, path, "key", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)
