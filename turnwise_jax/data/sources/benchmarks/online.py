"""What the readers of online video benchmarks share: times, tables, streams and looks back."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise_jax.data.clip import Question as Said
from turnwise_jax.data.clip import stream_turns
from turnwise_jax.data.records import ClipSpec, Dialogue, Question, Target, Turn
from turnwise_jax.data.sources.benchmarks import common
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.json_lines import UNREADABLE
from turnwise_jax.data.sources.qa import Media, one_turn
from turnwise_jax.data.video import VideoInfo, probe
from turnwise_jax.errors import InputError

# the Qwen chat template's own: official scripts give none, and the streaming default of this
# library would tell a model that is asked once to stay silent
PLAIN_SYSTEM = "You are a helpful assistant."
_CLOCK = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)")
_CLOSE = 1e-6  # s


def table(
    path: common.FilePath, user_turns: common.FilePath | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 0, row) of a ``.csv`` file with a header line, else of ``common.records``.

    Raises:
      InputError: missing or unreadable file, or ``user_turns`` is given.
    """
    if Path(path).suffix.lower() != ".csv":
        yield from enumerate(common.records(path, user_turns))
        return
    common.refuse_user_turns(user_turns)
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            for number, row in enumerate(csv.DictReader(lines)):
                more = row.pop(None, [])
                if any(more):  # a comma without quotes moves all after it into wrong columns
                    row = {UNREADABLE: f"has {len(more)} values more than the header"}
                yield number, row
    except FileNotFoundError as error:
        raise InputError("no such file", file=path) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not readable as CSV: {error}", file=path) from error


def seconds(fields: Fields, value: Any, field: str) -> float:
    """Seconds from a number, or from text: ``95``, ``1:35``, ``00:01:35``. Not negative."""
    if isinstance(value, str):
        match = _CLOCK.fullmatch(value.strip())
        if not match:
            fields.fail(field, f"must be seconds, m:ss or hh:mm:ss, got {value!r}")
        hours, minutes, rest = (float(part) for part in match.groups(default="0"))
        return fields.number(3600 * hours + 60 * minutes + rest, field)
    time = fields.number(value, field)
    if time < 0:
        fields.fail(field, f"must not be negative, got {time:g}")
    return time


def seconds_list(fields: Fields, value: Any, field: str) -> list[float]:
    """At least one time, from a list of them or from one alone."""
    if not isinstance(value, list):
        return [seconds(fields, value, field)]
    if not value:
        fields.fail(field, "holds no time")
    return [seconds(fields, entry, f"{field}[{index}]") for index, entry in enumerate(value)]


def stated(fields: Fields, value: Any, field: str) -> str:
    """Text that is not empty, or a whole number as text; of a list with one entry that entry."""
    if isinstance(value, list):
        if len(value) != 1:
            fields.fail(field, f"must hold one entry, got {len(value)}")
        value, field = value[0], f"{field}[0]"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return common.asked(fields, value, field)


def video_info(fields: Fields, path: str, field: str) -> VideoInfo:
    """What the video file says about itself; ``field`` named it."""
    try:
        return probe(path)
    except InputError as error:
        fields.fail(field, f"{path}: {error.message}")


def stream(
    fields: Fields,
    path: str,
    field: str,
    said: Sequence[Said],
    *,
    start: float,
    end: float,
    clip: ClipSpec | None,
) -> tuple[Turn, ...]:
    """The open turns of a stretch of video, to its end if that comes before ``end`` (seconds).

    Whole frame intervals that do not fill a last turn make a shorter one. What is said once no
    whole interval follows is heard by no turn and left out.
    """
    clip = clip or ClipSpec()
    info = video_info(fields, path, field)

    def turns(texts: Sequence[Said]) -> tuple[Turn, ...]:
        return stream_turns(
            path,
            texts,
            frame_interval=clip.interval,
            frames_per_turn=clip.turn_frames,
            start=start,
            end=min(end, info.duration),
            sound=clip.sound and info.has_audio,
            rest=True,
        )

    try:
        last = turns([])[-1].time
        return turns([entry for entry in said if entry.time < last - _CLOSE])
    except InputError as error:
        message = f"{path}: {error.message}"
    fields.fail(field, message)  # out here, since it is not the file that is broken


def looked_back(
    fields: Fields,
    path: str,
    field: str,
    *,
    start: float,
    end: float,
    time_field: str,
    clip: ClipSpec | None,
) -> Media:
    """The seconds ``start`` to ``end`` of a video, to its end if that comes first.

    Args:
      field: named the video; ``time_field`` the time of the look.
    """
    length = video_info(fields, path, field).duration
    if not start < min(end, length):
        fields.fail(
            time_field,
            f"nothing of {path} lies between {start:g} s and {end:g} s, it lasts {length:.2f} s",
        )
    return common.watched(fields, path, field, root="", clip=clip, span=(start, end))


def asked_once(
    fields: Fields, text: str, media: Media, target: Target, question: Question
) -> Dialogue:
    """One open turn after a look at a video, worded as the official script words it."""
    dialogue = one_turn(fields.record, question, text, media, PLAIN_SYSTEM, None, fields.file)
    return replace(dialogue, target=target)


def below(root: common.FilePath, candidates: Sequence[str]) -> str:
    """The first of the paths that exists below ``root``, else the first of all; joined to it."""
    return str(Path(root, common.found(root, candidates)))
