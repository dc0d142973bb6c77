"""StreamingBench, Proactive Output, polled: the official form for models that cannot wait.

The records are those of ``streamingbench_proactive``; procedure and prompts from copies of
THUNLP-MT/StreamingBench, ``src/benchmark/StreamingBenchProactive.py``. Every second from 1 s after
the question to 4 s after the truth the model is asked, on the video from the question to now,
whether it is the right time; after the first yes it is asked the plain question on the same clip.
Here every second makes both dialogues, ``<question>_<s>_poll`` and ``<question>_<s>_output``, of
which the rule uses those that count. The poll tells the model the expected text, as the official
one does. (A fork shows 80 s more before the question; this follows the benchmark's paper.)

``target.subset``: "poll" or "output". ``target.item``: the question's id. ``target.times``: the
truth; a dialogue's one decision is at the second of its poll, also where the video ends before.
``target.text``: ``ground_truth_output``. Media as in ``streamingbench_proactive``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Target, Turn
from turnwise_jax.data.sources.benchmarks import (
    common,
    online,
    streamingbench,
    streamingbench_proactive,
)
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.errors import InputError

PATTERN = streamingbench_proactive.PATTERN
KINDS = ("poll", "output")
PROMPT = (
    "You are an advanced image question-answering AI assistant. You have been provided with images "
    "and a question related to the images. Your task is to carefully analyze the images and "
    "provide the answer to the question. You need to carefully confirm whether the images content "
    "meet the conditions of the question, and then output the correct content.\n\n"
    "Question: {}\n\nThe answer is:\n"
)
POLL = '{} Is it the right time to output "{}"? You can only answer yes or no.'
EVERY = 1.0  # s
MOST = 3600  # polls of one question; the benchmark's longest wait is 44 s
_CLOSE = 1e-6


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, two for each second of polling, under ``poll`` as (question, kind, second).

    A question whose times cannot be read comes once, for ``parse`` to refuse.
    """
    for name, row in streamingbench_proactive.rows(path, user_turns=user_turns):
        try:
            order = _read(common.checked(str(path), name, row), row)
        except InputError:
            yield name, row
            continue
        for poll in range(1, _polls(order) + 1):
            for kind in KINDS:
                time = order.asked + poll * EVERY
                yield f"{name}_{poll}_{kind}", {**row, "poll": (name, kind, time)}


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One poll, or the plain question, as an open turn.

    Raises:
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    order = _read(fields, row)
    item, kind, now = row["poll"]
    path, field = streamingbench.video(fields, row, streamingbench_proactive.PROACTIVE, root)
    media = online.looked_back(
        fields, path, field, start=order.asked, end=now, time_field="time_stamp", clip=clip
    )
    asked = POLL.format(order.question, order.output) if kind == "poll" else order.question
    turn = Turn(media.frames, PROMPT.format(asked), now, video=media.video, audio=media.sound)
    return Dialogue(
        name,
        (turn,),
        system=online.PLAIN_SYSTEM,
        file=file,
        target=Target(kind, item, (order.due,), order.output),
    )


def _read(fields: Fields, row: dict[str, Any]) -> streamingbench_proactive.Order:
    """The fields of one question, which must not be due too late to be polled."""
    order = streamingbench_proactive.read_order(fields, row)
    if order.due - order.asked > MOST * EVERY:
        wait = order.due - order.asked
        message = f"is {wait:g} s after the question, polled are {MOST * EVERY:g} s at most"
        fields.fail("ground_truth_time_stamp", message)
    return order


def _polls(order: streamingbench_proactive.Order) -> int:
    """How many there are up to the last moment that counts."""
    last = order.due + streamingbench_proactive.LATEST
    return math.floor((last - order.asked) / EVERY + _CLOSE)
