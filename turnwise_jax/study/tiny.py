"""An untrained policy small enough for two CPU cores, as an ordinary Hugging Face directory."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.processor import PREPROCESSOR
from turnwise_jax.data.tokens import Vocab, build_tokenizer
from turnwise_jax.errors import InputError
from turnwise_jax.models import MODELS, io
from turnwise_jax.worlds import script, soundscript
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.soundsettings import SoundWorld

MANIFEST = "tiny.json"


def make_tiny_policy(
    directory: str | os.PathLike[str],
    world: World | SoundWorld,
    *,
    family: str = "qwen2_5_vl",
    vocab_size: int = 400,
    pixels: int = 56,
    model: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write a model with random weights and a tokenizer of the world's words, or find it.

    Args:
      directory: the target, written whole or not at all.
      world: whose questions and answers the tokenizer learns.
      family: a key of ``MODELS``.
      vocab_size: most tokens.
      pixels: side to which square frames are resized.
      model: overrides of ``Config.tiny``.
      seed: of the weights.

    Returns:
      The directory.

    Raises:
      InputError: it holds something else, or there is no such family.
    """
    directory = Path(directory)
    if family not in MODELS:
        raise InputError(f"{family!r} is not one of {', '.join(MODELS)}", field="family")
    wanted = {
        "family": family,
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
    vocab = build_tokenizer(_corpus(world), vocab_size, part)
    kind = MODELS[family].Config
    own = {field.name for field in dataclasses.fields(kind)}
    ids = {f"{name}_token_id": index for name, index in _marker_ids(vocab).items()}
    config = kind.tiny(
        vocab.size,
        **{name: index for name, index in ids.items() if name in own},
        **{"tie_word_embeddings": True, **wanted["model"]},
    )
    spec = FrameSpec(
        min_pixels=pixels * pixels, max_pixels=pixels * pixels, patch_size=config.vision.patch_size
    )
    spec.save(part)
    if config.sound_tokens:
        _add_sound(part / PREPROCESSOR, SoundSpec())
    io.save(part, config, io.init(config, seed))
    (part / MANIFEST).write_text(json.dumps(wanted, indent=1) + "\n")
    os.replace(part, directory)
    return directory


def _corpus(world: World | SoundWorld) -> list[str]:
    """Every sentence of a world's records."""
    if isinstance(world, SoundWorld):
        return soundscript.corpus(world)
    return script.corpus(world)


def _marker_ids(vocab: Vocab) -> dict[str, int | None]:
    """The ids that a model must know, as its configuration calls them."""
    return {
        "image": vocab.image_pad,
        "video": vocab.video_pad,
        "vision_start": vocab.vision_start,
        "vision_end": vocab.vision_end,
        "audio": vocab.audio_pad,
        "audio_start": vocab.audio_start,
        "audio_end": vocab.audio_end,
    }


def _add_sound(file: Path, spec: SoundSpec) -> None:
    """Sound's fields beside those of the frames, as published checkpoints have them."""
    fields = json.loads(file.read_text()) | spec.to_dict()
    file.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


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
