"""What every family shares about pictures, videos and sound: slices, placeholders, features.

A *slice* is what a tower encodes on its own: one temporal row of a grid (an image, or
``temporal_patch_size`` frames of a video), or two seconds of sound. The slices of a batch stand in
two lists. Feature rows of a batch: M for each vision slice, then A for each audio slice, so that
placeholder j of vision slice s reads row ``s * M + j`` and token j of audio slice c reads row
``S * M + c * A + j``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from turnwise_jax.errors import InputError


class MediaInput(NamedTuple):
    """The media of a batch laid out for the towers; each part has its family's own type.

    The leading axis of every array counts slices. None: the batch has no room for such media.
    """

    vision: Any = None
    audio: Any = None


class Media(NamedTuple):
    """Encoded slices: ``features`` ``[R, D]``.

    ``deep`` ``[n, R, D]`` are added to what the first n decoder layers give (DeepStack).
    """

    features: jax.Array
    deep: jax.Array | None = None


class FeatureRows(NamedTuple):
    """How feature rows are numbered: S vision slices of M ``tokens``, then A per audio slice."""

    slices: int
    tokens: int
    sound_tokens: int = 0


class MediaSpan(Protocol):
    """A run of placeholders of one kind; see ``data.chat.MediaSpan``."""

    start: int
    grid: tuple[int, int, int]
    kind: str
    seconds_per_grid: float | None
    slice: int
    row: int
    joined: bool


def span_tokens(span: MediaSpan, merge: int) -> int:
    """Placeholders of one run: ``t * (h / merge) * (w / merge)``, for sound its tokens."""
    t, h, w = span.grid
    return t if span.kind == "audio" else t * (h // merge) * (w // merge)


def media_index(
    length: int,
    spans: Iterable[MediaSpan],
    merge: int,
    rows: FeatureRows,
    *,
    first_slice: int = 0,
    first_sound: int = 0,
) -> np.ndarray:
    """Feature row of each of ``length`` tokens, int32 ``[length]``; -1 for text.

    Args:
      length: tokens of the piece.
      spans: its runs of placeholders.
      merge: patches per merged token along one axis.
      rows: the batch's numbering.
      first_slice, first_sound: where this dialogue's vision and audio slices begin in the batch.

    Raises:
      InputError: a grid with more tokens than M, or a run past the end.
    """
    index = np.full(length, -1, np.int32)
    for span in spans:
        end = span.start + span_tokens(span, merge)
        if end > length:
            raise InputError(f"placeholders at {span.start} run past the {length} tokens")
        if span.kind == "audio":
            own = _sound_rows(span, rows, first_sound)
        else:
            own = _slice_rows(span, merge, rows, first_slice)
        index[span.start : end] = own
    return index


def _slice_rows(span: MediaSpan, merge: int, rows: FeatureRows, first: int) -> np.ndarray:
    t, h, w = span.grid
    each = (h // merge) * (w // merge)
    if each > rows.tokens:
        raise InputError(f"a {h} x {w} grid has {each} tokens, the batch holds {rows.tokens}")
    slices = first + span.slice + np.arange(t)
    return (slices[:, None] * rows.tokens + np.arange(each)[None]).reshape(-1)


def _sound_rows(span: MediaSpan, rows: FeatureRows, first: int) -> np.ndarray:
    """All audio slices but a sound's last are full, so its tokens stand in consecutive rows."""
    begin = rows.slices * rows.tokens + (first + span.slice) * rows.sound_tokens
    return begin + span.row + np.arange(span.grid[0])
