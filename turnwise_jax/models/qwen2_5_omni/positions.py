"""TMRoPE positions of Qwen2.5-Omni (NumPy, on the host): media stand at their own time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise_jax.models.media import MediaSpan, span_tokens
from turnwise_jax.models.mrope import check_span, grid_positions
from turnwise_jax.models.qwen2_5_omni.config import Config


def positions(
    tokens: Sequence[int] | np.ndarray, media_spans: Sequence[MediaSpan], config: Config
) -> tuple[np.ndarray, int]:
    """Positions of one piece, as in transformers 5.24's ``get_rope_index``.

    Text advances all three axes together. A medium starting at p has, in row r of a picture grid,
    temporal position ``p + floor(r * seconds_per_grid * position_id_per_seconds)``, height ``p +
    i``, width ``p + j``; token a of a sound has ``p + a`` on all axes. A run that is ``joined``
    starts at the same p as the one before it, so that a video and its sound share their time. What
    follows starts behind the greatest position of the last run. Two markers that stand together
    around a video with sound share one position.

    Args:
      tokens: the T token ids.
      media_spans: the placeholders' runs, in order; ``row`` is what a run's medium has before it. A
        video whose span does not say ``seconds_per_grid`` has 1 s.
      config: the model.

    Returns:
      int32 ``[3, T]``, and where the next piece starts: add it to that piece's positions. Pieces
      computed one by one equal the joined sequence.

    Raises:
      InputError: a span that overlaps another, runs past the end, or covers other tokens.
    """
    ids = np.asarray(tokens)
    placeholders = {
        "image": config.image_token_id,
        "video": config.video_token_id,
        "audio": config.audio_token_id,
    }
    steps = _steps(ids, config)
    out = np.empty((3, len(ids)), np.int32)
    done, after, base = 0, 0, 0
    for span in media_spans:
        end = span.start + span_tokens(span, config.merge)
        check_span(ids, span, done, end, placeholders)
        after = _fill_text(out, steps, done, span.start, after)
        base = base if span.joined else after
        out[:, span.start : end] = base + _medium(span, config)
        if end > span.start:
            after = int(out[:, span.start : end].max()) + 1
        done = end
    return out, _fill_text(out, steps, done, len(ids), after)


def _steps(ids: np.ndarray, config: Config) -> np.ndarray:
    """How far each token stands behind the one before it: 1, 0 for the second of two markers."""
    steps = np.ones(len(ids), np.int32)
    for first, second in (
        (config.vision_start_token_id, config.audio_start_token_id),
        (config.audio_end_token_id, config.vision_end_token_id),
    ):
        steps[1:][(ids[:-1] == first) & (ids[1:] == second)] = 0
    return steps


def _fill_text(out: np.ndarray, steps: np.ndarray, start: int, end: int, first: int) -> int:
    """Positions of text ``start..end`` from ``first`` on; the position behind it."""
    if start == end:
        return first
    out[:, start:end] = first + np.cumsum(steps[start:end]) - 1
    return int(out[0, end - 1]) + 1


def _medium(span: MediaSpan, config: Config) -> np.ndarray:
    """int32 ``[3, tokens]`` of one run, counted from the start of its medium."""
    if span.kind == "audio":
        count = span.grid[0]
        return np.broadcast_to(span.row + np.arange(count, dtype=np.int32), (3, count))
    seconds = np.float32(1.0 if span.seconds_per_grid is None else span.seconds_per_grid)
    rows = span.row + np.arange(span.grid[0], dtype=np.float32)
    # In float32 and in this order, since the reference rounds after each product.
    time = (rows * seconds * np.float32(config.position_id_per_seconds)).astype(np.int32)
    own = grid_positions(span.grid, config.merge, np.float32(0))
    own[0] = np.repeat(time, own.shape[1] // len(time))
    return own
