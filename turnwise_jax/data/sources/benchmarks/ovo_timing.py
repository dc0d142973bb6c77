"""OVO-Timing: when a streaming policy speaks, on OVO-Bench's three forward tasks.

Read in MCG-NJU/OneStreamer, ``Eval/VLMEvalKit/vlmeval/dataset/ovo_timing.py`` (commit f0a610b); the
records are those of ``ovo``, all but CRR, SSR and REC left out. A video is streamed up to the last
test point, from 0 (REC, SSR) or from ``ask_time`` (CRR). Asked is, as in that file, CRR's own
question, "How many times does the event: <activity> happen?" or "Describe the steps of <tutorial,
its words in lower case>". What is due, ``target.times``: CRR ``clue_time``; REC every
``start_times`` + 2 s; SSR every ``start_time`` + 2 s. ``target.subset`` is the task.

Where the source video is missing, the cut one of the last test point serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.clip import Question as Said
from turnwise_jax.data.records import ClipSpec, Dialogue, Target
from turnwise_jax.data.sources.benchmarks import common, online, ovo
from turnwise_jax.data.sources.fields import Fields

PATTERN = ovo.PATTERN
DELAY = 2.0  # s from the start of a repetition or step until it counts as seen
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records of the forward tasks, named by ``id``."""
    for name, row in ovo.records(path, user_turns):
        if row.get("task") not in ovo.CHOICE_TASKS:
            yield name, row


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One record as open turns over its video.

    Raises:
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    task = ovo.task_of(fields, row, ovo.FORWARD_TASKS)
    last = len(ovo.points(fields, row)) - 1
    end = online.seconds(fields, row["test_info"][last].get("realtime"), _end_field(last))
    start = online.seconds(fields, row.get("ask_time"), "ask_time") if task == "CRR" else 0.0
    if start >= end:
        fields.fail(_end_field(last), f"is {end:g} s, but the stream starts at {start:g} s")
    path = ovo.source(fields, row, root)
    cut = ovo.chunk(root, f"{name}_{last}")
    if cut is not None and common.found("", [path, cut]) == cut:
        path = cut
    said = [Said(_question(fields, row, task), start)]
    return Dialogue(
        name,
        online.stream(fields, path, "video", said, start=start, end=end, clip=clip),
        file=file,
        target=Target(task, name, _due(fields, row, task)),
    )


def _end_field(last: int) -> str:
    return f"test_info[{last}].realtime"


def _question(fields: Fields, row: dict[str, Any], task: str) -> str:
    if task == "REC":
        activity = common.asked(fields, row.get("activity"), "activity")
        return f"How many times does the event: {activity} happen?"
    if task == "SSR":
        tutorial = common.asked(fields, row.get("tutorial"), "tutorial")
        return f"Describe the steps of {_WORD.sub(' ', tutorial).lower()}"
    return common.asked(fields, row.get("question"), "question")


def _due(fields: Fields, row: dict[str, Any], task: str) -> tuple[float, ...]:
    """When replies are due, seconds of video, in the order of the record."""
    if task == "CRR":
        return (online.seconds(fields, row.get("clue_time"), "clue_time"),)
    field = "start_times" if task == "REC" else "start_time"
    return tuple(time + DELAY for time in online.seconds_list(fields, row.get(field), field))
