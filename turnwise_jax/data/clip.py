"""Any video file as a streaming dialogue with open turns."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.data.video import probe
from turnwise_jax.errors import InputError


class Question(NamedTuple):
    """What the user asks and after how many seconds of video."""

    text: str
    time: float = 0.0


def clip_dialogue(
    path: str | os.PathLike[str],
    questions: Sequence[Question],
    *,
    frame_interval: float = 2.0,
    frames_per_turn: int = 2,
    start: float = 0.0,
    end: float | None = None,
    system: str | None = None,
    sound: bool = False,
    video: bool = False,
) -> Dialogue:
    """A decision every ``frames_per_turn * frame_interval`` seconds of the video.

    A frame ends its interval: the last one of a turn shows what is on screen when the policy
    decides. A question is part of the first turn that ends after its time. What does not fill a
    last turn is left out.

    Args:
      path: a video file.
      questions: at least one.
      frame_interval: seconds between frames (MMDuet2: 2).
      frames_per_turn: frames shown before each decision (MMDuet2: 2).
      start, end: part of the video, seconds from its first frame; ``end`` None is its end.
      sound: every turn also plays what the file's audio track has since the turn before.
      video: the frames of a turn are one video instead of separate images.

    Raises:
      InputError: an unreadable video, a range without a single turn, a question outside of it, no
        audio track for ``sound``.
    """
    if not questions:
        raise InputError("at least one question is needed", field="question")
    info = probe(path)
    if sound and not info.has_audio:
        raise InputError("has no audio track", file=path, field="sound")
    turns = stream_turns(
        path,
        questions,
        frame_interval=frame_interval,
        frames_per_turn=frames_per_turn,
        start=start,
        end=info.duration if end is None else min(end, info.duration),
        sound=sound,
        video=video,
    )
    return Dialogue(id=os.path.basename(path), turns=turns, system=system)


def stream_turns(
    path: str | os.PathLike[str],
    said: Sequence[Question],
    *,
    frame_interval: float,
    frames_per_turn: int,
    start: float,
    end: float,
    sound: bool = False,
    video: bool = False,
    rest: bool = False,
) -> tuple[Turn, ...]:
    """The open turns of a stretch of video, ``start`` to ``end`` seconds; opens no file.

    Args:
      said: what the user says; each text is part of the first turn that ends after its time.
      rest: whole frame intervals that do not fill a last turn make a shorter one.
      others: as in :func:`clip_dialogue`.

    Raises:
      InputError: a range without a single turn, something said outside of it.
    """
    if not 0 < frame_interval < math.inf or frames_per_turn < 1:
        raise InputError("must be above 0 and finite", field="frame_interval or frames_per_turn")
    span = frame_interval * frames_per_turn
    frames = math.floor((end - start) / frame_interval + 1e-6)
    if not rest:
        frames -= frames % frames_per_turn
    if start < 0 or frames < 1:
        needed = f"frame of {frame_interval:g} s" if rest else f"turn of {span:g} s"
        raise InputError(f"{start:g} s to {end:g} s holds no {needed}", file=path)
    last = start + frames * frame_interval
    texts: dict[int, list[str]] = {}
    for text, time in sorted(said, key=lambda entry: entry.time):
        if not start - 1e-6 <= time < last - 1e-6:
            message = f"said at {time:g} s, outside of {start:g} s to {last:g} s"
            raise InputError(message, file=path, field="question")
        texts.setdefault(math.floor((time - start) / span + 1e-6), []).append(text)
    turns = []
    for k, first in enumerate(range(0, frames, frames_per_turn)):
        shown = range(first + 1, min(first + frames_per_turn, frames) + 1)
        begin, finish = start + first * frame_interval, start + shown[-1] * frame_interval
        turns.append(
            Turn(
                frames=tuple(
                    Frame(os.fspath(path), min(start + f * frame_interval, end)) for f in shown
                ),
                text="\n".join(texts.get(k, [])),
                time=finish,
                video=video,
                audio=Sound(os.fspath(path), begin, finish) if sound else None,
            )
        )
    return tuple(turns)
