"""From examples to a batch of static shape: the host side of a rollout's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from turnwise_jax.data.chat import Lengths, Piece, Row
from turnwise_jax.data.pipeline import Example
from turnwise_jax.errors import InputError
from turnwise_jax.models.media import FeatureRows, Media, MediaInput, media_index
from turnwise_jax.rollout.decode import Chunk
from turnwise_jax.rollout.features import KeptFeatures, SliceFeatures
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.sampling import prompt_seed
from turnwise_jax.rollout.shapes import RolloutNeed, RowShapes, Shapes, choose


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """B prompts as NumPy arrays; nothing in it depends on the policy's replies or on G.

    Attributes:
      ids: the prompts' names; shorter than B where the batch was padded.
      shapes: the bucket.
      media: every prompt's frames and sounds once, ``[S, ...]``, or their features, from memory by
        slice or as the towers give them; None if there are none.
      context: what precedes the first decision, ``[B, ...]``.
      turns: the later user turns, ``[K, B, ...]``; turn 0 is empty, the context ends with it.
      turn_mask: bool ``[B, K]``, turns that exist. time: f32 ``[B, K]``, seconds of video shown.
      seed: uint32 ``[B]``, the prompts' share in the random keys.
    """

    ids: tuple[str, ...]
    shapes: Shapes
    media: MediaInput | SliceFeatures | Media | None
    context: Chunk
    turns: Chunk
    turn_mask: np.ndarray
    time: np.ndarray
    seed: np.ndarray

    def turn(self, k: int) -> Chunk:
        """User turn k of every prompt, ``[B, ...]``."""
        return jax.tree.map(lambda array: array[k], self.turns)

    @property
    def depth(self) -> int:
        """Turns that the longest dialogue has, at most K."""
        return int(self.turn_mask.sum(axis=1).max())


def prompt_batch(
    examples: Sequence[Example],
    policy: Policy,
    buckets: Sequence[Shapes],
    kept: KeptFeatures | None = None,
) -> PromptBatch:
    """Lays out examples in the first bucket that holds all of them.

    Args:
      examples: dialogues with at least one open turn, and their frames.
      policy: whose tokens and positions to use.
      buckets: shapes with one common ``new_tokens``, the smallest first.
      kept: features to take instead of frames and sounds, if they are there for all examples.

    Raises:
      InputError: naming the dialogue that has no open turn or fits no bucket.
    """
    pieces = [_pieces(example, policy) for example in examples]
    needs = [
        _need(own, example, buckets[0].new_tokens)
        for own, example in zip(pieces, examples, strict=True)
    ]
    shapes = choose(buckets, needs, [example.dialogue for example in examples])
    batch, firsts = _blank(examples, policy, shapes, kept)
    for b, (example, own, first) in enumerate(zip(examples, pieces, firsts, strict=True)):
        _fill(batch.context, (b,), own[0], policy, shapes, first)
        for k, piece in enumerate(own[1:], 1):
            _fill(batch.turns, (k, b), piece, policy, shapes, first)
        times = [turn.time for turn in example.dialogue.open_turns]
        batch.turn_mask[b, : len(own)] = True
        batch.time[b] = np.pad(times, (0, shapes.turns - len(times)), mode="edge")
        batch.seed[b] = prompt_seed(example.dialogue.id)
    return batch


def empty_batch(policy: Policy, shapes: Shapes, *, count: int = 0) -> PromptBatch:
    """A batch of this shape in which no prompt has a turn; ``count`` of them have a name."""
    return replace(_blank([], policy, shapes)[0], ids=("",) * count)


def _blank(
    examples: Sequence[Example],
    policy: Policy,
    shapes: Shapes,
    kept: KeptFeatures | None = None,
) -> tuple[PromptBatch, list[First]]:
    """The media and ids of examples, no text yet; and where each example's slices begin."""
    media, firsts = media_batch(examples, policy, shapes, kept)
    batch = PromptBatch(
        ids=tuple(example.dialogue.id for example in examples),
        shapes=shapes,
        media=media,
        context=_empty(shapes.context, shapes.batch),
        turns=_empty(shapes.turn, shapes.turns, shapes.batch),
        turn_mask=np.zeros((shapes.batch, shapes.turns), bool),
        time=np.zeros((shapes.batch, shapes.turns), np.float32),
        seed=np.zeros(shapes.batch, np.uint32),
    )
    # Even a padding prompt has one token of context: every row has something pending.
    batch.context.length[:] = 1
    batch.context.span[:] = 1
    return batch, firsts


