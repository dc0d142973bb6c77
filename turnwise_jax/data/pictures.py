"""Frames by name, for judges that look: requests hold texts, pictures are made when one is sent."""

from __future__ import annotations

from turnwise_jax.data.jpeg import jpeg_frames
from turnwise_jax.data.records import Dialogue, Frame


def reference(frame: Frame) -> str:
    """A frame as text: its path, with ``#t=seconds`` if it is of a video."""
    return frame.path if frame.time is None else f"{frame.path}#t={frame.time:g}"


def referred(text: str) -> bytes:
    """The frame that :func:`reference` named, as JPEG.

    Raises:
      InputError: an unreadable file or a time outside of the video.
    """
    path, mark, time = text.rpartition("#t=")
    return jpeg_frames([Frame(path, float(time)) if mark else Frame(text)])[0]


def references(dialogue: Dialogue) -> tuple[str, ...]:
    """References of all of a dialogue's frames, in order."""
    return tuple(reference(frame) for turn in dialogue.turns for frame in turn.frames)
