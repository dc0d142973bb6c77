"""M-RoPE positions of Qwen2.5-VL (NumPy, on the host)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import MediaSpan, span_tokens
from turnwise_jax.models.qwen2_5_vl.config import Config


def positions(
    tokens: Sequence[int] | np.ndarray, media_spans: Sequence[MediaSpan], config: Config
) -> tuple[np.ndarray, int]:
    """M-RoPE positions of one piece of a dialogue, counted from 0.

    Text advances all three axes together. A placeholder of a grid starting at p has temporal
    position ``p + floor(row * interval)``, height ``p + i``, width ``p + j``; the interval is 1 for
    images and ``tokens_per_second * seconds_per_grid`` for videos (1 s if the span does not say),
    in float32. What follows a grid starts ``max(height, width)`` merged tokens after p, however
    long the video, as in transformers 5.24's ``get_rope_index``.

    Args:
      tokens: the T token ids.
      media_spans: the placeholders' runs, in order.
      config: the model.

    Returns:
      int32 ``[3, T]``, and where the next piece starts: add it to that piece's positions. Pieces
      computed one by one equal the joined sequence.

    Raises:
      InputError: a span that overlaps another, runs past the end, or covers other tokens.
    """
    ids = np.asarray(tokens)
    out = np.empty((3, len(ids)), np.int32)
    done, current = 0, 0
    for span in media_spans:
        end = span.start + span_tokens(span, config.merge)
        _check_span(ids, span, done, end, config)
        text = span.start - done
        out[:, done : span.start] = current + np.arange(text)
        current += text
        out[:, span.start : end] = current + _grid_positions(span, config)
        current += max(span.grid[1:]) // config.merge
        done = end
    out[:, done:] = current + np.arange(len(ids) - done)
    return out, current + len(ids) - done


def _check_span(ids: np.ndarray, span: MediaSpan, done: int, end: int, config: Config) -> None:
    if span.start < done or end > len(ids):
        raise InputError(f"placeholders {span.start}..{end} overlap others or leave the piece")
    expected = config.video_token_id if span.kind == "video" else config.image_token_id
    if (ids[span.start : end] != expected).any():
        raise InputError(f"tokens {span.start}..{end} are not all the {span.kind} placeholder")


def _grid_positions(span: MediaSpan, config: Config) -> np.ndarray:
    t, h, w = span.grid[0], span.grid[1] // config.merge, span.grid[2] // config.merge
    interval = np.float32(1.0)
    if span.kind == "video":
        seconds = 1.0 if span.seconds_per_grid is None else span.seconds_per_grid
        interval = np.float32(config.vision.tokens_per_second) * np.float32(seconds)
    time = (np.arange(t, dtype=np.float32) * interval).astype(np.int32)
    grid = np.meshgrid(time, np.arange(h), np.arange(w), indexing="ij")
    return np.stack(grid).reshape(3, -1).astype(np.int32)
