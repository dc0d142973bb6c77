"""One forward pass over the video stream of a file: the frame on screen at rising times.

Time 0 is the first frame that can be decoded, whatever the container's clock says. Jumps are made
with a seek to a key frame at or before the wanted time; where key frames are rare the pass decodes
through instead. Used by ``data.video``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.stream import Disposition

from turnwise_jax.errors import InputError


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_THREADS = min(4, cores())
_MAX_SLACK = 5e-4  # s; most by which a frame's own timestamp may exceed the time it is shown at
_SEEK_GAP = 3.0  # s; shorter jumps are decoded through
OPEN_OPTIONS = {"fflags": "discardcorrupt"}  # a cut-off file ends at its last whole packet


class Shown(NamedTuple):
    """A decoded frame with the time it appears and the time it is due to be replaced, seconds."""

    start: float
    end: float
    frame: av.VideoFrame


class Reader:
    """One pass forward over the video stream of a file, with jumps where they pay."""

    def __init__(self, path: str):
        self._path = path
        self._container: av.container.InputContainer | None = None
        self._gap = _SEEK_GAP
        self._failure: Exception | None = None
        try:
            self._restart()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = None

    def at(self, time: float) -> av.VideoFrame:
        """The frame on screen at ``time``, which must not be before that of the last call."""
        if self._next is not None and self._seekable and time - self._next.start > self._gap:
            self._jump(time)
        while self._next is not None and self._next.start <= time + self._slack:
            self._shown, self._next = self._next, self._following(self._next)
        if self._next is None:
            self._check_end(time)
        return self._shown.frame

    def pixels(self, frame: av.VideoFrame) -> np.ndarray:
        """RGB pixels uint8[H, W, 3] at the size of the first frame, turned as the file asks."""
        width, height = self._stored_size
        with reported(self._path):
            stored = frame.to_ndarray(format="rgb24", width=width, height=height)
        return _turn(stored, self._matrix)

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) as shown."""
        width, height = self._stored_size
        return (width, height) if _is_sideways(self._matrix) else (height, width)

    def duration(self) -> float:
        """Seconds from the first frame to the end of the last one. Ends the pass."""
        if self._stream.duration:
            start = self._stream.start_time or 0
            return float((start + self._stream.duration) * self._tick) - self.origin
        for seek in (True, False):
            end = self._last_packet_end(seek)
            if end is not None:
                return end - self.origin
        return self._shown.end

    def _open(self) -> None:
        """Opens the file from its start."""
        self.close()
        self._failure = None
        with reported(self._path):
            self._container = av.open(self._path, options=OPEN_OPTIONS)
        streams = video_streams(self._container)
        if not streams:
            raise InputError("has no video stream", file=self._path)
        self._stream = streams[0]
        self._stream.thread_type = "AUTO"
        self._stream.codec_context.thread_count = _THREADS
        self._frames = self._container.decode(self._stream)

    def _restart(self) -> None:
        """Shows the first frame of the file."""
        self._open()
        first = self._decoded()
        if first is None:
            raise InputError("no frame can be decoded", file=self._path) from self._failure
        self._describe(first)
        self._shown = self._place(first, None)
        self._next = self._following(self._shown)

    def _describe(self, first: av.VideoFrame) -> None:
        """Takes clock, size and orientation from the stream and its first frame."""
        self._tick = self._stream.time_base or Fraction(1, 90_000)
        self._slack = min(float(self._tick) / 2, _MAX_SLACK)
        self._seekable = first.pts is not None
        self.origin = float(first.pts * self._tick) if self._seekable else 0.0
        self._stored_size = (first.width, first.height)
        self._matrix = _display_matrix(first)
        self.rotation = int(first.rotation) % 360
        self.has_audio = bool(self._container.streams.audio)
        rate = self._stream.average_rate if self._seekable else self._stream.guessed_rate
        self.fps = float(rate or self._stream.guessed_rate or 25)

    def _decoded(self) -> av.VideoFrame | None:
        """The next frame of the decoder; None at the end or where decoding fails."""
        try:
            return next(self._frames, None)
        except (av.FFmpegError, OSError) as error:
            self._failure = error
            return None

    def _place(self, frame: av.VideoFrame, before: Shown | None) -> Shown:
        """Puts a frame on the time axis; without timestamps it follows the one before."""
        length = float(frame.duration * self._tick) if frame.duration else 1 / self.fps
        if frame.pts is not None:
            start = float(frame.pts * self._tick) - self.origin
        else:
            start = before.end if before else 0.0
        return Shown(start, start + length, frame)

    def _following(self, before: Shown) -> Shown | None:
        frame = self._decoded()
        return None if frame is None else self._place(frame, before)

    def _jump(self, time: float) -> None:
        """Goes to a key frame at or before ``time``; back to the start where none is found."""
        left, back = self._shown.start, 0.0
        while time - back > 0:
            landed = self._key_frame_before(time, time - back)
            if landed is not None:
                if landed.start <= left:  # key frames are rare here: seek only for longer jumps
                    self._gap = 2 * (time - landed.start)
                self._shown, self._next = landed, self._following(landed)
                return
            back = max(1.0, 2 * back)
        self._gap = math.inf
        self._restart()

    def _key_frame_before(self, time: float, target: float) -> Shown | None:
        """Seeks to ``target``; the first key frame there if it is not after ``time``."""
        self._failure = None
        try:
            offset = math.floor((target + self.origin) / self._tick)
            self._container.seek(offset, stream=self._stream)
        except (av.FFmpegError, OSError):
            return None
        self._frames = self._container.decode(self._stream)
        while (frame := self._decoded()) is not None:
            placed = self._place(frame, None)
            if frame.pts is None or placed.start > time + self._slack:
                return None
            if frame.key_frame:  # frames before it may lean on pictures that were not decoded
                return placed
        return None

    def _check_end(self, time: float) -> None:
        """Refuses a time that the last frame, held for one more interval, does not reach."""
        start, end, _ = self._shown
        if self._failure is not None:
            if time >= end:
                raise InputError(
                    f"no frame at t={time:g} s: decoding fails after {end:g} s: {self._failure}",
                    file=self._path,
                ) from self._failure
        elif time > end + 1.001 * (end - start) + self._slack:
            message = f"no frame at t={time:g} s: the video ends at {end:g} s"
            announced = float((self._stream.duration or 0) * self._tick)
            if announced > end + 1:
                message += f" although its header says {announced:g} s; it may be cut off"
            raise InputError(message, file=self._path)

    def _last_packet_end(self, seek: bool) -> float | None:
        """Largest end time among the packets from the last key frame (or the start) on."""
        self._open()
        ends: list[float] = []
        total = Fraction(0)
        try:
            if seek:
                if not self._container.duration:
                    return None
                self._container.seek(self._container.duration + (self._container.start_time or 0))
            for packet in self._container.demux(self._stream):
                if not packet.size:
                    continue
                length = packet.duration * self._tick if packet.duration else 1 / self.fps
                total += Fraction(length)
                if packet.pts is not None:
                    ends.append(float(packet.pts * self._tick + length))
        except (av.FFmpegError, OSError):
            pass
        if ends:
            return max(ends)
        return None if seek or not total else float(total)


