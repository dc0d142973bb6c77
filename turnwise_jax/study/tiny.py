"""An untrained policy small enough for two CPU cores, as an ordinary Hugging Face directory."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.tokens import build_tokenizer
from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.qwen2_5_vl import Config
from turnwise_jax.worlds.script import corpus
from turnwise_jax.worlds.settings import World

MANIFEST = "tiny.json"


def make_tiny_policy(
    directory: str | os.PathLike[str],
    world: World,
    *,
    vocab_size: int = 400,
    pixels: int = 56,
    model: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write a Qwen2.5-VL with random weights and a tokenizer of the world's words, or find it.

    Args:
      directory: the target, written whole or not at all.
      world: whose questions and answers the tokenizer learns.
      vocab_size: most tokens.
      pixels: side to which square frames are resized.
      model: overrides of ``Config.tiny``.
      seed: of the weights.

    Returns:
      The directory.

    Raises:
      InputError: it holds something else.
    """
    directory = Path(directory)
    wanted = {
        "world": dataclasses.asdict(world),
        "vocab_size": vocab_size,
        "pixels": pixels,
        "model": dict(model or {}),
        "seed": seed,
    }
    wanted = json.loads(json.dumps(wanted))
    if directory.exists():
        _check(directory, wanted)
        return directory
    part = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    vocab = build_tokenizer(corpus(world), vocab_size, part)
    FrameSpec(min_pixels=pixels * pixels, max_pixels=pixels * pixels).save(part)
    config = Config.tiny(
        vocab.size,
        image_token_id=vocab.image_pad,
        video_token_id=vocab.video_pad,
        vision_start_token_id=vocab.vision_start,
        vision_end_token_id=vocab.vision_end,
        **{"tie_word_embeddings": True, **wanted["model"]},
    )
    io.save(part, config, io.init(config, seed))
    (part / MANIFEST).write_text(json.dumps(wanted, indent=1) + "\n")
    os.replace(part, directory)
    return directory


def _check(directory: Path, wanted: dict[str, Any]) -> None:
    try:
        found = json.loads((directory / MANIFEST).read_text())
    except (OSError, ValueError):
        found = None
    if found != wanted:
        raise InputError(
            "is there but is no untrained policy of this study; remove it or choose another folder",
            file=directory,
        )
