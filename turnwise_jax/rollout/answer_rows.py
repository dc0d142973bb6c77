"""Rows of one-turn answers, sampled now or replayed: the same answer gives the same row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnwise_jax.data.chat import Piece
from turnwise_jax.data.hints import plain_id
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.features import KeptFeatures
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import First, media_batch, piece_media_index
from turnwise_jax.rollout.rows import TrainRows
from turnwise_jax.rollout.shapes import RowShapes


class Answer(NamedTuple):
    """What was sampled for the one open turn of a dialogue.

    ``dialogue``: as it was asked, with or without its hint. ``tokens``: int32 ``[L]``, the end
    marker included if it was sampled. ``logp``: f32 ``[L]``, behaviour log-probabilities.
    ``truncated``: cut at the limit, so that its marker is in the row but is no action.
    """

    dialogue: Dialogue
    tokens: np.ndarray
    logp: np.ndarray
    truncated: bool


class Shown(NamedTuple):
    """The media of several dialogues, and where each one's slices begin in it.

    ``examples``: by the dialogues' names without a hint, in the order in which they stand there.
    """

    media: Any
    examples: Mapping[str, tuple[Example, First]]

    @classmethod
    def of(
        cls,
        examples: Mapping[str, Example],
        policy: Policy,
        shapes: RowShapes,
        kept: KeptFeatures | None = None,
    ) -> Shown:
        """Of all examples; ``kept``: see ``media_batch``."""
        media, firsts = media_batch(list(examples.values()), policy, shapes, kept)
        places = zip(examples.values(), firsts, strict=True)
        return cls(media, dict(zip(examples, places, strict=True)))


def answer_rows(
    answers: Mapping[int, Answer],
    examples: Mapping[str, Example],
    policy: Policy,
    shapes: RowShapes,
    shown: Shown | None = None,
) -> tuple[Any, TrainRows]:
    """The media and rows of a batch of answers.

    Args:
      answers: by row number; other rows stay empty. Answers to one dialogue share its media, with
        and without its hint.
      examples: the media of every dialogue, by its name without a hint.
      shapes: room for all rows, and for the media of all distinct dialogues.
      shown: these media, laid out or encoded already, among others perhaps.

    Returns:
      The media that ``media_index`` refers to (None if there are none), and the rows.

    Raises:
      InputError: an answer that the shapes have no room for; names its dialogue.
    """
    if shown is None:
        names = dict.fromkeys(plain_id(answer.dialogue.id) for answer in answers.values())
        shown = Shown.of({name: examples[name] for name in names}, policy, shapes)
    rows = TrainRows.empty(shapes.batch, shapes.length, shapes.actions)
    asked: dict[str, _Asked] = {}
    for n, answer in answers.items():
        dialogue = answer.dialogue
        if dialogue.id not in asked:
            example, first = shown.examples[plain_id(dialogue.id)]
            asked[dialogue.id] = _asked(dialogue, example, policy, shapes, first)
        _write(rows, n, answer, asked[dialogue.id], policy.vocab.im_end)
    return shown.media, rows


def answer_size(answers: Sequence[Answer], contexts: Mapping[str, int]) -> tuple[int, int]:
    """Room that rows of these answers need: tokens of the longest, actions of the busiest.

    Args:
      contexts: tokens before the answer, by the dialogue's name.
    """
    lengths = [contexts[a.dialogue.id] + len(a.tokens) + int(a.truncated) for a in answers]
    return max(lengths, default=0), max((len(a.tokens) for a in answers), default=0)


class _Asked(NamedTuple):
    """What stands before an answer."""

    piece: Piece
    positions: np.ndarray
    span: int
    media_index: np.ndarray | None


def _asked(
    dialogue: Dialogue, example: Example, policy: Policy, shapes: RowShapes, first: First
) -> _Asked:
    piece = policy.template.context(dialogue, example.grids)
    positions, span = policy.family.positions(piece.tokens, piece.media, policy.config)
    index = piece_media_index(piece, policy, shapes, first) if piece.media else None
    return _Asked(piece, positions, span, index)


def _write(rows: TrainRows, n: int, answer: Answer, asked: _Asked, marker: int) -> None:
    """Context and answer of one sample into row n."""
    at, sampled = len(asked.piece.tokens), len(answer.tokens)
    end = at + sampled + int(answer.truncated)
    if end > rows.tokens.shape[1] or sampled > rows.action_mask.shape[1]:
        raise InputError(
            f"needs {end} tokens and {sampled} actions, there is room for "
            f"{rows.tokens.shape[1]} and {rows.action_mask.shape[1]}",
            file=answer.dialogue.file,
            record=answer.dialogue.id,
        )
    rows.tokens[n, :at] = asked.piece.tokens
    rows.tokens[n, at:end] = marker
    rows.tokens[n, at : at + sampled] = answer.tokens
    rows.positions[n, :, :at] = asked.positions
    rows.positions[n, :, at:end] = asked.span + np.arange(end - at)
    if asked.media_index is not None:
        rows.media_index[n, :at] = asked.media_index
    rows.valid[n, :end] = True
    rows.action_pos[n, :sampled] = np.arange(at - 1, at - 1 + sampled)
    rows.action_target[n, :sampled] = answer.tokens
    rows.action_mask[n, :sampled] = True
    rows.sampler_logp[n, :sampled] = answer.logp
