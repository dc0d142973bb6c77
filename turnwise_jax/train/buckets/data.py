"""Lengths of a run's records, and buckets for batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from turnwise_jax.data.pipeline import Grid
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.buckets import reach_of_batches, reach_of_draws
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.shapes import (
    TOKEN_MULTIPLE,
    TURN_MULTIPLE,
    RolloutNeed,
    RowNeed,
    RowShapes,
    Shapes,
    need_of,
)
from turnwise_jax.train.answer_setup import grids_of
from turnwise_jax.train.answers import asked_forms
from turnwise_jax.train.buckets.options import Advice, Lengths, Option, advise
from turnwise_jax.train.data import read_data

ROLLOUTS, ROWS = "shapes.rollout_lengths", "shapes.row_lengths"


@dataclass(frozen=True)
class Records:
    """A run's records in every form in which they are asked.

    Attributes:
      dialogues, grids: plain ones in the order of the data, then those with their hint, or those
        that are held out.
      plain: how many are plain; batches are drawn of these.
    """

    config: ConfigDict
    policy: Policy
    dialogues: Sequence[Dialogue]
    grids: Sequence[Sequence[Grid]]
    plain: int

    @classmethod
    def read(cls, config: ConfigDict, policy: Policy) -> Records:
        """Records and file headers; nothing is decoded.

        Raises:
          InputError: a record or file that cannot be used, or less than one batch.
        """
        data = read_data(config, policy)
        dialogues = data.dialogues
        if len(dialogues) < config.data.batch_size:
            raise InputError(
                f"{len(dialogues)} usable records do not fill one batch of "
                f"{config.data.batch_size}",
                file=config.data.path or config.data.root,
            )
        if config.algorithm.name == "avatar":
            asked = asked_forms(dialogues, hints=config.hints.use)
            own = grids_of(asked, data)
            return cls(config, policy, [*asked.values()], [own[n] for n in asked], len(dialogues))
        return cls(config, policy, *data.every, len(dialogues))

    @property
    def supervised(self) -> bool:
        return self.config.algorithm.name == "sft"

    @property
    def batch(self) -> int:
        """Prompts or rows of a batch of all processes."""
        return self.config.data.batch_size

    @property
    def own_batch(self) -> int:
        """Those of one process."""
        return self.batch // max(self.config.hosts.count, 1)

    @cached_property
    def needs(self) -> list[RolloutNeed]:
        """Of rollouts, in the order of ``dialogues``."""
        new_tokens = self.config.rollout.max_new_tokens
        return [
            need_of(dialogue, own, self.policy, new_tokens)
            for dialogue, own in zip(self.dialogues, self.grids, strict=True)
        ]

    @cached_property
    def row_needs(self) -> list[RowNeed]:
        """Of rows with given replies, in the order of ``dialogues``."""
        template = self.policy.template
        return [
            RowNeed.of(template.training_row(dialogue, own), own, template.sound_slices(dialogue))
            for dialogue, own in zip(self.dialogues, self.grids, strict=True)
        ]

    @cached_property
    def rollout_shapes(self) -> tuple[Shapes, ...]:
        """The rollout buckets that the config makes."""
        return Shapes.for_dialogues(
            self.dialogues,
            self.grids,
            self.policy,
            batch_size=self.own_batch,
            new_tokens=self.config.rollout.max_new_tokens,
            buckets=self.config.shapes.rollout_buckets,
            lengths=self.config.shapes.rollout_lengths,
        )

    @cached_property
    def row_shapes(self) -> tuple[RowShapes, ...]:
        """The buckets that the config makes of rows with given replies."""
        return RowShapes.for_dialogues(
            self.dialogues,
            self.grids,
            self.policy,
            batch_size=self.own_batch,
            buckets=self.config.shapes.row_buckets,
            lengths=self.config.shapes.row_lengths,
        )

    def reach(self, levels: Sequence[int], count: int) -> np.ndarray:
        """Share of batches without a record above each level, f64 ``[count]``.

        Shuffled, a batch is any records of an epoch; otherwise the batches are those of the data.
        """
        plain = np.asarray(levels[: self.plain], int)
        if self.config.data.shuffle:
            return reach_of_draws(np.bincount(plain, minlength=count).tolist(), self.batch)
        whole = self.plain // self.batch * self.batch
        return reach_of_batches(plain[:whole].reshape(-1, self.batch).max(axis=1), count)

    def mean(self, values: Sequence[int]) -> float:
        """Over the records that batches are made of."""
        used = self.plain if self.config.data.shuffle else self.plain // self.batch * self.batch
        return float(np.mean(values[:used]))


class _Room(NamedTuple):
    """What decides whether a batch runs in a bucket, and what it costs there."""

    fits: tuple[int, ...]
    slots: int
    text: str


def histograms(records: Records) -> list[Lengths]:
    """Of the data: contexts, branches and whole rollouts, or rows with given replies."""
    if records.supervised:
        needs = records.row_needs
        rows = np.array([need.length for need in needs])
        trained = np.array([need.actions for need in needs])
        return [
            Lengths("rows", "tokens of a row", rows),
            Lengths("trained", "tokens of its replies, markers included", trained),
        ]
    rollouts = records.needs
    return [
        Lengths(
            "contexts",
            "tokens before the first decision",
            np.array([need.context for need in rollouts]),
        ),
        Lengths(
            "branches",
            "tokens of a rollout from there on, replies of full length",
            np.array([need.branch for need in rollouts]),
        ),
        Lengths(
            "rollouts",
            "tokens of a whole rollout, replies of full length",
            np.array([need.whole for need in rollouts]),
        ),
    ]


def rollout_advice(records: Records) -> Advice:
    """Buckets for rollouts: one context a prompt, one branch a rollout."""
    group, batch = records.config.rollout.group_size, records.batch

    def room(context: int, turn: int, turns: int, branch: int) -> _Room:
        slots = batch * (context + group * branch)
        return _Room((context, turn, turns, branch), slots, f"{context}+{group}x{branch}")

    fields = ("context", "turn", "turns", "branch")
    sizes_R4 = np.array([[getattr(need, name) for name in fields] for need in records.needs])
    whole_R = np.array([need.whole for need in records.needs])
    held = batch * records.mean(sizes_R4[:, 0] + group * sizes_R4[:, 3])
    lengths_M, rooms_M4 = _candidates(whole_R, sizes_R4)
    rooms_M4[:, [0, 3]] = _up(rooms_M4[:, [0, 3]])
    rooms_M4[:, 1] = _up(rooms_M4[:, 1], TURN_MULTIPLE)
    rooms = [room(*row) for row in rooms_M4.tolist()]
    now = [room(s.context, s.turn, s.turns, s.branch) for s in records.rollout_shapes]
    present = tuple(records.config.shapes.rollout_lengths)
    title = "rollouts: the cache of a batch, contexts and branches"
    return _advice(
        records, ROLLOUTS, title, (whole_R, sizes_R4), (lengths_M, rooms), (present, now), held
    )


def supervised_advice(records: Records) -> Advice:
    """Buckets for rows with given replies."""
    batch = records.batch

    def room(length: int) -> _Room:
        return _Room((length,), batch * length, str(length))

    length_R = np.array([need.length for need in records.row_needs])
    held = batch * records.mean(length_R)
    lengths_M, rooms_M1 = _candidates(length_R, length_R[:, None])
    rooms = [room(*row) for row in _up(rooms_M1).tolist()]
    now = [room(s.length) for s in records.row_shapes]
    present = tuple(records.config.shapes.row_lengths)
    sizes = (length_R, length_R[:, None])
    return _advice(
        records, ROWS, "rows of given replies", sizes, (lengths_M, rooms), (present, now), held
    )


def _advice(
    records: Records,
    field: str,
    title: str,
    sizes: tuple[np.ndarray, np.ndarray],
    candidates: tuple[np.ndarray, list[_Room]],
    present: tuple[tuple[int, ...], list[_Room]],
    held: float,
) -> Advice:
    """
    Args:
      sizes: each record's length, and what of it must fit a room, ``[R]`` and ``[R, F]``.
      candidates: lengths, and the room of a bucket for each.
      present: the config's lengths and rooms.
      held: tokens of a batch in expectation.

    A batch runs in the first bucket whose lengths hold its records. Its media are not looked at:
    every bucket has room for those of the batches that it is made for.
    """
    length_R, sizes_RF = sizes
    lengths_M, rooms = candidates

    def option(lengths: tuple[int, ...], rooms: Sequence[_Room]) -> Option:
        fits_BR = [(sizes_RF <= np.array(room.fits)).all(axis=1) for room in rooms]
        reach_B = records.reach(np.argmax(fits_BR, axis=0).tolist(), len(rooms))
        shares_B = np.diff(reach_B, prepend=0.0)
        slots = float(shares_B @ [room.slots for room in rooms])
        texts = tuple(room.text for room in rooms)
        return Option(lengths, texts, tuple(shares_B.tolist()), 1.0 - held / slots)

    def of(cuts: Sequence[int]) -> Option:
        return option(tuple(lengths_M[list(cuts)].tolist()), [rooms[cut] for cut in cuts])

    level_R = np.searchsorted(lengths_M, length_R)
    reach_M = records.reach(level_R.tolist(), len(lengths_M))
    below_MM = np.outer(reach_M, [room.slots for room in rooms])
    return advise(field, title, below_MM, of, option(*present))


def _candidates(length_R: np.ndarray, sizes_RF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths to choose among, ``[M]``, and the least room for all records up to each, ``[M, F]``.

    Lengths are rounded as rooms are: what lies between two multiples costs the same.
    """
    lengths_M = np.unique(_up(length_R))
    order = np.argsort(length_R, kind="stable")
    widest_RF = np.maximum.accumulate(sizes_RF[order], axis=0)
    last_M = np.searchsorted(length_R[order], lengths_M, side="right") - 1
    return lengths_M, widest_RF[last_M]


def _up(sizes: np.ndarray, multiple: int = TOKEN_MULTIPLE) -> np.ndarray:
    return -(-sizes // multiple) * multiple
