"""CG-AV-Counting: how often something is seen or heard in a long video.

Read in AV-Reasoner/AV-Reasoner, ``eval/interface_long_acc.py`` (commit 01a55c9), in
open-compass/VLMEvalKit, ``vlmeval/dataset/CGAVCounting/cg_av_counting.py`` (03a7b37), and in
yogkul2000/AVATAR, ``eval/inference_cg_av_multigpu.py`` (c64455d). ``cg-av-counting.json`` is a list
of::

    {"index": 0, "video": "x.mp4", "question": "How many ...?", "answer": 3, "category": "event",
     "type": "...", "query_interval": [12.5, 80.0], "clue": [...]}

(``question_en`` in the first of these readers.) This is the task over the whole video ("long"); the
one over ``query_interval`` and the one about the clues are not read. Media:
``cg_videos_720p/<video>``, heard with its own track: set ``data.sound`` to False where the model
hears less than the video lasts. Category: ``category``. All questions are ``numeric``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Question
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields

PATTERN = "cg-av-counting.json"


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``index`` or else by their place in the file."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("index"), str(number)), row


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
    asked = "question" if row.get("question") is not None else "question_en"
    question = Question(
        common.asked(fields, row.get(asked), asked),
        _count(fields, row.get("answer")),
        "numeric",
        category=common.asked(fields, row.get("category"), "category"),
    )
    path = f"cg_videos_720p/{common.asked(fields, row.get('video'), 'video')}"
    media = common.watched(fields, path, "video", root=root, clip=clip)
    return common.open_dialogue(fields, question, media)


def _count(fields: Fields, value: Any) -> str:
    """The truth as text, from a number or a number written as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            fields.fail("answer", f"must be a number, got {value!r}")
    number = fields.number(value, "answer")
    return str(int(number)) if number.is_integer() else repr(number)
