"""Frames as JPEG files, the form in which endpoints take pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from turnwise_jax.data.records import Frame
from turnwise_jax.data.video import iter_frames, read_image


def jpeg_frames(frames: Sequence[Frame], *, side: int = 448, quality: int = 85) -> list[bytes]:
    """JPEG files of frames, in order; each video is read once.

    Args:
      side: pixels of the longer side at most; larger frames are shrunk.
      quality: 1 to 95.

    Raises:
      InputError: a file that cannot be read, or no frame at a time.
    """
    pictures: list[bytes] = [b""] * len(frames)
    videos: dict[str, list[int]] = {}
    for index, frame in enumerate(frames):
        if frame.time is None:
            pictures[index] = jpeg(read_image(frame.path), side=side, quality=quality)
        else:
            videos.setdefault(frame.path, []).append(index)
    for path, indices in videos.items():
        times = [time for i in indices if (time := frames[i].time) is not None]
        for position, pixels in iter_frames(path, times):
            pictures[indices[position]] = jpeg(pixels, side=side, quality=quality)
    return pictures


def jpeg(frame_HWC: np.ndarray, *, side: int = 448, quality: int = 85) -> bytes:
    """A JPEG file of uint8[H, W, 3], shrunk to `side` pixels of its longer side if it is larger."""
    image = Image.fromarray(np.ascontiguousarray(frame_HWC))
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()
