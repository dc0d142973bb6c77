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
    if frame_interval <= 0 or frames_per_turn < 1:
        raise InputError("must be above 0", field="frame_interval or frames_per_turn")
    info = probe(path)
    if sound and not info.has_audio:
        raise InputError("has no audio track", file=path, field="sound")
    duration = info.duration
    end = duration if end is None else min(end, duration)
    span = frame_interval * frames_per_turn
    count = math.floor((end - start) / span + 1e-6)
    if start < 0 or count < 1:
        raise InputError(
            f"{start:g} s to {end:g} s of a {duration:.2f} s video holds no turn of {span:g} s",
            file=path,
        )
    texts: dict[int, list[str]] = {}
    for question in sorted(questions, key=lambda q: q.time):
        turn = math.floor((question.time - start) / span + 1e-6)
        if not 0 <= turn < count:
            last = start + count * span
            raise InputError(
                f"asked at {question.time:g} s, outside of {start:g} s to {last:g} s",
                file=path,
                field="question",
            )
        texts.setdefault(turn, []).append(question.text)
    turns = tuple(
        Turn(
            frames=tuple(
                Frame(os.fspath(path), min(start + (k * frames_per_turn + f) * frame_interval, end))
                for f in range(1, frames_per_turn + 1)
            ),
            text="\n".join(texts.get(k, [])),
            time=start + (k + 1) * span,
            video=video,
            audio=Sound(os.fspath(path), start + k * span, start + (k + 1) * span)
            if sound
            else None,
        )
        for k in range(count)
    )
    return Dialogue(id=os.path.basename(path), turns=turns, system=system)
