"""StreamingBench, Proactive Output, streamed: say the expected words when the time has come.

Read in copies of THUNLP-MT/StreamingBench, ``src/benchmark/StreamingBenchProactive.py``, and its
``src/data/``. ``questions_proactive.json`` holds entries as in ``streamingbench``, with questions::

    {"task_type": "Proactive Output", "question": "When ..., output \\"3\\".",
     "time_stamp": "00:00:20", "ground_truth_time_stamp": "00:00:29", "ground_truth_output": "3"}

``Proactive_Output.csv`` has the same fields in a row for each question. The video is streamed from
the question on, to 4 s after the truth or to its end: replies after that are too late by any rule.
``target.times``: the truth, seconds of the whole video, as are the times of the turns.
``target.text``: ``ground_truth_output``. ``target.subset``: ``task_type``; ``target.item``: the
question's id. Media as in ``streamingbench``, with ``proactive`` and ``Proactive Output`` in the
names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from turnwise_jax.data.clip import Question as Said
from turnwise_jax.data.records import ClipSpec, Dialogue, Target
from turnwise_jax.data.sources.benchmarks import common, online, streamingbench
from turnwise_jax.data.sources.fields import Fields

PATTERN = "questions_proactive.json"
LATEST = 4.0  # s after the truth; the official script asks no more then
PROACTIVE = streamingbench.Part("proactive", "Proactive Output")


class Order(NamedTuple):
    """What is asked for, when (seconds of video), when it is due, and what it is."""

    question: str
    asked: float
    due: float
    output: str
    task: str


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, one for each question."""
    yield from streamingbench.question_rows(online.table(path, user_turns))


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One question as open turns over the video that follows it.

    Raises:
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    order = read_order(fields, row)
    path, field = streamingbench.video(fields, row, PROACTIVE, root)
    turns = online.stream(
        fields,
        path,
        field,
        [Said(order.question, order.asked)],
        start=order.asked,
        end=order.due + LATEST,
        clip=clip,
    )
    return Dialogue(
        name, turns, file=file, target=Target(order.task, name, (order.due,), order.output)
    )


def read_order(fields: Fields, row: dict[str, Any]) -> Order:
    """The fields of one question."""
    asked = online.seconds(fields, row.get("time_stamp"), "time_stamp")
    due = online.seconds(fields, row.get("ground_truth_time_stamp"), "ground_truth_time_stamp")
    if due < asked:
        fields.fail("ground_truth_time_stamp", f"is {due:g} s, the question comes at {asked:g} s")
    return Order(
        common.asked(fields, row.get("question"), "question"),
        asked,
        due,
        online.stated(fields, row.get("ground_truth_output"), "ground_truth_output"),
        common.asked(fields, row.get("task_type"), "task_type"),
    )
