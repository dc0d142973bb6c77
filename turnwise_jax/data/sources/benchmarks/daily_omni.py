"""Daily-Omni: videos of 30 or 60 seconds with their sound, options with letters.

Read in Lliar-liar/Daily-Omni, ``README.md`` and ``test_model/Qwen2.5-Omni/testmodel.py`` (commits
01667a2, b8bbbf4), and in yogkul2000/AVATAR, ``eval/eval_daily_omni.py`` (c64455d). ``qa.json`` is a
list of::

    {"Question": "...", "Choice": ["A. ...", "B. ...", "C. ...", "D. ..."], "Answer": "B",
     "video_id": "...", "Type": "Event Sequence", "video_category": "...", "video_duration": "30s"}

Media: ``Videos/<video_id>/<video_id>_video.mp4``, heard with its own track. Category: ``Type``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.questions import read_options

PATTERN = "qa.json"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records; they have no names, so each gets its video's and its place in the file."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield f"{common.name_of(row.get('video_id'), 'question')}_{number}", row


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
    options = read_options(fields, row.get("Choice"), "Choice")
    question = common.choice_question(
        common.asked(fields, row.get("Question"), "Question"),
        common.chosen_letter(fields, row.get("Answer"), "Answer", options),
        options,
        category=common.asked(fields, row.get("Type"), "Type"),
    )
    video = common.asked(fields, row.get("video_id"), "video_id")
    path = f"Videos/{video}/{video}_video.mp4"
    media = common.watched(fields, path, "video_id", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)
