"""A tiny Qwen2.5-Omni thinker with every parameter random, and dialogues to feed it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from tiny_model import IMAGE, VIDEO, Piece, Span, Tiny, frames, random_params

from turnwise_jax.models import io
from turnwise_jax.models.media import FeatureRows, media_index
from turnwise_jax.models.qwen2_5_omni import Config, positions

AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = range(92, 97)
VOCAB, BINS, FRAMES, TOKENS = 100, 12, 16, 4  # of a slice of sound
IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "audio_token_id": AUDIO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "audio_start_token_id": AUDIO_START,
    "audio_end_token_id": AUDIO_END,
}

__all__ = ["Heard", "Piece", "Seen", "Span", "frames"]


class Seen(NamedTuple):
    """A picture (``rows`` 1, ``seconds`` None) or video of 4 x 4 patches, from ``slice`` on."""

    slice: int
    rows: int = 1
    seconds: float | None = None


class Heard(NamedTuple):
    """A sound of ``tokens`` from audio slice ``slice`` on."""

    slice: int
    tokens: int


def tiny_config(**overrides: Any) -> Config:
    """A second of sound is 8 tokens of 4 mel frames; slices are half a second."""
    small = {
        "text_num_hidden_layers": 2,
        "audio_num_mel_bins": BINS,
        "audio_n_window": FRAMES // 2,
        "position_id_per_seconds": 8,
    }
    return Config.tiny(VOCAB, **{**small, **IDS, **overrides})


def make_tiny(seed: int = 0, **overrides: Any) -> Tiny:
    """A model whose biases and norms are random as well, so that none can be dropped unseen."""
    config = tiny_config(**overrides)
    graphdef, _ = io.build(config)
    return Tiny(graphdef, random_params(config, seed), config)


def sounds(count: int, *, seed: int = 0, length: int = FRAMES) -> list[np.ndarray]:
    """Random slices of sound."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(BINS, length)).astype(np.float32) for _ in range(count)]


def encoder(graphdef: nnx.GraphDef):
    """``encode(params, media_input) -> Media``, jitted."""

    @jax.jit
    def encode(params, media):
        return nnx.merge(graphdef, params).encode_media(media)

    return encode


def full_pass(graphdef: nnx.GraphDef):
    """One uncached pass, jitted."""

    @jax.jit
    def run(params, media, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        encoded = model.encode_media(media)
        return model(tokens, positions, media=encoded, media_index=index, valid=valid)[0]

    return run


def piece(
    config: Config,
    parts: list[int | Seen | Heard | tuple[Seen, Heard]],
    *,
    slices: int,
    start: int = 0,
    seed: int = 0,
) -> tuple[Piece, int]:
    """Text runs, pictures, sounds and videos with sound; every vision slice has 4 tokens' room.

    A text run is a count of random tokens. A video's first row stands before all of its sound, its
    other rows behind. ``start`` is the first position.

    Returns the piece and the position after it.
    """
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    spans: list[Span] = []

    def run(span: Span, count: int) -> None:
        spans.append(span._replace(start=len(tokens)))
        tokens.extend([{"image": IMAGE, "video": VIDEO, "audio": AUDIO}[span.kind]] * count)

    for part in parts:
        match part:
            case int():
                tokens += rng.integers(1, IMAGE, part).tolist()
            case Seen(number, rows, seconds):
                kind = "image" if seconds is None else "video"
                tokens.append(VISION_START)
                run(Span(0, (rows, 4, 4), kind, seconds, number), 4 * rows)
                tokens.append(VISION_END)
            case Heard(number, count):
                tokens.append(AUDIO_START)
                run(Span(0, (count, 1, 1), "audio", None, number), count)
                tokens.append(AUDIO_END)
            case (Seen(number, rows, seconds), Heard(sound, count)):
                tokens += [VISION_START, AUDIO_START]
                first = Span(0, (1, 4, 4), "video", seconds, number)
                run(first, 4)
                run(Span(0, (count, 1, 1), "audio", None, sound, 0, True), count)
                rest = first._replace(grid=(rows - 1, 4, 4), slice=number + 1, row=1, joined=True)
                run(rest, 4 * (rows - 1))
                tokens += [AUDIO_END, VISION_END]
    ids = np.array(tokens, np.int32)
    place, after = positions(ids, spans, config)
    index = media_index(len(ids), spans, config.merge, FeatureRows(slices, 4, config.sound_tokens))
    return Piece(ids, place + start, index), start + after
