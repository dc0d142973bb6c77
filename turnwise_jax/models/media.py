"""What every family shares about images and videos: placeholders, slices and their features.

A *slice* is one temporal row of a grid: an image, or ``temporal_patch_size`` frames of a video. The
slices of a batch stand in one list; each gets M feature rows, so placeholder j of slice s reads row
``s * M + j``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import jax
import numpy as np

from turnwise_jax.errors import InputError


class Media(NamedTuple):
    """Encoded slices: ``features`` ``[S * M, D]`` in merged raster order."""

    features: jax.Array


class MediaSpan(Protocol):
    """A run of placeholders: where it starts, its patch grid, and its first slice."""

    start: int
    grid: tuple[int, int, int]
    kind: str
    seconds_per_grid: float | None
    slice: int


def span_tokens(span: MediaSpan, merge: int) -> int:
    """Placeholders of one span: ``t * (h / merge) * (w / merge)``."""
    t, h, w = span.grid
    return t * (h // merge) * (w // merge)


def media_index(
    length: int, spans: Iterable[MediaSpan], merge: int, tokens_per_slice: int, first_slice: int = 0
) -> np.ndarray:
    """Feature row of each of ``length`` tokens, int32 ``[length]``; -1 for text.

    ``tokens_per_slice`` is M of the batch; ``first_slice`` is where this dialogue's slices begin in
    the batch.
    """
    index = np.full(length, -1, np.int32)
    for span in spans:
        t, h, w = span.grid
        each = (h // merge) * (w // merge)
        if each > tokens_per_slice:
            raise InputError(
                f"a {h} x {w} grid has {each} tokens, the batch holds {tokens_per_slice}"
            )
        if span.start + t * each > length:
            raise InputError(f"placeholders at {span.start} run past the {length} tokens")
        rows = (first_slice + span.slice + np.arange(t))[:, None] * tokens_per_slice
        index[span.start : span.start + t * each] = (rows + np.arange(each)[None]).reshape(-1)
    return index
