"""What one video is asked, and when which answer is right: the start of every made set."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnwise_jax.data.clip import Question
from turnwise_jax.data.records import Window, is_silent
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.video import VideoInfo, probe
from turnwise_jax.errors import InputError

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:[.,]\d+)?)")


class Answer(NamedTuple):
    """An answer as it was annotated: right from ``start`` to ``end`` seconds of the video.

    ``field`` is where it stands in its file, for messages.
    """

    start: float
    end: float
    text: str
    field: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One dialogue about one video, before it is cut into turns. Times are seconds of the video.

    ``windows`` rise by their start and carry the question in force there. ``cut`` counts answers
    whose end was moved to the end of the video or to the next question.
    """

    id: str
    video: str
    info: VideoInfo
    questions: tuple[Question, ...]
    windows: tuple[Window, ...]
    system: str | None = None
    file: str = ""
    cut: int = 0


def clock_seconds(text: str) -> float | None:
    """Seconds of ``h:mm:ss``, ``mm:ss`` or ``m:ss``, with or without decimals; None of all else."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None or (match[1] is not None and int(match[2]) > 59):
        return None
    seconds = float(match[3].replace(",", "."))
    whole = 3600.0 * float(match[1] or 0) + 60.0 * float(match[2]) + seconds
    return whole if seconds < 60 and whole < math.inf else None


def read_seconds(fields: Fields, value: Any, field: str) -> float:
    """A time that is not negative: a number of seconds, or clock text."""
    if isinstance(value, str):
        seconds = clock_seconds(value)
        if seconds is None:
            fields.fail(field, f"must be seconds or h:mm:ss, got {value!r}")
        return seconds
    seconds = fields.number(value, field)
    if seconds < 0:
        fields.fail(field, f"must not be negative, got {seconds:g}")
    return seconds


def filled(fields: Fields, value: Any, field: str) -> str:
    """Text with something in it, without the blanks around it."""
    text = fields.text(value, field).strip()
    if not text:
        fields.fail(field, "is empty")
    return text


def make_entry(
    fields: Fields,
    name: str,
    video: str,
    questions: Sequence[Question],
    answers: Sequence[Answer],
    *,
    system: str | None,
    field: str = "video",
) -> Entry:
    """Checks questions and answers against the video, which is opened, and pairs them.

    An answer belongs to the last question asked by its start, and ends with the next question (in
    MMDuet2's data a new question ends the one before) or with the video.

    Args:
      questions: at rising times. field: the one that named the video.

    Raises:
      InputError: names file, record and field.
    """
    video = os.path.abspath(video)
    try:
        info = probe(video)
    except InputError as error:
        fields.fail(field, f"{video}: {error.message}")
    for question in questions:
        if question.time >= info.duration:
            message = f"{question.time:g} s lies past the end of the video at {info.duration:.2f} s"
            fields.fail("questions", message)
    windows, cut = [], 0
    for answer in sorted(answers, key=lambda answer: (answer.start, answer.end)):
        window, shortened = _window(fields, answer, questions, info.duration)
        windows.append(window)
        cut += shortened
    return Entry(name, video, info, tuple(questions), tuple(windows), system, fields.file, cut)


def _window(
    fields: Fields, answer: Answer, questions: Sequence[Question], duration: float
) -> tuple[Window, bool]:
    """The reply window of an answer, and whether its end had to be moved."""
    start, end, text, field = answer
    if is_silent(text):
        fields.fail(f"{field}.text", "is silence; leave out what needs no answer")
    if end < start:
        fields.fail(f"{field}.span", f"ends at {end:g} s, before it starts at {start:g} s")
    if start >= duration:
        message = f"starts at {start:g} s, past the end of the video at {duration:.2f} s"
        fields.fail(f"{field}.span", message)
    asked = [question for question in questions if question.time <= start]
    if not asked:
        message = f"starts at {start:g} s, before the first question at {questions[0].time:g} s"
        fields.fail(f"{field}.span", message)
    following = [question.time for question in questions if question.time > start]
    last = min([end, duration, *following])
    return Window(start, last, asked[-1].text, text), last < end
