"""Finished dialogues as JSON lines: what evaluation writes, training logs and scoring reads.

One object per line::

    {"id": "v7-q0",                       required, text or integer
     "times": [4.0, 8.0],                 required, seconds of video shown at each decision
     "replies": ["NO REPLY", "A ..."],    required, one per decision
     "windows": [{"start": 3.0, "end": 9.0, "question": "...", "answer": "...",
                  "event_end": 8.0}],     required (may be empty); event_end optional
     "history": ["..."],                  non-silent replies given before the first decision
     "video": "videos/7.mp4",             what confidence intervals resample; default: the id
     "group": 12,                         shared by the rollouts of one prompt
     "step": 40,                          training step; groups of different steps are different
     "quality": [[null], [4]],            judge scores 0..4 per reply and window, null = none
     "repetitive": [null, 0],             judgements per reply, 1 yes, 0 no, null = none
     "question": {"text": "...", "answer": "B", "kind": "multiple_choice",
                  "options": ["red", "blue"], "category": "colour", "sound": "..."},
                                          of a question-answering record; the last three optional
     "target": {"subset": "CRR", "item": "17", "times": [31.0], "text": "..."},
                                          a benchmark's annotation; all four optional
     "raw": ["<think>..."]}               what was sampled, if ``replies`` are only what it shows

The last nine are optional, and other fields are left alone, so that logs with more in them (the
``groups.jsonl`` of a training run) read as they are. The file of a killed process may end in a
torn line; it is left out on reading and cut off before the next append.
"""

from __future__ import annotations

import itertools
import math
import os
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise_jax.data.records import QUESTION_KINDS, Question, Target, Window, is_silent
from turnwise_jax.errors import InputError
from turnwise_jax.eval.lines import LineWriter, iter_lines
from turnwise_jax.rewards.trajectory import ReplyWindow, Trajectory

