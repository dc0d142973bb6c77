"""Checked access to raw records: every complaint names file, record and field."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from turnwise_jax.data.records import Frame, Sound, Turn, Window
from turnwise_jax.errors import InputError

PLACEHOLDER = "<image>"
SOUND_PLACEHOLDER = "<audio>"  # only in records that have sounds
_LONGEST = 400  # characters of a message
_IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
_FRAGMENT = re.compile(r"(?P<path>.+)#t=(?P<time>[^#]*)")


class UserTurn(NamedTuple):
    """Pictures first, then at most one sound, then text."""

    frames: tuple[Frame, ...]
    text: str
    sound: Sound | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads fields of one record. ``field`` arguments are paths such as ``images[3].path``."""

    file: str
    record: str

    def fail(self, field: str, message: str) -> NoReturn:
        if len(message) > _LONGEST:
            half = _LONGEST // 2
            message = f"{message[: half - 3]}...{message[-half:]}"
        raise InputError(message, file=self.file, record=self.record, field=field)

    def text(self, value: Any, field: str) -> str:
        if not isinstance(value, str):
            self.fail(field, f"must be text, got {_show(value)}")
        if not writable(value):
            self.fail(field, f"holds half a surrogate pair, got {value[:60]!a}")
        return value

    def number(self, value: Any, field: str) -> float:
        """A finite number; booleans are none."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(field, f"must be a number, got {_show(value)}")
        try:
            number = float(value)
        except OverflowError:  # a whole number that no float can hold
            number = math.inf
        if not math.isfinite(number):
            self.fail(field, f"must be finite, got {number}")
        return number

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
        """A picture from a path, or from ``video#t=seconds``; relative paths start at ``root``.

        Behind the name of an image file the seconds say when its video showed it.
        """
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
        path = os.path.normpath(os.path.join(root, path))
        return Frame(path, None, time) if _is_image(path) else Frame(path, time)

    def sound(self, value: Any, field: str, root: str | os.PathLike[str]) -> Sound:
        """A sound from ``file#t=start,end`` in seconds; relative paths start at ``root``."""
        match = _FRAGMENT.fullmatch(self.text(value, field))
        try:
            start, end = (float(part) for part in match["time"].split(",")) if match else ()
        except ValueError:
            self.fail(field, f"needs file#t=start,end in seconds, got {value!r}")
        if not (math.isfinite(end) and 0 <= start < end):
            self.fail(field, f"the times must rise from 0, got {value!r}")
        return Sound(os.path.normpath(os.path.join(root, match["path"])), start, end)

    def conversation(
        self,
        messages: Any,
        field: str,
        images: Sequence[Frame],
        sounds: Sequence[Sound] = (),
        *,
        last: str,
    ) -> tuple[str | None, list[UserTurn], list[str]]:
        """Splits chat messages: an optional system turn, then user and assistant in alternation.

        Pictures are taken from ``images`` and sounds from ``sounds`` in the order of the
        placeholders, every one of them.

        Args:
          last: role of the last message, "user" or "assistant".

        Returns:
          (system text or None, user turns, replies).
        """
        system: str | None = None
        users: list[UserTurn] = []
        replies: list[str] = []
        used = heard = 0
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
                turn = self._user_turn(content, f"{at}.content", images[used:])
                if sounds:
                    turn = self._with_sound(turn, f"{at}.content", sounds[heard:])
                users.append(turn)
                used += len(turn.frames)
                heard += turn.sound is not None
            else:
                replies.append(self.text(content, f"{at}.content"))
        if not users or last != ("assistant" if len(users) == len(replies) else "user"):
            self.fail(field, f"must end with a message of the {last}")
        if used != len(images):
            self.fail("images", f"holds {len(images)} pictures for {used} <image>s in {field}")
        if heard != len(sounds):
            self.fail("audios", f"holds {len(sounds)} sounds for {heard} <audio>s in {field}")
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
        return UserTurn(tuple(images[: len(before)]), text)

    def _with_sound(self, turn: UserTurn, field: str, sounds: Sequence[Sound]) -> UserTurn:
        """The turn with the sound of its placeholder, which stands before the text."""
        before, placeholder, text = turn.text.partition(SOUND_PLACEHOLDER)
        if not placeholder:
            return turn
        if before.strip() or SOUND_PLACEHOLDER in text:
            self.fail(field, "a turn has at most one <audio>, between pictures and text")
        if not sounds:
            self.fail("audios", f"{field} has an <audio>, no sound is left")
        return UserTurn(turn.frames, text, sounds[0])


def writable(text: str) -> bool:
    """Whether a file can hold a text: half a surrogate pair, which JSON can spell, it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_image(path: str) -> bool:
    return Path(path).suffix.lower() in _IMAGES


def image_reference(frame: Frame, root: str | os.PathLike[str]) -> str:
    """The inverse of ``Fields.frame``: a path relative to ``root`` where it lies below it."""
    path = Path(frame.path)
    text = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    if frame.second is not None:
        if (frame.time is None) != _is_image(text):
            kind = "an image" if frame.time is None else "a video"
            raise InputError(f"{kind} of that name cannot be written with its time", file=text)
        return f"{text}#t={frame.second!r}"
    if _FRAGMENT.fullmatch(text):
        raise InputError("an image file whose name ends in #t=... cannot be written", file=text)
    return text


def sound_reference(sound: Sound, root: str | os.PathLike[str]) -> str:
    """The inverse of ``Fields.sound``: a path relative to ``root`` where it lies below it."""
    path = Path(sound.path)
    text = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return f"{text}#t={sound.start!r},{sound.end!r}"


def user_content(turn: Turn) -> str:
    """The inverse of what ``Fields.conversation`` does to a user turn."""
    sound = SOUND_PLACEHOLDER if turn.audio else ""
    return PLACEHOLDER * len(turn.frames) + sound + turn.text


def check_writable(fields: Fields, turns: Sequence[Turn]) -> None:
    """Refuses what user turns with placeholders cannot hold."""
    sounds = any(turn.audio for turn in turns)
    for index, turn in enumerate(turns):
        if turn.video or PLACEHOLDER in turn.text:
            fields.fail(f"turns[{index}]", "this format holds no video turns and no text <image>")
        if sounds and SOUND_PLACEHOLDER in turn.text:
            fields.fail(f"turns[{index}]", "a record with sounds holds no text <audio>")


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
