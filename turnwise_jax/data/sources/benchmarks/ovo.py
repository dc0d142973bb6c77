"""The records of OVO-Bench, as its two readers share them.

Read in JoeLeelyf/OVO-Bench, ``utils/OVOBench.py`` (commit 19677d2) and ``data/ovbench.json``
(810ba1d), and in johncaged/ThinkStream, ``thinkstream/eval/ovo_bench/`` (68b1e7d).
``ovo_bench_new.json`` and the older ``ovbench.json`` are lists of::

    {"id": 7, "task": "EPM", "video": "x.mp4", "realtime": 215, "question": "...",
     "answer": "...", "options": ["...", "..."], "gt": 1}                 and eight other tasks
    {"id": 8, "task": "CRR", "video": "x.mp4", "question": "...", "answer": "...",
     "ask_time": 10, "clue_time": 31, "test_info": [{"realtime": 12.0, "type": 0}, ...]}
    {"id": 9, "task": "SSR", "video": "x.mp4", "tutorial": "MakeTea", "all_steps": ["..."],
     "start_time": [3.0], "end_time": [9.0],
     "test_info": [{"realtime": 5.0, "step": "...", "type": 1}, ...]}
    {"id": 10, "task": "REC", "video": "x.mp4", "activity": "jump", "start_times": [3.0],
     "end_times": [4.0], "test_info": [{"realtime": 5.0, "count": 1}, ...]}

Media: the source ``src_videos/<video>``; of a video named by the path of another machine any tail
that is there. ``chunked_videos/<id>.mp4``, of tasks with test points ``<id>_<i>.mp4``, is the
source from 0 to the point. Both folders may also stand below ``data``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise_jax.data.sources.benchmarks import common, online
from turnwise_jax.data.sources.fields import Fields

PATTERN = "ovo_bench_new.json"
CHOICE_TASKS = ("EPM", "ASI", "HLD", "STU", "OJR", "ATR", "ACR", "OCR", "FPD")
FORWARD_TASKS = ("REC", "SSR", "CRR")
_TOPS = ("", "data")


def records(
    path: common.FilePath, user_turns: common.FilePath | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(``id``, record) of every record."""
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("id"), f"record {number}"), row


def task_of(fields: Fields, row: dict[str, Any], tasks: tuple[str, ...]) -> str:
    """The record's task, which must be one of these."""
    task = common.asked(fields, row.get("task"), "task")
    if task not in tasks:
        fields.fail("task", f"must be one of {', '.join(tasks)}, got {task!r}")
    return task


def points(fields: Fields, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The test points of a forward task, at least one."""
    values = fields.sequence(row.get("test_info"), "test_info")
    if not values:
        fields.fail("test_info", "holds no test point")
    return [fields.mapping(value, f"test_info[{index}]") for index, value in enumerate(values)]


def source(fields: Fields, row: dict[str, Any], root: common.FilePath) -> str:
    """Where the record's whole video lies, whether it is there or not."""
    parts = Path(common.asked(fields, row.get("video"), "video")).parts
    tails = [str(Path(*parts[first:])) for first in range(len(parts)) if parts[first] != "/"]
    if not tails:
        fields.fail("video", f"names no file, got {row['video']!r}")
    folders = ("src_videos", "")
    candidates = [
        str(Path(top, folder, tail)) for tail in tails for top in _TOPS for folder in folders
    ]
    return online.below(root, candidates)


def chunk(root: common.FilePath, name: str) -> str | None:
    """The cut video of this name, if it is there."""
    path = online.below(root, [str(Path(top, "chunked_videos", f"{name}.mp4")) for top in _TOPS])
    return path if os.path.exists(path) else None
