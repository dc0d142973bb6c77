"""M-RoPE positions of one piece of a dialogue: the walk over text and grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import MediaSpan, span_tokens


def grid_mrope(
    tokens: Sequence[int] | np.ndarray,
    spans: Sequence[MediaSpan],
    *,
    merge: int,
    placeholders: Mapping[str, int],
    interval: Callable[[MediaSpan], np.float32],
) -> tuple[np.ndarray, int]:
    """Positions counted from 0.

    Text advances all three axes together. A placeholder of a grid starting at p has temporal
    position ``p + floor(row * interval)``, height ``p + i``, width ``p + j``. What follows a grid
    starts ``max(height, width)`` merged tokens after p, however long the video.

    Args:
      tokens: the T token ids.
      spans: the placeholders' runs, in order.
      merge: patches per merged token along one axis.
      placeholders: the token id of each kind of span.
      interval: temporal positions from one row of a span's grid to the next, float32.

    Returns:
      int32 ``[3, T]``, and where the next piece starts: add it to that piece's positions. Pieces
      computed one by one equal the joined sequence.

    Raises:
      InputError: a span that overlaps another, runs past the end, or covers other tokens.
    """
    ids = np.asarray(tokens)
    out = np.empty((3, len(ids)), np.int32)
    done, current = 0, 0
    for span in spans:
        end = span.start + span_tokens(span, merge)
        check_span(ids, span, done, end, placeholders)
        text = span.start - done
        out[:, done : span.start] = current + np.arange(text)
        current += text
        out[:, span.start : end] = current + grid_positions(span.grid, merge, interval(span))
        current += max(span.grid[1:]) // merge
        done = end
    out[:, done:] = current + np.arange(len(ids) - done)
    return out, current + len(ids) - done


def check_span(
    ids: np.ndarray, span: MediaSpan, done: int, end: int, placeholders: Mapping[str, int]
) -> None:
    """Refuse a run ``span.start..end`` that is not one of its kind's placeholder after ``done``.

    Raises:
      InputError: it overlaps what was before, runs past the end, or covers other tokens.
    """
    if span.start < done or end > len(ids):
        raise InputError(f"placeholders {span.start}..{end} overlap others or leave the piece")
    if span.kind not in placeholders:
        raise InputError(f"tokens {span.start}..{end} are {span.kind}, which the model cannot take")
    if (ids[span.start : end] != placeholders[span.kind]).any():
        raise InputError(f"tokens {span.start}..{end} are not all the {span.kind} placeholder")


def grid_positions(grid: tuple[int, int, int], merge: int, interval: np.float32) -> np.ndarray:
    """int32 ``[3, t * h/merge * w/merge]`` of a grid ``(t, h, w)`` in patches that starts at 0."""
    t, h, w = grid[0], grid[1] // merge, grid[2] // merge
    time = (np.arange(t, dtype=np.float32) * interval).astype(np.int32)
    axes = np.meshgrid(time, np.arange(h), np.arange(w), indexing="ij")
    return np.stack(axes).reshape(3, -1).astype(np.int32)
