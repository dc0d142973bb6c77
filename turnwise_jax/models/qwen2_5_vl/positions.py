"""M-RoPE positions of Qwen2.5-VL (NumPy, on the host)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise_jax.models.media import MediaSpan
from turnwise_jax.models.mrope import grid_mrope
from turnwise_jax.models.qwen2_5_vl.config import Config


def positions(
    tokens: Sequence[int] | np.ndarray, media_spans: Sequence[MediaSpan], config: Config
) -> tuple[np.ndarray, int]:
    """M-RoPE positions of one piece, as in transformers 5.24's ``get_rope_index``.

    Rows of a video are ``tokens_per_second * seconds_per_grid`` positions apart (1 s if the span
    does not say), in float32.

    Args:
      tokens: the T token ids.
      media_spans: the placeholders' runs, in order.
      config: the model.

    Returns:
      int32 ``[3, T]``, and where the next piece starts; see :func:`grid_mrope`.

    Raises:
      InputError: a span that overlaps another, runs past the end, or covers other tokens.
    """

    def interval(span: MediaSpan) -> np.float32:
        if span.kind != "video":
            return np.float32(1.0)
        seconds = 1.0 if span.seconds_per_grid is None else span.seconds_per_grid
        return np.float32(config.vision.tokens_per_second) * np.float32(seconds)

    return grid_mrope(
        tokens,
        media_spans,
        merge=config.merge,
        placeholders={"image": config.image_token_id, "video": config.video_token_id},
        interval=interval,
    )
