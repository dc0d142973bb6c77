"""A tiny random policy in an ordinary Hugging Face directory, and dialogues of random frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from turnwise_jax.data.audio import SoundSpec, sound_frames
from turnwise_jax.data.images import FrameSpec, patchify
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.data.tokens import Vocab, build_tokenizer
from turnwise_jax.models import MODELS, io
from turnwise_jax.rollout.policy import Policy

CORPUS = (
    "You are watching a video. Reply when something new happens, otherwise say NO REPLY.",
    "What is the red square doing? Tell me when the blue circle leaves the picture.",
    "The red square appears. The green triangle moves to the left. NO REPLY",
    "system user assistant",
)
SYSTEM = "Watch the video."
SPEC = FrameSpec(min_pixels=56 * 56, max_pixels=56 * 84)


def make_checkpoint(
    directory,
    *,
    family: str = "qwen2_5_vl",
    seed: int = 0,
    marker_gain: float = 3.0,
    **overrides,
) -> None:
    """Writes a checkpoint directory.

    Args:
      family: a key of ``MODELS``. Frames are 4 x 4 to 4 x 6 patches; ``SPEC`` is qwen2_5_vl's.
      seed: of the weights.
      marker_gain: factor on the end marker's column of the head; at 3, about every tenth sampled
        token is a marker, so turns end both ways.
      overrides: of ``Config.tiny``.
    """
    vocab = build_tokenizer(CORPUS, 400, directory)
    kind = MODELS[family].Config
    names = [f.name for f in fields(kind) if f.name.endswith("_token_id")]
    config = kind.tiny(
        vocab.size + 5,  # padded rows, as in published checkpoints
        **{name: _marker(vocab, name.removesuffix("_token_id")) for name in names},
        **overrides,
    )
    side = 4 * config.vision.patch_size
    FrameSpec(
        patch_size=config.vision.patch_size, min_pixels=side**2, max_pixels=side * side * 3 // 2
    ).save(directory)
    params = io.init(config, seed)
    kernel = params["text"]["head"]["kernel"]
    kernel[...] = kernel[...].at[:, vocab.im_end].multiply(marker_gain)
    io.save(directory, config, params)
    assert Vocab.from_pretrained(directory).size == vocab.size


def _marker(vocab: Vocab, name: str) -> int:
    """``image``, ``vision_start``, ... as the vocabulary has them: placeholders end in ``_pad``."""
    return getattr(vocab, name if hasattr(vocab, name) else f"{name}_pad")


def load_policy(directory, **options) -> Policy:
    """The policy of a directory that ``make_checkpoint`` wrote."""
    return Policy.load(directory, **options)


def frames(rng: np.random.Generator, count: int, height: int = 56, width: int = 56) -> np.ndarray:
    """uint8[count, height, width, 3] noise."""
    return rng.integers(0, 256, (count, height, width, 3), np.uint8)


def make_example(
    identity: str,
    turns: int,
    *,
    given: int = 1,
    seed: int = 0,
    per_turn: int | tuple[int, ...] = 1,
    size: tuple[int, int] = (56, 56),
    videos: tuple[int, ...] = (),
    replies: bool = False,
    pixels: np.ndarray | None = None,
    spec: FrameSpec = SPEC,
    sounds: Mapping[int, float] | None = None,
) -> Example:
    """A dialogue with ``given`` turns of history and ``turns`` open ones.

    Args:
      per_turn: frames of each turn, or of all of them.
      videos: turns whose frames are one video, two frames a second.
      replies: give every open turn a reply as well (a supervised example).
      pixels: frames to use instead of noise drawn from ``seed``.
      spec: the policy's frame preprocessing.
      sounds: seconds of noise that a turn plays, by turn.
    """
    sounds = sounds or {}
    rng = np.random.default_rng(seed)
    counts = (per_turn,) * (given + turns) if isinstance(per_turn, int) else per_turn
    pixels = frames(rng, sum(counts), *size) if pixels is None else pixels
    words = ["NO REPLY", "The red square appears.", "It moves to the left."]
    records, patches, shown = [], [], 0
    for index, count in enumerate(counts):
        video = index in videos
        own = pixels[shown : shown + count]
        parts = [own] if video else [own[i : i + 1] for i in range(count)]
        patches.extend(patchify(part, spec, video=video) for part in parts)
        names = [f"{identity}-{shown + i}.png" for i in range(count)]
        stamps = [(shown + i) / 2 for i in range(count)]
        shown += count
        records.append(
            Turn(
                frames=tuple(
                    Frame(f"{identity}.mp4", stamp) if video else Frame(name)
                    for name, stamp in zip(names, stamps, strict=True)
                ),
                text="What is the red square doing?" if index == given or not count else "",
                time=2.0 * shown,
                reply=words[rng.integers(3)] if index < given or replies else None,
                video=video,
                audio=Sound(f"{identity}.mp4", 0.0, sounds[index]) if index in sounds else None,
            )
        )
    dialogue = Dialogue(identity, tuple(records), system=SYSTEM, file="tiny.jsonl")
    return Example(
        dialogue,
        tuple(p.values for p in patches),
        tuple(p.grid for p in patches),
        tuple(_noise(rng, turn.audio) for turn in records if turn.audio),
    )


def _noise(rng: np.random.Generator, sound: Sound) -> np.ndarray:
    """float32[mel bins, frames]."""
    spec = SoundSpec()
    return rng.normal(size=(spec.mel_bins, sound_frames(sound, spec))).astype(np.float32)