class First(NamedTuple):
    """Where an example's vision and audio slices begin in the batch."""

    slice: int
    sound: int


def media_batch(
    examples: Sequence[Example],
    policy: Policy,
    shapes: Shapes | RowShapes,
    kept: KeptFeatures | None = None,
) -> tuple[MediaInput | SliceFeatures | None, list[First]]:
    """The frames and sounds of all examples, or their features, and where each example's begin.

    Args:
      shapes: room for ``slices`` of ``slots`` each and for ``sounds``; without room for either
        there is None instead of an input.
      kept: features to take instead, if they are there for all examples.

    Raises:
      InputError: naming the dialogue whose frames are too large for ``slots``.
    """
    slices: list[tuple[np.ndarray, tuple[int, int]]] = []
    sounds: list[np.ndarray] = []
    firsts = []
    for example in examples:
        _check_slots(example, policy, shapes.slots)
        before = First(shapes.part * shapes.slices, shapes.part * shapes.sounds)
        firsts.append(First(before.slice + len(slices), before.sound + len(sounds)))
        slices.extend(example.slices)
        sounds.extend(example.sound_slices)
    if not (shapes.slices or shapes.sounds):
        return None, firsts
    features = kept.batch(examples, shapes) if kept is not None else None
    if features is not None:
        return features, firsts
    media = policy.family.media_input(
        slices,
        sounds,
        policy.config,
        slots=shapes.slots,
        num_slices=shapes.slices,
        num_sounds=shapes.sounds,
    )
    return media, firsts


def piece_media_index(
    piece: Piece | Row, policy: Policy, shapes: Shapes | RowShapes, first: First
) -> np.ndarray:
    """Feature row of each token of a piece of an example, -1 for text."""
    tokens = shapes.slots.tokens if shapes.slots else 0
    return media_index(
        len(piece.tokens),
        piece.media,
        policy.config.merge,
        FeatureRows(shapes.slices * shapes.parts, tokens, policy.config.sound_tokens),
        first_slice=first.slice,
        first_sound=first.sound,
    )


def _check_slots(example: Example, policy: Policy, slots: Any) -> None:
    sizes = sorted({(h, w) for _, h, w in example.grids})
    if not sizes:
        return
    wanted = policy.family.slots_for(sizes, policy.config)
    if any(need > room for need, room in zip(wanted, slots, strict=True)):
        raise InputError(
            f"frames of {sizes} patches need {wanted}, the shape has {slots}",
            file=example.dialogue.file,
            record=example.dialogue.id,
            field="frames",
        )


def _pieces(example: Example, policy: Policy) -> list[Piece]:
    """Context, then the later open turns."""
    dialogue, template = example.dialogue, policy.template
    count = len(dialogue.open_turns)
    if not count:
        raise InputError(
            "every turn has a reply: nothing is left to decide",
            file=dialogue.file,
            record=dialogue.id,
        )
    later = [template.turn(dialogue, k, example.grids) for k in range(1, count)]
    return [template.context(dialogue, example.grids), *later]


def _need(pieces: Sequence[Piece], example: Example, new_tokens: int) -> RolloutNeed:
    context, *turns = (len(piece.tokens) for piece in pieces)
    slices = sum(t for t, _, _ in example.grids)
    lengths = Lengths(context, tuple(turns))
    return RolloutNeed.of(lengths, slices, len(example.sound_slices), new_tokens)


def _empty(width: int, *lead: int) -> Chunk:
    return Chunk(
        tokens=np.zeros((*lead, width), np.int32),
        media_index=np.full((*lead, width), -1, np.int32),
        positions=np.zeros((*lead, 3, width), np.int32),
        length=np.zeros(lead, np.int32),
        span=np.zeros(lead, np.int32),
    )


def _fill(
    chunk: Chunk, at: tuple[int, ...], piece: Piece, policy: Policy, shapes: Shapes, first: First
) -> None:
    """Writes one piece into its place of a padded chunk."""
    count = len(piece.tokens)
    positions, span = policy.family.positions(piece.tokens, piece.media, policy.config)
    chunk.tokens[at][:count] = piece.tokens
    chunk.positions[at][:, :count] = positions
    chunk.length[at], chunk.span[at] = count, span
    if piece.media:
        chunk.media_index[at][:count] = piece_media_index(piece, policy, shapes, first)
