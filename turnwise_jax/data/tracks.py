"""One pass over the audio track of a file: what is heard in ranges of seconds.

Used by ``data.audio``. Ranges are cheap in rising order: what was decoded is kept as long as it is
needed, and longer jumps are made with a seek. Time 0 of a video file is its first frame.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import av
import numpy as np

from turnwise_jax.data.decoder import OPEN_OPTIONS, reported, video_streams
from turnwise_jax.data.video import first_frame_time, identity, probe
from turnwise_jax.errors import InputError

_SEEK_GAP = 5.0  # s; shorter jumps are decoded through
_WARM_UP = 0.3  # s that codecs need after a seek before they are exact
_JITTER = 0.02  # s; containers round timestamps, so smaller steps between frames are none
_EDGE = 0.05  # s of sound beyond both ends of a range, for the resampling filter
_GUESSED_TIMES = {"aac", "mp3"}  # formats whose clock is only right when read from the start


def track_seconds(path: str | os.PathLike[str]) -> float:
    """How long a file with an audio track lasts: a video its frames, a sound file its track.

    Raises:
      InputError: missing or unreadable, or without an audio track.
    """
    path = os.fspath(path)
    return _seconds(path, *identity(path))


class Track:
    """The first audio track of a file, mixed to one channel."""

    def __init__(self, path: str | os.PathLike[str]):
        """Opens the file.

        Raises:
          InputError: missing or unreadable, or without an audio track that can be decoded.
        """
        self._path = os.fspath(path)
        identity(self._path)
        self._container: av.container.InputContainer | None = None
        try:
            self._open()
            self._origin = self._first_time()
            self._restart()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Track:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = None

    def read(self, start: float, end: float, rate: int) -> np.ndarray:
        """See ``audio.read_audio``."""
        if not (math.isfinite(end) and 0 <= start < end):
            raise InputError(
                f"no sound from {start:g} s to {end:g} s: times start at 0 and rise",
                file=self._path,
            )
        count = round((end - start) * rate)
        shared = math.gcd(self._rate, rate)
        up, down = rate // shared, self._rate // shared
        edge = math.ceil(_EDGE * self._rate / down)  # in blocks of ``down``, which give ``up``
        first = round(start * self._rate) - edge * down
        last = first + math.ceil((count + 2 * edge * up) * down / up)
        heard = self._between(first, last)
        if up != down:
            from scipy.signal import resample_poly

            heard = resample_poly(heard, up, down, window=("kaiser", 8.0))
        skip = edge * up
        return np.ascontiguousarray(heard[skip : skip + count], np.float32)

    def _open(self) -> None:
        self.close()
        with reported(self._path, "sound"):
            self._container = av.open(self._path, options=OPEN_OPTIONS)
        if not self._container.streams.audio:
            raise InputError("has no audio track", file=self._path)
        self._stream = self._container.streams.audio[0]
        self._tick = self._stream.time_base or Fraction(1, 90_000)

    def _first_time(self) -> float:
        """Seconds on the container's clock that are second 0 of this file."""
        if video_streams(self._container):
            return first_frame_time(self._path)
        first = next(self._frames(), None)
        if first is None:
            raise InputError("no sound can be decoded", file=self._path)
        self._open()
        return float(first.pts * self._tick) if first.pts is not None else 0.0

    def _restart(self) -> None:
        """Back to the first sample of the track."""
        self._open()
        self._decoded = self._frames()
        first = next(self._decoded, None)
        if first is None:
            raise InputError("no sound can be decoded", file=self._path)
        self._rate = first.sample_rate
        self._kept: list[tuple[int, np.ndarray]] = []
        self._done = self._index(first, 0)
        self._from = -(2**62)  # nothing is heard before the first sample
        self._over = False
        self._keep(first)

    def _between(self, first: int, last: int) -> np.ndarray:
        """Samples first..last-1 of the track's own rate, float32, silence where it has none."""
        ahead = not self._over and first > self._done + _SEEK_GAP * self._rate
        if ahead or first < self._from:
            self._go(first)
        self._kept = [(at, own) for at, own in self._kept if at + len(own) > first]
        self._from = first
        while self._done < last and not self._over:
            frame = self._next(last)
            if frame is not None:
                self._keep(frame)
        out = np.zeros(last - first, np.float32)
        for at, own in self._kept:
            begin, end = max(at, first), min(at + len(own), last)
            if begin < end:
                out[begin - first : end - first] = own[begin - at : end - at]
        return out

    def _go(self, first: int) -> None:
        """Makes ``first`` one of the next samples to be read, by a seek where that pays."""
        target = first / self._rate - _WARM_UP
        seeks = target > 0 and self._container.format.name not in _GUESSED_TIMES
        if seeks and self._sought(target, first):
            return
        if seeks or first < self._from:
            self._restart()

    def _sought(self, target: float, first: int) -> bool:
        """Seeks to ``target`` seconds; False if what is decoded there begins after ``first``."""
        self._kept, self._over = [], False
        try:
            offset = math.floor((target + self._origin) / self._tick)
            self._container.seek(offset, stream=self._stream)
            self._decoded = self._frames()
            frame = next(self._decoded, None)
        except (av.FFmpegError, OSError, InputError):
            return False
        if frame is None or frame.pts is None:
            return False
        self._done = self._index(frame, 0)
        if self._done > first:
            return False
        self._keep(frame)
        return True

    def _next(self, last: int) -> av.AudioFrame | None:
        """The next frame; None at the end, which may not come before the file says it does."""
        frame = next(self._decoded, None)
        if frame is None:
            self._over = True
            self._check_end(last)
        return frame

    def _check_end(self, last: int) -> None:
        if not self._stream.duration:
            return
        begin = float((self._stream.start_time or 0) * self._tick) - self._origin
        announced = begin + float(self._stream.duration * self._tick)
        end = self._done / self._rate
        if min(announced, last / self._rate) > end + 1:
            raise InputError(
                f"the sound ends at {end:g} s although its header says {announced:g} s; "
                "it may be cut off",
                file=self._path,
            )

    def _index(self, frame: av.AudioFrame, otherwise: int) -> int:
        """Number of a frame's first sample, counted from second 0."""
        if frame.pts is None:
            return otherwise
        return round((float(frame.pts * self._tick) - self._origin) * self._rate)

    def _keep(self, frame: av.AudioFrame) -> None:
        if frame.sample_rate != self._rate:
            raise InputError(
                f"changes from {self._rate} to {frame.sample_rate} samples a second",
                file=self._path,
            )
        at = self._index(frame, self._done)
        if abs(at - self._done) <= _JITTER * self._rate:
            at = self._done
        own = _mono(frame)
        self._kept.append((at, own))
        self._done = at + len(own)

    def _frames(self) -> Iterator[av.AudioFrame]:
        try:
            yield from self._container.decode(self._stream)
        except (av.FFmpegError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"the sound cannot be decoded: {reason}", file=self._path) from error


@lru_cache(maxsize=4096)
def _seconds(path: str, mtime: int, size: int) -> float:
    with reported(path, "sound"), av.open(path, options=OPEN_OPTIONS) as container:
        if not container.streams.audio:
            raise InputError("has no audio track", file=path)
        if video_streams(container):
            return probe(path).duration
        stream = container.streams.audio[0]
        # Packets tell the length exactly; headers of some formats guess it from the bit rate.
        ends = [
            (packet.pts, packet.pts + (packet.duration or 0))
            for packet in container.demux(stream)
            if packet.pts is not None
        ]
        if not ends:
            raise InputError("no sound can be decoded", file=path)
        return float((max(end for _, end in ends) - min(ends)[0]) * stream.time_base)


def _mono(frame: av.AudioFrame) -> np.ndarray:
    """Mean of the channels, float32[n], full scale 1."""
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    mixed = values.mean(axis=0, dtype=np.float64)
    if values.dtype == np.uint8:
        mixed = (mixed - 128) / 128
    elif values.dtype.kind == "i":
        mixed = mixed / 2.0 ** (8 * values.dtype.itemsize - 1)
    return mixed.astype(np.float32)
