"""Writes small real video files whose frames tell their number by their grey level."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

STEP = 4  # grey levels between frames, above what the codecs lose
CYCLE = 50


def level(index: int) -> int:
    return 20 + STEP * (index % CYCLE)


def grey(index: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    """Frame ``index``, uint8[H, W, 3]; ``size`` is (width, height)."""
    return np.full((size[1], size[0], 3), level(index), np.uint8)


def numbers(frames: np.ndarray) -> list[int]:
    """The frames' numbers modulo ``CYCLE``, read from their mean grey level."""
    return [round((float(frame.mean()) - 20) / STEP) for frame in frames]


def write_video(
    path: Path,
    frames: int | Sequence[np.ndarray],
    *,
    rate: int = 10,
    pts: Sequence[int] | None = None,
    clock: Fraction | None = None,
    codec: str = "libx264",
    gop: int = 20,
    b_frames: int = 0,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    format: str | None = None,
    rotation: int | None = None,
    matrix: Sequence[int] | None = None,
    audio_seconds: float = 0.0,
    file: object = None,
) -> Path:
    """Encodes frames (or that many grey ones) at ``rate``, or at ``pts`` ticks of ``clock``."""
    pictures = [grey(i) for i in range(frames)] if isinstance(frames, int) else frames
    height, width = pictures[0].shape[:2]
    with av.open(file or str(path), "w", format=format, options=container or {}) as out:
        stream = out.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuv444p" if (width | height) % 2 else "yuv420p"
        stream.codec_context.gop_size = gop
        if b_frames:
            stream.codec_context.max_b_frames = b_frames
        if clock is not None:
            stream.codec_context.time_base = clock
        if rotation is not None:
            stream.set_display_rotation(rotation)
        if matrix is not None:
            stream.set_display_matrix(matrix)
        sound = out.add_stream("aac", rate=16000) if audio_seconds else None
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index if pts is None else pts[index]
            if clock is not None:
                frame.time_base = clock
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
        if sound is not None:
            write_silence(out, sound, audio_seconds)
    return path


def write_audio(path: Path, seconds: float) -> Path:
    """A file with sound and no picture."""
    with av.open(str(path), "w") as out:
        write_silence(out, out.add_stream("aac", rate=16000), seconds)
    return path


def write_silence(out, stream, seconds: float) -> None:
    for start in range(0, int(seconds * 16000), 1024):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = 16000, start
        out.mux(stream.encode(frame))
    out.mux(stream.encode())
