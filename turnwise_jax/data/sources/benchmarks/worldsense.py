"""WorldSense: videos with their sound, up to several questions each, options with letters.

Read in open-compass/VLMEvalKit, ``vlmeval/dataset/worldsense.py`` (commit 00fff54), and in
yogkul2000/AVATAR, ``eval/eval_worldsense.py`` (c64455d). ``worldsense_qa.json``::

    {"<video>": {"domain": "Music", "sub_category": "...", "audio_class": ["Speech"],
                 "duration": "...", "video_caption": "...",
                 "task0": {"task_domain": "...", "task_type": "Audio Counting", "question": "...",
                           "candidates": ["A. ...", "B. ..."], "answer": "B"}, "task1": {...}}}

Media: ``videos/<video>.mp4``, heard with its own track. Category: ``domain``, by which the
benchmark's main table is made. ``video_caption`` tells what the video shows and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.json_lines import UNREADABLE
from turnwise_jax.data.sources.questions import read_options

PATTERN = "worldsense_qa.json"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, one for each task of each video, named ``<video>_task0`` and so on.

    A record is the task with its video's name and domain under ``video`` and ``domain``.
    """
    for video, entry in common.mapping(path, user_turns).items():
        about = common.as_record(entry)
        tasks = [name for name in about if name.startswith("task")]
        if not tasks:
            yield video, {UNREADABLE: about.get(UNREADABLE, "has no task")}
        for name in tasks:
            task = common.as_record(about[name])
            yield f"{video}_{name}", {**task, "video": video, "domain": about.get("domain")}


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
    options = read_options(fields, row.get("candidates"), "candidates")
    question = common.choice_question(
        common.asked(fields, row.get("question"), "question"),
        common.chosen_letter(fields, row.get("answer"), "answer", options),
        options,
        category=common.asked(fields, row.get("domain"), "domain"),
    )
    path = f"videos/{row['video']}.mp4"
    media = common.watched(fields, path, "video", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)
