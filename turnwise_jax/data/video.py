"""Frames of video and image files: what is on screen at a given time.

Time 0 is the first frame that can be decoded. Ten frames of an hour cost ten short runs, not the
hour. Every failure is one ``InputError`` that names the file and, where it applies, the time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from turnwise_jax.data.decoder import Reader
from turnwise_jax.errors import InputError


class VideoInfo(NamedTuple):
    """What a video file says about itself.

    ``duration``: seconds from the first frame to the end of the last. ``fps``: mean frames per
    second. ``width``, ``height``: pixels as shown, rotation applied. ``rotation``: degrees that
    the file asks to turn its pictures by, counter-clockwise, 0..359.
    """

    duration: float
    fps: float
    width: int
    height: int
    rotation: int
    has_audio: bool


def probe(path: str | os.PathLike[str]) -> VideoInfo:
    """Describes a video file, decoding one frame.

    Raises:
      InputError: missing, unreadable, not a video, or without a frame that can be decoded.
    """
    path = os.fspath(path)
    return _probe(path, *identity(path))


def first_frame_time(path: str | os.PathLike[str]) -> float:
    """When the first frame is shown, seconds on the container's own clock: our time 0.

    Raises:
      InputError: as ``probe``.
    """
    path = os.fspath(path)
    return _first_frame_time(path, *identity(path))


def read_frames(path: str | os.PathLike[str], times: Sequence[float]) -> np.ndarray:
    """The frames on screen at ``times``.

    Args:
      times: seconds from the first frame, in any order, repeats allowed.

    Returns:
      uint8[F, H, W, 3], RGB, rotation applied, in the order of ``times``. A frame is on screen
      from its timestamp (half a clock tick earlier, to absorb rounding) until the next one's; the
      last stays one frame interval longer than its own.

    Raises:
      InputError: missing, corrupt or empty file, or no frame at one of the times.
    """
    frames: list[np.ndarray | None] = [None] * len(times)
    for index, frame in iter_frames(path, times):
        frames[index] = frame
    if not frames:
        info = probe(path)
        return np.empty((0, info.height, info.width, 3), np.uint8)
    return np.stack(frames)


def iter_frames(
    path: str | os.PathLike[str], times: Sequence[float]
) -> Iterator[tuple[int, np.ndarray]]:
    """Like ``read_frames``, one frame at a time: (index into ``times``, uint8[H, W, 3]).

    Frames come in order of time in one pass over the file, so a caller that shrinks each one at
    once never holds a whole clip.
    """
    path = os.fspath(path)
    identity(path)
    times = [float(time) for time in times]
    for time in times:
        if not (math.isfinite(time) and time >= 0):
            raise InputError(f"no frame at t={time:g} s: times start at 0", file=path)
    if not times:
        return
    with Reader(path) as reader:
        shown, pixels = None, None
        for index in sorted(range(len(times)), key=times.__getitem__):
            frame = reader.at(times[index])
            if pixels is None or frame is not shown:
                shown, pixels = frame, reader.pixels(frame)
            yield index, pixels


def read_image(path: str | os.PathLike[str]) -> np.ndarray:
    """An image file as uint8[H, W, 3].

    The camera's orientation tag is applied; palettes and greys become RGB, transparency is
    dropped, 16-bit greys keep their upper byte, animations give their first picture.

    Raises:
      InputError: missing, empty or not an image.
    """
    path = os.fspath(path)
    identity(path)
    try:
        with Image.open(path) as image:
            return np.array(_as_rgb(ImageOps.exif_transpose(image)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"not readable as an image: {error}", file=path) from error


def image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(height, width) that ``read_image`` will give, from the file's header.

    Raises:
      InputError: missing, empty or not an image.
    """
    path = os.fspath(path)
    identity(path)
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"not readable as an image: {error}", file=path) from error
    return (width, height) if turned else (height, width)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def identity(path: str) -> tuple[int, int]:
    """(modification time, size) of a file that exists and is not empty."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise InputError("no such file", file=path) from error
    if os.path.isdir(path):
        raise InputError("is a directory, not a media file", file=path)
    if status.st_size == 0:
        raise InputError("the file is empty", file=path)
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _probe(path: str, mtime: int, size: int) -> VideoInfo:
    with Reader(path) as reader:
        height, width = reader.shape
        return VideoInfo(
            reader.duration(), reader.fps, width, height, reader.rotation, reader.has_audio
        )


@lru_cache(maxsize=4096)
def _first_frame_time(path: str, mtime: int, size: int) -> float:
    with Reader(path) as reader:
        return reader.origin
