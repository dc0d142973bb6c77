"""Naming a voice and counting its beeps from decoded samples, with no code of the worlds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RATE = 16000
LOW = {  # shape -> Hz of its partials in the low register and their strengths
    "square": ((220, 660, 1100, 1540), (1.0, 0.8, 0.7, 0.6)),
    "ring": ((330,), (1.0,)),
    "cross": ((262, 419.2, 655, 943.2), (0.7, 1.0, 0.9, 0.6)),
    "triangle": ((294, 588, 882, 1176, 1764), (1.0, 0.8, 0.6, 0.5, 0.3)),
    "circle": ((247, 988), (0.6, 1.0)),
}


class Heard(NamedTuple):
    """``times``: the middle of each beep, seconds."""

    shape: str
    high: bool
    times: tuple[float, ...]


def listen(samples: np.ndarray) -> Heard:
    """Who sounds in float32[n] at ``RATE``, how, and when."""
    width = RATE // 100
    envelope = np.sqrt(np.convolve(samples.astype(float) ** 2, np.ones(width) / width, "same"))
    loud = np.concatenate([[False], envelope > 0.4 * envelope.max(), [False]])
    begins, ends = np.flatnonzero(loud[1:] & ~loud[:-1]), np.flatnonzero(~loud[1:] & loud[:-1])
    beeps = [(b, e) for b, e in zip(begins, ends, strict=True) if e - b > 0.03 * RATE]
    first = samples[beeps[0][0] : beeps[0][1]]
    spectrum = np.abs(np.fft.rfft(first * np.hanning(len(first)), 8 * RATE))
    voices = {
        (shape, high): _template(shape, high, len(spectrum)) for shape in LOW for high in (0, 1)
    }
    shape, high = max(voices, key=lambda voice: _likeness(spectrum, voices[voice]))
    return Heard(shape, bool(high), tuple((b + e) / 2 / RATE for b, e in beeps))


def _template(shape: str, high: int, size: int) -> np.ndarray:
    """The spectrum of a voice: one bump of 12 Hz for each partial below half the rate."""
    hertz = np.linspace(0.0, RATE / 2, size)
    bumps = [
        strength * np.exp(-(((hertz - 4**high * partial) / 12.0) ** 2))
        for partial, strength in zip(*LOW[shape], strict=True)
        if 4**high * partial < RATE / 2
    ]
    return np.sum(bumps, axis=0)


def _likeness(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
