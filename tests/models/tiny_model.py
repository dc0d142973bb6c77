"""A tiny Qwen2.5-VL with every parameter random, and dialogues to feed it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from turnwise_jax.models import io
from turnwise_jax.models.media import FeatureRows, MediaInput, media_index
from turnwise_jax.models.params import named, replaced
from turnwise_jax.models.qwen2_5_vl import Config, positions, vision_input

IMAGE, VIDEO, START, END, VOCAB = 90, 91, 92, 93, 100


class Span(NamedTuple):
    """What data's media spans look like."""

    start: int
    grid: tuple[int, int, int]
    kind: str
    seconds_per_grid: float | None
    slice: int
    row: int = 0
    joined: bool = False


class Tiny(NamedTuple):
    """Structure, parameters and configuration of one model."""

    graphdef: nnx.GraphDef
    params: nnx.State
    config: Config


class Piece(NamedTuple):
    """A stretch of one dialogue: ``tokens [T]``, ``positions [3, T]``, ``index [T]``."""

    tokens: np.ndarray
    positions: np.ndarray
    index: np.ndarray


def make_tiny(seed: int = 0, **overrides: Any) -> Tiny:
    """A model whose biases and norms are random as well, so that none can be dropped unseen."""
    ids = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
    }
    build = {name: overrides.pop(name) for name in ("dtype", "remat") if name in overrides}
    config = Config.tiny(VOCAB, text_num_hidden_layers=2, **ids, **overrides)
    graphdef, _ = io.build(config, **build)
    return Tiny(graphdef, random_params(config, seed), config)


def random_params(config: Config, seed: int) -> nnx.State:
    """NumPy parameters with outputs of order one, drawn without compiling anything."""
    rng = np.random.default_rng(seed)
    _, abstract = io.build(config)
    values = {}
    for path, leaf in named(abstract).items():
        noise = rng.normal(size=leaf.shape).astype(np.float32)
        match path[-1]:
            case "kernel":
                values[path] = noise * leaf.shape[-2] ** -0.5
            case "scale":
                values[path] = 1 + 0.1 * noise
            case _:
                values[path] = 0.1 * noise
    return replaced(abstract, values)


def full_pass(graphdef: nnx.GraphDef):
    """One uncached pass, jitted with the parameters as an argument."""

    @jax.jit
    def run(params, vision, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        media = model.encode_media(MediaInput(vision))
        return model(tokens, positions, media=media, media_index=index, valid=valid)[0]

    return run


def frames(count: int, *, seed: int = 0, grid: tuple[int, int] = (4, 4)) -> list:
    """Random slices ``(patches, grid)``."""
    rng = np.random.default_rng(seed)
    size = grid[0] * grid[1]
    return [(rng.integers(0, 256, (size, 1176), np.uint8), grid) for _ in range(count)]


def piece(
    config: Config,
    parts: list[int | tuple[int, int] | tuple[int, int, int, float]],
    *,
    tokens_per_slice: int = 4,
    start: int = 0,
    seed: int = 0,
) -> tuple[Piece, int]:
    """Text runs, images and videos in order.

    A text run is a count of random tokens, an image ``(slice, side in patches)``, a video ``(first
    slice, side, rows of its grid, seconds per row)``. ``start`` is the first position.

    Returns the piece and the position after it.
    """
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    spans: list[Span] = []
    for part in parts:
        if isinstance(part, int):
            tokens += rng.integers(1, IMAGE, part).tolist()
            continue
        number, side, *video = part
        kind, (rows, seconds) = ("video", video) if video else ("image", (1, None))
        spans.append(Span(len(tokens) + 1, (rows, side, side), kind, seconds, number))
        placeholder = VIDEO if video else IMAGE
        tokens += [START, *[placeholder] * (rows * (side // 2) ** 2), END]
    ids = np.array(tokens, np.int32)
    place, after = positions(ids, spans, config)
    index = media_index(len(ids), spans, config.merge, FeatureRows(0, tokens_per_slice))
    return Piece(ids, place + start, index), start + after


def pad(pieces: list[Piece], length: int, *, fill: int = 0) -> tuple[np.ndarray, ...]:
    """Right-padded batch ``tokens, positions, index, valid``; ``fill`` is the padding's token."""
    count = len(pieces)
    tokens = np.full((count, length), fill, np.int32)
    places = np.zeros((count, 3, length), np.int32)
    index = np.full((count, length), -1, np.int32)
    valid = np.zeros((count, length), bool)
    for b, item in enumerate(pieces):
        n = len(item.tokens)
        tokens[b, :n], places[b, :, :n], index[b, :n], valid[b, :n] = *item, True
    return tokens, places, index, valid


def join(pieces: list[Piece]) -> Piece:
    """Consecutive pieces of one dialogue as one."""
    return Piece(*(np.concatenate(parts, axis=-1) for parts in zip(*pieces, strict=True)))


def images(config: Config, slices: list, **kwargs: Any):
    """The vision tower's input."""
    return vision_input(slices, config, **kwargs)