def video_streams(container: av.container.InputContainer) -> list[av.VideoStream]:
    """The video streams of a file; a cover picture is none."""
    return [
        stream
        for stream in container.streams.video
        if not stream.disposition & Disposition.attached_pic
    ]


@contextmanager
def reported(path: str, kind: str = "video") -> Iterator[None]:
    """Turns what the decoder raises into a line that names the file."""
    try:
        yield
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read as a {kind}: {reason}", file=path) from error


def _display_matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """Signs (a, b, c, d) of the display matrix: shown x = a x + c y, shown y = b x + d y."""
    data = frame.side_data.get(SideDataType.DISPLAYMATRIX)
    if data is None:
        return 1, 0, 0, 1
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
    if max(abs(a), abs(d)) >= max(abs(b), abs(c)):
        return (-1 if a < 0 else 1), 0, 0, (-1 if d < 0 else 1)
    return 0, (-1 if b < 0 else 1), (-1 if c < 0 else 1), 0


def _is_sideways(matrix: tuple[int, int, int, int]) -> bool:
    return matrix[0] == 0


def _turn(pixels: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """Applies a display matrix of quarter turns and mirrors to [H, W, 3]."""
    a, b, c, d = matrix
    if _is_sideways(matrix):
        pixels, flip_y, flip_x = pixels.swapaxes(0, 1), b < 0, c < 0
    else:
        flip_y, flip_x = d < 0, a < 0
    return np.ascontiguousarray(pixels[:: -1 if flip_y else 1, :: -1 if flip_x else 1])
