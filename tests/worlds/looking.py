"""Naming a coloured shape from decoded pixels, with no code of the worlds."""

from __future__ import annotations

import numpy as np

from turnwise_jax.worlds.settings import SHAPES

NAMES = {
    "red": (255, 0, 0),
    "green": (0, 160, 60),
    "blue": (0, 40, 255),
    "yellow": (255, 230, 0),
    "purple": (170, 40, 210),
    "white": (255, 255, 255),
    "cyan": (0, 230, 240),
    "pink": (255, 150, 190),
}


def outline(shape: str, height: int, width: int) -> np.ndarray:
    """bool[height, width]: the ideal shape that fills a bounding box."""
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    radius = np.hypot(x, y)
    return {
        "circle": radius <= 1,
        "square": np.ones_like(x, bool),
        "triangle": np.abs(x) <= (y + 1) / 2,
        "cross": np.minimum(np.abs(x), np.abs(y)) <= 1 / 3,
        "ring": (radius <= 1) & (radius >= 0.5),
    }[shape]


def look(frame: np.ndarray) -> tuple[str, str] | None:
    """(colour, shape) of the object in uint8[H, W, 3], None if there is only background."""
    pixels = frame.astype(float)
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    far = np.abs(pixels - np.median(edges, axis=0)).max(-1) > 75
    if far.mean() < 0.02:
        return None
    rows, columns = np.flatnonzero(far.any(1)), np.flatnonzero(far.any(0))
    box = far[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    seen = np.median(pixels[far], axis=0)
    colour = min(NAMES, key=lambda name: np.linalg.norm(seen - NAMES[name]))
    shape = max(SHAPES, key=lambda s: (outline(s, *box.shape) == box).mean())
    return colour, shape
