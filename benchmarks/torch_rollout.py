"""Greedy rollouts of ``rollout.py`` with transformers' ``generate``, turn by turn.

Rows are all rollouts of a batch. Their replies differ in length, so columns of a row that hold
nothing are masked: behind a reply that ended early, and before a row's next user turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch_model import encode, grids, pixels
from transformers import DynamicCache


class Piece(NamedTuple):
    """What is shown before a decision: int64 ids, positions ``[3, n]`` from 0 on, their span."""

    tokens: np.ndarray
    positions: np.ndarray
    span: int


class Dialogues(NamedTuple):
    """N rows of K turns: ``pieces[n][k]`` precedes decision k.

    ``frames``: f32 ``[N, frames, patches, values]``. ``shown``: frames that each turn adds, K.
    """

    pieces: list[list[Piece]]
    frames: np.ndarray
    shown: list[int]


class Decoding(NamedTuple):
    """``limit``: most tokens of a reply. ``marker`` ends one, ``pad`` stands for nothing, ``image``
    for a token of a frame; ``allowed``: bool ``[V]``, ids that may be chosen."""

    limit: int
    marker: int
    pad: int
    image: int
    allowed: np.ndarray


class Replies(NamedTuple):
    """``tokens``: int64 ``[N, K, L]``, 0 behind each reply; ``length``: ``[N, K]``."""

    tokens: np.ndarray
    length: np.ndarray


def kept_cache(model: Any, dialogues: Dialogues, decoding: Decoding) -> Replies:
    """Every turn goes on from the keys and values of all before it.

    ``generate`` takes up a cache if it is given positions, and the new frames already encoded.
    """
    pieces = dialogues.pieces
    rows = len(pieces)
    cache = DynamicCache()
    ids, mask = torch.zeros((rows, 0), dtype=torch.long), torch.zeros((rows, 0), dtype=torch.long)
    where = torch.zeros((3, rows, 0), dtype=torch.long)
    position, closing = np.zeros(rows, np.int64), np.zeros(rows, bool)
    replies, seen = [], 0
    for k, count in enumerate(dialogues.shown):
        own = [_opened(pieces[n][k], position[n], closing[n], decoding) for n in range(rows)]
        position += [piece.span for piece in own]
        shown = _left_padded(own, decoding.pad)
        ids, mask, where = (
            torch.cat([old, new], dim=-1)
            for old, new in zip((ids, mask, where), shown, strict=True)
        )
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            position_ids=where,
            mm_encoder_outputs=encode(model, dialogues.frames[:, seen : seen + count]),
            cache=cache,
            **_options(decoding),
        )
        seen += count
        said, length = _read(made[:, ids.shape[1] :], decoding)
        replies.append((said, length))
        column = np.arange(made.shape[1] - ids.shape[1])
        ids = made
        real = torch.from_numpy(column < length[:, None]).long()
        mask = torch.cat([mask, real], dim=-1)
        after = torch.from_numpy(position[:, None] + column).expand(3, -1, -1)
        where = torch.cat([where, after], dim=-1)
        position += length
        closing = said[np.arange(rows), length - 1] != decoding.marker
    return _stacked(replies)


def encoded_again(model: Any, dialogues: Dialogues, decoding: Decoding) -> Replies:
    """Every turn reads the whole dialogue from the beginning, frames too."""
    pieces = dialogues.pieces
    text: list[list[int]] = [[] for _ in pieces]
    replies, seen = [], 0
    for k, count in enumerate(dialogues.shown):
        for row, own in zip(text, pieces, strict=True):
            row.extend(own[k].tokens.tolist())
        width = max(len(row) for row in text)
        ids = torch.tensor([[decoding.pad] * (width - len(row)) + row for row in text])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in text])
        seen += count
        frames = dialogues.frames[:, :seen]
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            mm_token_type_ids=(ids == decoding.image).int(),
            pixel_values=pixels(frames),
            image_grid_thw=grids(frames),
            **_options(decoding),
        )
        said, length = _read(made[:, width:], decoding)
        replies.append((said, length))
        for row, own, n in zip(text, said, length, strict=True):
            row.extend(own[:n].tolist())
            if row[-1] != decoding.marker:
                row.append(decoding.marker)
    return _stacked(replies)


def _options(decoding: Decoding) -> dict[str, Any]:
    banned = torch.from_numpy(~decoding.allowed)

    def allow(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(banned, -torch.inf)

    return {
        "max_new_tokens": decoding.limit,
        "do_sample": False,
        "eos_token_id": decoding.marker,
        "pad_token_id": decoding.pad,
        "logits_processor": [allow],
    }


def _opened(piece: Piece, position: int, closing: bool, decoding: Decoding) -> Piece:
    """A piece where it stands in its row, behind a marker if the reply before it was cut."""
    marker = np.full(int(closing), decoding.marker, np.int64)
    first = np.broadcast_to(position, (3, len(marker)))
    return Piece(
        np.concatenate([marker, piece.tokens]),
        np.concatenate([first, piece.positions + position + len(marker)], axis=1),
        piece.span + len(marker),
    )


def _left_padded(pieces: list[Piece], pad: int) -> tuple[torch.Tensor, ...]:
    """ids ``[N, T]``, mask ``[N, T]``, positions ``[3, N, T]``."""
    width = max(len(piece.tokens) for piece in pieces)
    ids = np.full((len(pieces), width), pad, np.int64)
    mask = np.zeros((len(pieces), width), np.int64)
    where = np.zeros((3, len(pieces), width), np.int64)
    for n, piece in enumerate(pieces):
        own = slice(width - len(piece.tokens), width)
        ids[n, own], mask[n, own], where[:, n, own] = piece.tokens, 1, piece.positions
    return torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(where)


def _read(made: torch.Tensor, decoding: Decoding) -> tuple[np.ndarray, np.ndarray]:
    """Replies ``[N, L]`` with zeros behind their end, and their lengths."""
    ids = np.zeros((len(made), decoding.limit), np.int64)
    ids[:, : made.shape[1]] = made.numpy()
    ends = ids == decoding.marker
    length = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, decoding.limit)
    return np.where(np.arange(decoding.limit) < length[:, None], ids, 0), length


def _stacked(replies: list[tuple[np.ndarray, np.ndarray]]) -> Replies:
    tokens, length = zip(*replies, strict=True)
    return Replies(np.stack(tokens, axis=1), np.stack(length, axis=1))
