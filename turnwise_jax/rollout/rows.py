"""From dialogues to training rows: the sampled (or given) ids, where they stand, what they see.

A rollout's row is laid together from the very pieces and ids that were shown and sampled, at the
positions they had; nothing is tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from turnwise_jax.data.chat import Row
from turnwise_jax.data.pipeline import Example
from turnwise_jax.errors import InputError
from turnwise_jax.models.base import TokenRows
from turnwise_jax.rollout.features import KeptFeatures
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import First, PromptBatch, media_batch, piece_media_index
from turnwise_jax.rollout.shapes import RowNeed, RowShapes, choose
from turnwise_jax.rollout.stream import Rollouts


class TrainRows(NamedTuple):
    """N trajectories padded to T tokens and A actions.

    ``tokens``: int32 ``[N, T]``. ``positions``: int32 ``[N, 3, T]``, M-RoPE. ``media_index``: int32
    ``[N, T]``, row of the batch's media features, -1 for text. ``valid``: bool ``[N, T]``.

    ``action_target``: int32 ``[N, A]``, the trained ids in order. ``action_pos``: int32 ``[N, A]``,
    index of the hidden state that predicts each, one before its own. ``action_mask``: bool
    ``[N, A]``. ``turn_id``: int32 ``[N, A]``, decision turn 0..K-1. ``sampler_logp``: f32
    ``[N, A]``, recorded while sampling; 0 for given replies. All are 0 where the mask is False.
    """

    tokens: np.ndarray
    positions: np.ndarray
    media_index: np.ndarray
    valid: np.ndarray
    action_pos: np.ndarray
    action_target: np.ndarray
    action_mask: np.ndarray
    turn_id: np.ndarray
    sampler_logp: np.ndarray

    @classmethod
    def empty(cls, rows: int, length: int, actions: int) -> TrainRows:
        """N rows without a token."""
        per_token, per_action = (rows, length), (rows, actions)
        return cls(
            tokens=np.zeros(per_token, np.int32),
            positions=np.zeros((rows, 3, length), np.int32),
            media_index=np.full(per_token, -1, np.int32),
            valid=np.zeros(per_token, bool),
            action_pos=np.zeros(per_action, np.int32),
            action_target=np.zeros(per_action, np.int32),
            action_mask=np.zeros(per_action, bool),
            turn_id=np.zeros(per_action, np.int32),
            sampler_logp=np.zeros(per_action, np.float32),
        )


def row_size(rollouts: Rollouts, *, shared: bool = False) -> tuple[int, int]:
    """Room that :func:`train_rows` needs: tokens of the longest row, actions of the busiest."""
    prompts = rollouts.prompts
    count = len(rollouts.ids)
    context_B = 1 if shared else prompts.context.length[:count]
    shown_B = context_B + prompts.turns.length[:, :count].sum(axis=0)
    sampled_BG = rollouts.length.sum(axis=2)
    markers_BG = rollouts.truncated.sum(axis=2)
    return int((shown_B[:, None] + sampled_BG + markers_BG).max()), int(sampled_BG.max())


def train_rows(rollouts: Rollouts, *, length: int, actions: int, shared: bool = False) -> TrainRows:
    """The rows of all rollouts, N = B x G in (b, g) order.

    Loss tokens are exactly the sampled ids. The marker inserted after a cut turn is in the row but
    is no action. ``media_index`` refers to ``rollouts.prompts.media``.

    Args:
      rollouts: finished rollouts.
      length: T, at least :func:`row_size`'s.
      actions: A, likewise.
      shared: rows begin with their context's last token, which predicts the first action; the
        rest of it stands once, in :func:`context_rows`.
    """
    needed = row_size(rollouts, shared=shared)
    if needed[0] > length or needed[1] > actions:
        raise InputError(
            f"rows need {needed[0]} tokens and {needed[1]} actions, there is room for "
            f"{length} and {actions}"
        )
    count, group_size = rollouts.length.shape[:2]
    rows = TrainRows.empty(count * group_size, length, actions)
    for b in range(count):
        for g in range(group_size):
            _write_rollout(rows, b * group_size + g, rollouts, b, g, shared)
    return rows


def context_rows(prompts: PromptBatch, *, copies: int = 1) -> TokenRows:
    """What the rollouts of each prompt have in common, ``[B x copies, C]``: all but the context's
    last token.

    Args:
      copies: how often each prompt comes in a row.
    """
    context, count = prompts.context, len(prompts.ids)
    rows = TokenRows(
        tokens=context.tokens[:count],
        positions=context.positions[:count],
        media_index=context.media_index[:count],
        valid=np.arange(context.tokens.shape[1]) < context.length[:count, None] - 1,
    )
    return TokenRows(*(np.repeat(array, copies, axis=0) for array in rows))


def _write_rollout(
    rows: TrainRows, n: int, rollouts: Rollouts, b: int, g: int, shared: bool
) -> None:
    """Context, reply 0, turn 1, reply 1, ... of one rollout into row n."""
    prompts = rollouts.prompts
    context = prompts.context
    end = int(context.length[b])
    own = slice(end - 1 if shared else 0, end)
    at = own.stop - own.start
    next_position = int(context.span[b])
    rows.tokens[n, :at] = context.tokens[b, own]
    rows.positions[n, :, :at] = context.positions[b, :, own]
    rows.media_index[n, :at] = context.media_index[b, own]
    action = 0
    for k in range(int(rollouts.turn_mask[b].sum())):
        end = at + int(prompts.turns.length[k, b])
        shown = prompts.turns
        rows.tokens[n, at:end] = shown.tokens[k, b, : end - at]
        rows.positions[n, :, at:end] = shown.positions[k, b, :, : end - at] + next_position
        rows.media_index[n, at:end] = shown.media_index[k, b, : end - at]
        next_position += int(shown.span[k, b])
        at, sampled = end, int(rollouts.length[b, g, k])
        closed = sampled + int(rollouts.truncated[b, g, k])
        rows.tokens[n, at : at + closed] = rollouts.marker
        rows.tokens[n, at : at + sampled] = rollouts.tokens[b, g, k, :sampled]
        rows.positions[n, :, at : at + closed] = next_position + np.arange(closed)
        own = slice(action, action + sampled)
        rows.action_pos[n, own] = np.arange(at - 1, at - 1 + sampled)
        rows.action_target[n, own] = rollouts.tokens[b, g, k, :sampled]
        rows.turn_id[n, own] = k
        rows.sampler_logp[n, own] = rollouts.logp[b, g, k, :sampled]
        at, next_position, action = at + closed, next_position + closed, action + sampled
    rows.valid[n, :at] = True
    rows.action_mask[n, :action] = True


def sft_rows(
    examples: Sequence[Example],
    policy: Policy,
    buckets: Sequence[RowShapes],
    kept: KeptFeatures | None = None,
) -> tuple[Any, TrainRows, RowShapes]:
    """Dialogues with given replies as rows of the first bucket that holds them.

    Args:
      kept: features to take instead of frames and sounds, if they are there for all examples.

    Returns:
      The media that ``media_index`` refers to (None if there are none), the rows, the bucket.

    Raises:
      InputError: naming the dialogue that fits no bucket.
    """
    parts = [policy.template.training_row(x.dialogue, x.grids) for x in examples]
    needs = [
        RowNeed.of(row, x.grids, len(x.sound_slices))
        for row, x in zip(parts, examples, strict=True)
    ]
    shapes = choose(buckets, needs, [x.dialogue for x in examples])
    media, firsts = media_batch(examples, policy, shapes, kept)
    rows = TrainRows.empty(shapes.batch, shapes.length, shapes.actions)
    for n, (row, first) in enumerate(zip(parts, firsts, strict=True)):
        _write_given(rows, n, row, policy, shapes, first)
    return media, rows, shapes


def blank_rows(policy: Policy, shapes: RowShapes) -> tuple[Any, TrainRows]:
    """Media and rows of this bucket without a dialogue."""
    rows = TrainRows.empty(shapes.batch, shapes.length, shapes.actions)
    return media_batch([], policy, shapes)[0], rows


def _write_given(
    rows: TrainRows, n: int, row: Row, policy: Policy, shapes: RowShapes, first: First
) -> None:
    count, at = len(row.tokens), np.flatnonzero(row.loss_mask)
    rows.tokens[n, :count] = row.tokens
    rows.positions[n, :, :count], _ = policy.family.positions(row.tokens, row.media, policy.config)
    if row.media:
        rows.media_index[n, :count] = piece_media_index(row, policy, shapes, first)
    rows.valid[n, :count] = True
    rows.action_pos[n, : len(at)] = at - 1
    rows.action_target[n, : len(at)] = row.tokens[at]
    rows.action_mask[n, : len(at)] = True
    rows.turn_id[n, : len(at)] = row.turn_id[at]
