"""M-RoPE positions of Qwen3-VL (NumPy, on the host)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import MediaSpan
from turnwise_jax.models.mrope import grid_mrope
from turnwise_jax.models.qwen3_vl.config import Config


def positions(
    tokens: Sequence[int] | np.ndarray, media_spans: Sequence[MediaSpan], config: Config
) -> tuple[np.ndarray, int]:
    """M-RoPE positions of one piece, as in transformers 5.24's ``get_rope_index``.

    Time is written into the text: each temporal row of a video stands behind its own timestamp, so
    it is a run of its own with one row, placed like an image.

    Args:
      tokens: the T token ids.
      media_spans: the placeholders' runs, in order.
      config: the model.

    Returns:
      int32 ``[3, T]``, and where the next piece starts; see :func:`grid_mrope`.

    Raises:
      InputError: a span that overlaps another, runs past the end, covers other tokens, or has more
        than one temporal row.
    """
    for span in media_spans:
        if span.grid[0] != 1:
            raise InputError(
                f"the run at {span.start} has {span.grid[0]} temporal rows, each row is its own run"
            )
    return grid_mrope(
        tokens,
        media_spans,
        merge=config.merge,
        placeholders={"image": config.image_token_id, "video": config.video_token_id},
        interval=lambda span: np.float32(1.0),
    )
