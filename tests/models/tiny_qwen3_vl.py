"""A tiny Qwen3-VL with every parameter random, and dialogues to feed it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx
from tiny_model import END, IMAGE, START, VIDEO, VOCAB, Piece, Span, Tiny, random_params

from turnwise_jax.models import io
from turnwise_jax.models.media import FeatureRows, media_index
from turnwise_jax.models.qwen3_vl import Config, positions

PATCH = 1536
IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}


def tiny_config(**overrides: Any) -> Config:
    """Three vision blocks, of which the first and the last are tapped, and three text layers."""
    tower = {"vision_depth": 3, "vision_deepstack_visual_indexes": (0, 2)}
    return Config.tiny(VOCAB, **{**tower, **IDS, **overrides})


def make_tiny(seed: int = 0, **overrides: Any) -> Tiny:
    """A model whose biases and norms are random as well, so that none can be dropped unseen."""
    build = {name: overrides.pop(name) for name in ("dtype", "remat") if name in overrides}
    config = tiny_config(**overrides)
    graphdef, _ = io.build(config, **build)
    return Tiny(graphdef, random_params(config, seed), config)


def full_pass(graphdef: nnx.GraphDef):
    """One uncached pass, jitted; the features are an argument, so that tests may change them."""

    @jax.jit
    def run(params, media, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        return model(tokens, positions, media=media, media_index=index, valid=valid)[0]

    return run


def encoder(graphdef: nnx.GraphDef):
    """``encode(params, media_input) -> Media``, jitted."""

    @jax.jit
    def encode(params, media):
        return nnx.merge(graphdef, params).encode_media(media)

    return encode


def frames(count: int, *, seed: int = 0, grid: tuple[int, int] = (4, 4)) -> list:
    """Random slices ``(patches, grid)``."""
    rng = np.random.default_rng(seed)
    size = grid[0] * grid[1]
    return [(rng.integers(0, 256, (size, PATCH), np.uint8), grid) for _ in range(count)]


def piece(
    config: Config,
    parts: list[int | tuple[int, int] | tuple[int, int, int]],
    *,
    slices: int,
    start: int = 0,
    seed: int = 0,
) -> tuple[Piece, int]:
    """Text runs, images and videos in order; every slice has 4 tokens' room.

    A text run is a count of random tokens, an image ``(slice, side in patches)``, a video ``(first
    slice, side, rows)``, each row behind two tokens of time. ``start`` is the first position.

    Returns the piece and the position after it.
    """
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    spans: list[Span] = []
    for part in parts:
        if isinstance(part, int):
            tokens += rng.integers(1, IMAGE, part).tolist()
            continue
        number, side, *rows = part
        kind, placeholder = ("video", VIDEO) if rows else ("image", IMAGE)
        for row in range(rows[0] if rows else 1):
            if rows:
                tokens += rng.integers(1, IMAGE, 2).tolist()
            spans.append(Span(len(tokens) + 1, (1, side, side), kind, None, number + row))
            tokens += [START, *[placeholder] * (side // 2) ** 2, END]
    ids = np.array(tokens, np.int32)
    place, after = positions(ids, spans, config)
    index = media_index(len(ids), spans, config.merge, FeatureRows(slices, 4))
    return Piece(ids, place + start, index), start + after
