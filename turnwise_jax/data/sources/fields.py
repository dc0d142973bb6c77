"""Checked access to raw records: every complaint names file, record and field."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from turnwise_jax.data.records import Frame, Window
from turnwise_jax.errors import InputError

UserTurn = tuple[tuple[Frame, ...], str]  # pictures first, then text

PLACEHOLDER = "<image>"
_FRAGMENT = re.compile(r"(?P<path>.+)#t=(?P<time>[^#]*)")


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads fields of one record. ``field`` arguments are paths such as ``images[3].path``."""

    file: str
    record: str

    def fail(self, field: str, message: str) -> NoReturn:
        raise InputError(message, file=self.file, record=self.record, field=field)

    def text(self, value: Any, field: str) -> str:
        if not isinstance(value, str):
            self.fail(field, f"must be text, got {_show(value)}")
        return value

    def number(self, value: Any, field: str) -> float:
        """A finite number; booleans are none."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(field, f"must be a number, got {_show(value)}")
        if not math.isfinite(value):
            self.fail(field, f"must be finite, got {value}")
        return float(value)

    def sequence(self, value: Any, field: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail(field, f"must be a list, got {_show(value)}")
        return value

    def mapping(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(field, f"must be a mapping, got {_show(value)}")
        return value

    def times(self, values: Any, field: str) -> list[float]:
        """Finite, non-negative, non-decreasing seconds."""
        times = [
            self.number(v, f"{field}[{i}]") for i, v in enumerate(self.sequence(values, field))
        ]
        for index, time in enumerate(times):
            if time < 0:
                self.fail(f"{field}[{index}]", f"must not be negative, got {time:g}")
            if index and time < times[index - 1]:
                self.fail(
                    f"{field}[{index}]", f"goes back in time: {time:g} after {times[index - 1]:g}"
                )
        return times

    def texts(self, values: Any, field: str) -> tuple[str, ...]:
        entries = enumerate(self.sequence(values, field))
        return tuple(self.text(value, f"{field}[{index}]") for index, value in entries)

    def span(self, value: Any, field: str) -> tuple[float, float]:
        """[start, end] in seconds, end not before start."""
        if len(self.sequence(value, field)) != 2:
            self.fail(field, f"must be [start, end], got {_show(value)}")
        start, end = (self.number(v, f"{field}[{i}]") for i, v in enumerate(value))
        if end < start:
            self.fail(field, f"ends at {end:g} s, before it starts at {start:g} s")
        return start, end

    def windows(self, values: Any, field: str) -> tuple[Window, ...]:
        """Reply windows from ``[{content, question, reply_timespan, related_timespan?}]``."""
        windows = []
        for index, raw in enumerate(self.sequence(values, field)):
            at = f"{field}[{index}]"
            entry = self.mapping(raw, at)
            start, end = self.span(entry.get("reply_timespan"), f"{at}.reply_timespan")
            event = entry.get("related_timespan")
            windows.append(
                Window(
                    start,
                    end,
                    self.text(entry.get("question"), f"{at}.question"),
                    self.text(entry.get("content"), f"{at}.content"),
                    None if event is None else self.span(event, f"{at}.related_timespan")[1],
                )
            )
        return tuple(windows)

    def frame(self, value: Any, field: str, root: str | os.PathLike[str]) -> Frame:
        """A picture from a path, or from ``video#t=seconds``; relative paths start at ``root``."""
        path, time = self.text(value, field), None
        if not path:
            self.fail(field, "is an empty path")
        if match := _FRAGMENT.fullmatch(path):
            path = match["path"]
            try:
                time = float(match["time"])
            except ValueError:
                self.fail(field, f"needs #t=seconds, got {value!r}")
            if not (math.isfinite(time) and time >= 0):
                self.fail(field, f"the time must be finite and not negative, got {value!r}")
        return Frame(os.path.normpath(os.path.join(root, path)), time)

    def conversation(
        self, messages: Any, field: str, images: Sequence[Frame], *, last: str
    ) -> tuple[str | None, list[UserTurn], list[str]]:
        """Splits chat messages: an optional system turn, then user and assistant in alternation.

        Pictures are taken from ``images`` in the order of the placeholders, every one of them.

        Args:
          last: role of the last message, "user" or "assistant".

        Returns:
          (system text or None, user turns, replies).
        """
        system: str | None = None
        users: list[UserTurn] = []
        replies: list[str] = []
        used = 0
        for index, raw in enumerate(self.sequence(messages, field)):
            at = f"{field}[{index}]"
            message = self.mapping(raw, at)
            role, content = message.get("role"), message.get("content")
            if index == 0 and role == "system":
                system = self.text(content, f"{at}.content")
                continue
            expected = "user" if len(users) == len(replies) else "assistant"
            if role != expected:
                self.fail(f"{at}.role", f"must be {expected!r} here, got {role!r}")
            if role == "user":
                users.append(self._user_turn(content, f"{at}.content", images[used:]))
                used += len(users[-1][0])
            else:
                replies.append(self.text(content, f"{at}.content"))
        if not users or last != ("assistant" if len(users) == len(replies) else "user"):
            self.fail(field, f"must end with a message of the {last}")
        if used != len(images):
            self.fail("images", f"holds {len(images)} pictures for {used} <image>s in {field}")
        return system, users, replies

    def _user_turn(self, content: Any, field: str, images: Sequence[Frame]) -> UserTurn:
        """Pictures for the leading placeholders, and the text after the last of them.

        Blanks between placeholders are dropped.
        """
        *before, text = self.text(content, field).split(PLACEHOLDER)
        if any(part.strip() for part in before):
            self.fail(field, "has text before an <image>; the pictures of a turn come first")
        if len(before) > len(images):
            self.fail("images", f"{field} has {len(before)} <image>s, {len(images)} pictures left")
        return tuple(images[: len(before)]), text


def image_reference(frame: Frame, root: str | os.PathLike[str]) -> str:
    """The inverse of ``Fields.frame``: a path relative to ``root`` where it lies below it."""
    path = Path(frame.path)
    text = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    if frame.time is not None:
        return f"{text}#t={frame.time!r}"
    if _FRAGMENT.fullmatch(text):
        raise InputError("an image file whose name ends in #t=... cannot be written", file=text)
    return text


def user_content(frames: Sequence[Frame], text: str) -> str:
    """The inverse of what ``Fields.conversation`` does to a user turn."""
    return PLACEHOLDER * len(frames) + text


def answer_entries(windows: Sequence[Window]) -> list[dict[str, Any]]:
    """The inverse of ``Fields.windows``."""
    return [
        {
            "role": "assistant",
            "content": window.answer,
            "question": window.question,
            "reply_timespan": [window.start, window.end],
            "related_timespan": None
            if window.event_end is None
            else [min(window.start, window.event_end), window.event_end],
        }
        for window in windows
    ]


def _show(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
