"""Writes small real media files whose sound is beeps at known times."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from video_files import grey

BEEP = 0.1  # s
LOUD = 0.5


def beeps(
    seconds: float, starts: Sequence[float], *, rate: int = 48000, tone: float = 1000.0
) -> np.ndarray:
    """float64[seconds * rate]: sine bursts of ``BEEP`` seconds, silence between them."""
    time = np.arange(round(seconds * rate)) / rate
    on = np.zeros(len(time), bool)
    for start in starts:
        on |= (time >= start) & (time < start + BEEP)
    return np.where(on, LOUD * np.sin(2 * np.pi * tone * time), 0.0)


def onsets(samples: np.ndarray, rate: int = 16000) -> list[float]:
    """When the bursts begin, seconds: where the envelope first passes half of the full level."""
    width = rate // 500
    envelope = np.convolve(np.abs(samples), np.ones(width) / width, "same") > LOUD / np.pi
    quiet = int(0.02 * rate)
    begins = np.flatnonzero(envelope & ~np.concatenate([[False], envelope[:-1]]))
    return [i / rate for i in begins if not envelope[max(0, i - quiet) : i].any()]


def write_sound(
    path: Path,
    samples: np.ndarray,
    *,
    rate: int = 48000,
    codec: str = "pcm_s16le",
    layout: str = "mono",
    delay: float = 0.0,
    video_seconds: float = 0.0,
    video_delay: float = 0.0,
    options: dict[str, str] | None = None,
) -> Path:
    """Encodes float samples [n] or [channels, n], ``delay`` seconds late, beside grey frames."""
    channels = np.atleast_2d(samples)
    with av.open(str(path), "w", options=options or {}) as out:
        video = None
        if video_seconds:
            video = out.add_stream("libx264" if path.suffix == ".mp4" else "libvpx-vp9", rate=10)
            video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = out.add_stream(codec, rate=rate, layout=layout)
        if video is not None:
            for index in range(round(video_seconds * 10)):
                frame = av.VideoFrame.from_ndarray(grey(index), format="rgb24")
                frame.pts, frame.time_base = index + round(10 * video_delay), Fraction(1, 10)
                out.mux(video.encode(frame))
            out.mux(video.encode())
        planar = sound.codec_context.format.name
        resampler = av.AudioResampler(planar, layout, rate)
        block = sound.codec_context.frame_size or 1024
        for start in range(0, channels.shape[1], block):
            data = np.ascontiguousarray(channels[:, start : start + block], np.float32)
            frame = av.AudioFrame.from_ndarray(data, "fltp", layout)
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = start + round(delay * rate)
            for ready in resampler.resample(frame):
                out.mux(sound.encode(ready))
        out.mux(sound.encode())
    return path
