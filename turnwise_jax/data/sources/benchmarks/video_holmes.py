"""Video-Holmes: short suspense films, six options as letter -> text.

Read in TencentARC/Video-Holmes, ``evaluate.py`` (commit 7745c87) and
``Pipeline/example_questions/RSmjqss0XKQ.json`` (7bb2ed0), in open-compass/VLMEvalKit,
``vlmeval/dataset/video_holmes.py``, and in yogkul2000/AVATAR, ``eval/eval_omni_video_holmes.py``
(c64455d). ``test_Video-Holmes.json`` is a list of::

    {"video ID": "...", "Question ID": 1, "Question Type": "SR", "Question": "...",
     "Options": {"A": "...", ..., "F": "..."}, "Answer": "A", "Explanation": "..."}

Media: ``<video ID>.mp4`` in ``videos_cropped``, ``videos``, ``video`` or ``videos/videos_cropped``
(readers name different folders for the same archive), heard with its own track. Category:
``Question Type``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.questions import read_options

PATTERN = "test_Video-Holmes.json"
_FOLDERS = ("videos_cropped", "videos", "video", "videos/videos_cropped")


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by video and question, which are numbered anew in each video."""
    for number, row in enumerate(common.records(path, user_turns)):
        question = common.name_of(row.get("Question ID"), f"question {number}")
        yield f"{common.name_of(row.get('video ID'), 'video')}_{question}", row


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
    options = read_options(fields, fields.mapping(row.get("Options"), "Options"), "Options")
    question = common.choice_question(
        common.asked(fields, row.get("Question"), "Question"),
        common.chosen_letter(fields, row.get("Answer"), "Answer", options),
        options,
        category=common.asked(fields, row.get("Question Type"), "Question Type"),
    )
    path = common.video_file(root, _FOLDERS, common.asked(fields, row.get("video ID"), "video ID"))
    media = common.watched(fields, path, "video ID", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)