Scores = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One finished dialogue: what was said at each of its K decisions, and its W reply windows.

    ``quality`` (K rows of W) and ``repetitive`` (K) are judgements made before, None = not judged.
    ``question`` is what its one reply answers; a file does not keep the question's hint. ``raw`` is
    what was sampled where the policy does not write plain replies (``data.reply_styles``).
    """

    id: str
    times: tuple[float, ...]
    replies: tuple[str, ...]
    windows: tuple[Window, ...] = ()
    history: tuple[str, ...] = ()
    video: str = ""
    group: str | int | None = None
    step: int | None = None
    quality: tuple[Scores, ...] | None = None
    repetitive: Scores | None = None
    question: Question | None = None
    target: Target | None = None
    raw: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """What a bootstrap over videos resamples as one: the video, else the dialogue itself."""
        return self.video or self.id

    @property
    def replied(self) -> tuple[bool, ...]:
        """Which decisions were replies."""
        return tuple(not is_silent(reply) for reply in self.replies)

    @property
    def missing_verdicts(self) -> int:
        """Replies without a verdict of repetition, of a dialogue that was judged."""
        given = zip(self.repetitive or (), self.replied, strict=False)
        return sum(said and verdict is None for verdict, said in given)

    def trajectory(self) -> Trajectory:
        """The same dialogue as the reward functions take it."""
        windows = tuple(ReplyWindow(w.start, w.end, w.question, w.answer) for w in self.windows)
        return Trajectory(self.id, self.times, self.replies, windows, self.history)

    def to_json(self) -> dict[str, Any]:
        """The object written to a line; optional fields that hold nothing are left out."""
        record: dict[str, Any] = {
            "id": self.id,
            "times": list(self.times),
            "replies": list(self.replies),
            "windows": [_window_json(window) for window in self.windows],
            "history": list(self.history),
        }
        if self.video:
            record["video"] = self.video
        if self.group is not None:
            record["group"] = self.group
        if self.step is not None:
            record["step"] = self.step
        if self.quality is not None:
            record["quality"] = [list(row) for row in self.quality]
        if self.repetitive is not None:
            record["repetitive"] = list(self.repetitive)
        if self.question is not None:
            record["question"] = _question_json(self.question)
        if self.target is not None:
            record["target"] = _target_json(self.target)
        if self.raw:
            record["raw"] = list(self.raw)
        return record


def read_predictions(path: str | os.PathLike[str]) -> list[Prediction]:
    """Every finished dialogue of a JSON-lines file, in file order.

    Raises:
      InputError: the file cannot be read, or a line does not have the form above; names the file,
        the line, the record and the field.
    """
    return [
        _Reader(str(path), number, record).prediction()
        for number, record in iter_lines(path, missing_ok=False)
    ]


def check_distinct(predictions: Sequence[Prediction]) -> None:
    """Refuses a dialogue that is there twice; rollouts of training logs, which have a step, may be.

    Raises:
      InputError: names the record.
    """
    seen: set[str] = set()
    for prediction in predictions:
        if prediction.step is not None:
            continue
        if prediction.id in seen:
            raise InputError("is there twice, and would count twice", record=prediction.id)
        seen.add(prediction.id)


class PredictionWriter(LineWriter):
    """Appends dialogues to a JSON-lines file, one whole line per call."""

    def write(self, prediction: Prediction) -> None:
        self.append(prediction.to_json())


def _window_json(window: Window) -> dict[str, Any]:
    record = {
        "start": window.start,
        "end": window.end,
        "question": window.question,
        "answer": window.answer,
    }
    if window.event_end is not None:
        record["event_end"] = window.event_end
    return record


def _question_json(question: Question) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": question.text,
        "answer": question.answer,
        "kind": question.kind,
    }
    if question.options:
        record["options"] = list(question.options)
    if question.category:
        record["category"] = question.category
    if question.sound:
        record["sound"] = question.sound
    return record


def _target_json(target: Target) -> dict[str, Any]:
    record = {
        "subset": target.subset,
        "item": target.item,
        "times": list(target.times),
        "text": target.text,
    }
    return {name: value for name, value in record.items() if value}


class _Reader:
    """Checks one line field by field."""

    def __init__(self, path: str, number: int, record: dict[str, Any]):
        self.path, self.number, self.record = path, number, record
        self.name = f"line {number}"

    def prediction(self) -> Prediction:
        identity = self._get("id")
        if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "":
            self._refuse("id", "must be text or an integer")
        self.name = f"line {self.number}, id {identity}"
        times = self._numbers("times", self._get("times"))
        if any(b < a for a, b in itertools.pairwise(times)):
            self._refuse("times", "must not decrease")
        replies = self._texts("replies", self._get("replies"))
        if len(replies) != len(times):
            self._refuse("replies", f"has {len(replies)} entries for {len(times)} times")
        windows = tuple(
            self._window(f"windows[{w}]", value)
            for w, value in enumerate(self._list("windows", self._get("windows")))
        )
        return Prediction(
            id=str(identity),
            times=times,
            replies=replies,
            windows=windows,
            history=self._texts("history", self.record.get("history") or []),
            video=self._text("video", self.record.get("video") or ""),
            group=self._group(),
            step=self._step(),
            quality=self._quality(len(times), len(windows)),
            repetitive=self._repetitive(len(times)),
            question=self._question(),
            target=self._target(),
            raw=self._raw(len(times)),
        )

    def _window(self, field: str, value: Any) -> Window:
        if not isinstance(value, dict):
            self._refuse(field, "must be an object")
        for name in ("start", "end", "question", "answer"):
            if name not in value:
                self._refuse(f"{field}.{name}", "is missing")
        start = self._number(f"{field}.start", value["start"])
        end = self._number(f"{field}.end", value["end"])
        if end < start:
            self._refuse(field, f"ends at {end:g} s, before it starts at {start:g} s")
        event_end = value.get("event_end")
        if event_end is not None:
            event_end = self._number(f"{field}.event_end", event_end)
        question = self._text(f"{field}.question", value["question"])
        answer = self._text(f"{field}.answer", value["answer"])
        return Window(start, end, question, answer, event_end)

    def _question(self) -> Question | None:
        value = self.record.get("question")
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse("question", "must be an object")
        for name in ("text", "answer", "kind"):
            if value.get(name) is None:
                self._refuse(f"question.{name}", "is missing")
        given = {
            name: self._text(f"question.{name}", value.get(name, ""))
            for name in ("text", "answer", "kind", "category", "sound")
        }
        options = self._texts("question.options", value.get("options") or [])
        if given["kind"] not in QUESTION_KINDS:
            self._refuse("question.kind", f"must be one of {', '.join(QUESTION_KINDS)}")
        letters = string.ascii_uppercase[: len(options)]
        if given["kind"] == "multiple_choice" and given["answer"] not in tuple(letters):
            self._refuse("question.answer", f"is no letter of the {len(options)} options")
        return Question(options=options, **given)

    def _target(self) -> Target | None:
        value = self.record.get("target")
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse("target", "must be an object")
        given = {
            name: self._text(f"target.{name}", value.get(name, ""))
            for name in ("subset", "item", "text")
        }
        return Target(times=self._numbers("target.times", value.get("times") or []), **given)

    def _raw(self, turns: int) -> tuple[str, ...]:
        texts = self._texts("raw", self.record.get("raw") or [])
        if texts and len(texts) != turns:
            self._refuse("raw", f"has {len(texts)} entries for {turns} times")
        return texts

    def _group(self) -> str | int | None:
        group = self.record.get("group")
        if group is not None and not isinstance(group, str | int):
            self._refuse("group", "must be text or an integer")
        return group

    def _step(self) -> int | None:
        step = self.record.get("step")
        if step is not None and (not isinstance(step, int) or isinstance(step, bool)):
            self._refuse("step", "must be an integer")
        return step

    def _quality(self, turns: int, windows: int) -> tuple[Scores, ...] | None:
        value = self.record.get("quality")
        if value is None:
            return None
        rows = self._list("quality", value)
        if len(rows) != turns:
            self._refuse("quality", f"has {len(rows)} rows for {turns} decisions")
        return tuple(self._scores(f"quality[{k}]", row, windows, 4.0) for k, row in enumerate(rows))

    def _repetitive(self, turns: int) -> Scores | None:
        value = self.record.get("repetitive")
        return None if value is None else self._scores("repetitive", value, turns, 1.0)

    def _scores(self, field: str, value: Any, length: int, top: float) -> Scores:
        values = self._list(field, value)
        if len(values) != length:
            self._refuse(field, f"has {len(values)} entries, not {length}")
        scores = tuple(None if v is None else self._number(field, v) for v in values)
        if any(score is not None and not 0 <= score <= top for score in scores):
            self._refuse(field, f"must lie between 0 and {top:g}")
        return scores

    def _get(self, field: str) -> Any:
        if field not in self.record:
            self._refuse(field, "is missing")
        return self.record[field]

    def _list(self, field: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            self._refuse(field, "must be a list")
        return value

    def _texts(self, field: str, value: Any) -> tuple[str, ...]:
        return tuple(self._text(f"{field}[{k}]", v) for k, v in enumerate(self._list(field, value)))

    def _numbers(self, field: str, value: Any) -> tuple[float, ...]:
        values = self._list(field, value)
        return tuple(self._number(f"{field}[{k}]", v) for k, v in enumerate(values))

    def _text(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            self._refuse(field, "must be text")
        return value

    def _number(self, field: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            value = float(value) if number else math.nan
        except OverflowError:  # a whole number that no float can hold
            value = math.inf
        if not math.isfinite(value):
            self._refuse(field, "must be a finite number")
        return value

    def _refuse(self, field: str, message: str) -> None:
        raise InputError(message, file=self.path, record=self.name, field=field)
