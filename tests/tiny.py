"""A tiny random policy in an ordinary Hugging Face directory, and dialogues of random frames."""

from __future__ import annotations

import numpy as np

from turnwise_jax.data.images import FrameSpec, patchify
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.data.tokens import Vocab, build_tokenizer
from turnwise_jax.models import io
from turnwise_jax.models.qwen2_5_vl import Config
from turnwise_jax.rollout.policy import Policy

CORPUS = (
    "You are watching a video. Reply when something new happens, otherwise say NO REPLY.",
    "What is the red square doing? Tell me when the blue circle leaves the picture.",
    "The red square appears. The green triangle moves to the left. NO REPLY",
    "system user assistant",
)
SYSTEM = "Watch the video."
SPEC = FrameSpec(min_pixels=56 * 56, max_pixels=56 * 84)


def make_checkpoint(directory, *, seed: int = 0, marker_gain: float = 3.0, **overrides) -> None:
    """Writes a checkpoint directory.

    Args:
      seed: of the weights.
      marker_gain: factor on the end marker's column of the head; at 3, about every tenth sampled
        token is a marker, so turns end both ways.
      overrides: of ``Config.tiny``.
    """
    vocab = build_tokenizer(CORPUS, 400, directory)
    SPEC.save(directory)
    config = Config.tiny(
        vocab.size + 5,  # padded rows, as in published checkpoints
        image_token_id=vocab.image_pad,
        video_token_id=vocab.video_pad,
        vision_start_token_id=vocab.vision_start,
        vision_end_token_id=vocab.vision_end,
        **overrides,
    )
    params = io.init(config, seed)
    kernel = params["text"]["head"]["kernel"]
    kernel[...] = kernel[...].at[:, vocab.im_end].multiply(marker_gain)
    io.save(directory, config, params)
    assert Vocab.from_pretrained(directory).size == vocab.size


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
) -> Example:
    """A dialogue with ``given`` turns of history and ``turns`` open ones.

    Args:
      per_turn: frames of each turn, or of all of them.
      videos: turns whose frames are one video, two frames a second.
      replies: give every open turn a reply as well (a supervised example).
      pixels: frames to use instead of noise drawn from ``seed``.
    """
    rng = np.random.default_rng(seed)
    counts = (per_turn,) * (given + turns) if isinstance(per_turn, int) else per_turn
    pixels = frames(rng, sum(counts), *size) if pixels is None else pixels
    words = ["NO REPLY", "The red square appears.", "It moves to the left."]
    records, patches, shown = [], [], 0
    for index, count in enumerate(counts):
        video = index in videos
        own = pixels[shown : shown + count]
        parts = [own] if video else [own[i : i + 1] for i in range(count)]
        patches.extend(patchify(part, SPEC, video=video) for part in parts)
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
            )
        )
    dialogue = Dialogue(identity, tuple(records), system=SYSTEM, file="tiny.jsonl")
    return Example(dialogue, tuple(p.values for p in patches), tuple(p.grid for p in patches))
