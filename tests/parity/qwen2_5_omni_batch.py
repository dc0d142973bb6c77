"""Rows of text, pictures and sound with everything either Qwen2.5-Omni takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from qwen2_5_vl_reference import Grid

IMAGE, VIDEO, AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = range(290, 297)


class Span(NamedTuple):
    start: int
    grid: tuple[int, int, int]
    kind: str
    seconds_per_grid: float | None
    slice: int
    row: int = 0
    joined: bool = False


class Sound(NamedTuple):
    """Sound in a row; ``inside`` is the video whose own sound it is."""

    frames: int
    inside: Grid | None = None


@dataclass
class Batch:
    """Padded rows with everything either model takes; ``grids`` and ``seconds`` by kind."""

    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0))
    valid: np.ndarray = field(default_factory=lambda: np.zeros(0))
    spans: list[list[Span]] = field(default_factory=list)
    slices: list[tuple[np.ndarray, tuple[int, int]]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    grids: dict[str, list[tuple[int, ...]]] = field(
        default_factory=lambda: {"image": [], "video": []}
    )
    seconds: list[float] = field(default_factory=list)
    sounds: list[np.ndarray] = field(default_factory=list)
    audio_in_video: bool = False

    @property
    def sound_slices(self) -> list[np.ndarray]:
        return [s[:, i : i + 200] for s in self.sounds for i in range(0, s.shape[1], 200)]


def make_batch(
    rows: list[list[int | Grid | Sound]], *, pad: str = "right", seed: int = 1, bins: int = 20
) -> Batch:
    """Rows of text runs (a count of random tokens), grids and sounds, padded with token 0."""
    rng = np.random.default_rng(seed)
    batch, lines = Batch(), []
    for row in rows:
        line = _Line(batch, rng, bins)
        for part in row:
            if isinstance(part, int):
                line.tokens += rng.integers(1, IMAGE, part).tolist()
            elif isinstance(part, Grid):
                line.markers([VISION_START], [line.grid(part)], [VISION_END])
            elif part.inside is None:
                line.markers([AUDIO_START], [line.sound(part.frames)], [AUDIO_END])
            else:
                line.interleaved(part)
        lines.append(line.tokens)
        batch.spans.append(line.spans)
    length = max(len(line) for line in lines)
    batch.tokens = np.zeros((len(lines), length), np.int32)
    batch.valid = np.zeros((len(lines), length), bool)
    for b, line in enumerate(lines):
        place = slice(0, len(line)) if pad == "right" else slice(length - len(line), length)
        batch.tokens[b, place] = line
        batch.valid[b, place] = True
    return batch


class _Line:
    """One row in the making."""

    def __init__(self, batch: Batch, rng: np.random.Generator, bins: int):
        self.batch, self.rng, self.bins = batch, rng, bins
        self.tokens: list[int] = []
        self.spans: list[Span] = []

    def markers(self, start: list[int], runs: list[Span], end: list[int]) -> None:
        pads = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}
        self.tokens += start
        for run in runs:
            count = run.grid[0] * (run.grid[1] * run.grid[2] // (1 if run.kind == "audio" else 4))
            self.spans.append(run._replace(start=len(self.tokens)))
            self.tokens += [pads[run.kind]] * count
        self.tokens += end

    def grid(self, part: Grid) -> Span:
        batch, kind = self.batch, "image" if part.fps is None else "video"
        seconds = None if part.fps is None else 2.0 / part.fps
        span = Span(0, tuple(part[:3]), kind, seconds, len(batch.slices))
        batch.grids[kind].append(tuple(part[:3]))
        if seconds is not None:
            batch.seconds.append(seconds)
        for _ in range(part.t):
            values = self.rng.integers(0, 256, (part.h * part.w, 1176), np.uint8)
            batch.slices.append((values, tuple(part[1:3])))
            batch.kinds.append(kind)
        return span

    def sound(self, frames: int) -> Span:
        count = ((frames - 1) // 2 + 1 - 2) // 2 + 1
        span = Span(0, (count, 1, 1), "audio", None, len(self.batch.sound_slices))
        self.batch.sounds.append(self.rng.normal(size=(self.bins, frames)).astype(np.float32))
        return span

    def interleaved(self, part: Sound) -> None:
        """Rows and sound of the same 2 s stand together: 50 positions, 50 tokens of sound."""
        self.batch.audio_in_video = True
        video, sound = self.grid(part.inside), self.sound(part.frames)
        chunk = np.int64(np.arange(video.grid[0]) * video.seconds_per_grid * 25) // 50
        runs = []
        for number in range(max(chunk[-1] + 1, -(-sound.grid[0] // 50))):
            own = np.flatnonzero(chunk == number)
            if len(own):
                runs.append(
                    video._replace(
                        grid=(len(own), *video.grid[1:]),
                        slice=video.slice + int(own[0]),
                        row=int(own[0]),
                        joined=bool(runs),
                    )
                )
            heard = min(50, sound.grid[0] - 50 * number)
            if heard > 0:
                runs.append(sound._replace(grid=(heard, 1, 1), row=50 * number, joined=bool(runs)))
        self.markers([VISION_START, AUDIO_START], runs, [AUDIO_END, VISION_END])
