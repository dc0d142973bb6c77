"""Rows as long as a run's rollouts were, by its logs, and buckets for them.

A row holds what was shown and what was sampled; only the latter is not known from the data. Plain
replies are counted as their text's tokens and an end marker, which is what was sampled unless the
policy spells a text in an unusual way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.shapes import TURN_MULTIPLE, RolloutNeed, Shapes, row_buckets
from turnwise_jax.train.buckets.data import ROWS, Records
from turnwise_jax.train.buckets.options import Advice, Lengths, Option, advise
from turnwise_jax.train.metrics import GROUPS, read_jsonl


class LoggedBatch(NamedTuple):
    """The rows of one step.

    ``bucket``: of its rollouts; what its rows have room for follows from it. ``sampled``: tokens of
    each row. ``held``: tokens of all rows, and of the contexts that they share.
    """

    bucket: Shapes
    sampled: tuple[int, ...]
    held: int

    @property
    def longest(self) -> int:
        return max(self.sampled)


def logged_batches(records: Records, directory: Path) -> list[LoggedBatch]:
    """What a run on these records has logged so far, a batch a step; [] for no log.

    Raises:
      InputError: the logs are of other records.
    """
    path = directory / GROUPS
    place = {dialogue.id: number for number, dialogue in enumerate(records.dialogues)}
    lines = read_jsonl(path)
    for line in lines:
        if line.get("group") not in place:
            raise InputError(
                "is not in the data of this config; name the run's own with --run=DIR",
                file=path,
                record=line.get("group"),
            )
    steps = [list(step) for _, step in groupby(lines, key=itemgetter("step"))]
    read = _answers if records.config.algorithm.name == "avatar" else _rollouts
    return list(read(records, place, steps))


def row_advice(records: Records, batches: Sequence[LoggedBatch]) -> Advice:
    """Buckets for the rows that were logged, behind the config's rollout buckets."""
    most = max(bucket.turns * bucket.new_tokens for bucket in records.rollout_shapes)
    longest_S = np.array([batch.longest for batch in batches])
    rounded_S = np.minimum(-(-longest_S // TURN_MULTIPLE) * TURN_MULTIPLE, most)
    lengths_M = np.unique([*rounded_S.tolist(), most])

    def option(lengths: tuple[int, ...]) -> Option:
        ran = [_room(records, batch, lengths) for batch in batches]
        times = Counter(actions for _, actions in ran)
        rooms = sorted({*times, *(a for _, a in _rooms(records, batches[0].bucket, lengths))})
        slots = sum(slots for slots, _ in ran)
        padding = 1.0 - sum(batch.held for batch in batches) / slots
        shares = tuple(times[room] / len(batches) for room in rooms)
        return Option(lengths, tuple(map(str, rooms)), shares, padding)

    def of(cuts: Sequence[int]) -> Option:
        return option(tuple(lengths_M[list(cuts)].tolist()))

    slots_SM = np.array([_all_slots(records, batch, lengths_M.tolist()) for batch in batches])
    below_MM = np.array([slots_SM[longest_S <= m].sum(axis=0) for m in lengths_M]) / len(batches)
    now = option(tuple(records.config.shapes.row_lengths))
    return advise(ROWS, "training rows, by sampled tokens", below_MM, of, now)


def sampled_lengths(batches: Sequence[LoggedBatch]) -> Lengths:
    """Of every logged row."""
    values = np.array([count for batch in batches for count in batch.sampled])
    return Lengths("sampled", "tokens that a rollout sampled, by the run's log", values)


def _rooms(records: Records, bucket: Shapes, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(T, A) of the rows behind a rollout bucket; of the halvings for no lengths."""
    return row_buckets(
        bucket, records.config.shapes.row_buckets, shared=_shared(records), lengths=lengths
    )


def _room(records: Records, batch: LoggedBatch, lengths: Sequence[int]) -> tuple[int, int]:
    """(slots, A) of the bucket in which a batch ran, or would have."""
    for length, actions in _rooms(records, batch.bucket, lengths):
        if batch.longest <= actions:
            return _slots(records, batch, length), actions
    raise InputError("the logs are of a run with longer replies", field="rollout.max_new_tokens")


def _all_slots(records: Records, batch: LoggedBatch, lengths: Sequence[int]) -> list[int]:
    """Of a batch in a bucket of each length."""
    rooms = {actions: length for length, actions in _rooms(records, batch.bucket, lengths)}
    most = max(rooms)
    return [_slots(records, batch, rooms[min(actions, most)]) for actions in lengths]


def _slots(records: Records, batch: LoggedBatch, length: int) -> int:
    config = records.config
    samples = config.rollout.group_size
    if config.algorithm.name == "avatar":
        samples += config.replay.samples
    contexts = batch.bucket.context if _shared(records) else 0
    return records.batch * (samples * length + contexts)


def _shared(records: Records) -> bool:
    return bool(records.config.shapes.get("shared_context", False))


def _rollouts(
    records: Records, place: Mapping[str, int], steps: Sequence[Sequence[dict[str, Any]]]
) -> Iterator[LoggedBatch]:
    limit, shared = records.config.rollout.max_new_tokens, _shared(records)
    for step in steps:
        numbers = {line["group"]: place[line["group"]] for line in step}
        needs = [records.needs[number] for number in numbers.values()]
        bucket = _bucket(records, needs)
        sampled, held = [], 0
        for line in step:
            need = records.needs[numbers[line["group"]]]
            counts = [
                len(records.policy.vocab.encode(text))
                for text in line.get("raw", line["replies"])[: need.turns]
            ]
            sampled.append(sum(min(count + 1, limit) for count in counts))
            closed = sum(min(count, limit) + 1 for count in counts)  # a cut turn's marker too
            held += need.branch - need.turns * (limit + 1) + closed
            held += 0 if shared else need.context - 1
        held += sum(need.context - 1 for need in needs) if shared else 0
        yield LoggedBatch(bucket, tuple(sampled), held)


def _bucket(records: Records, needs: Sequence[RolloutNeed]) -> Shapes:
    """The first rollout bucket long enough for all; each has room for the media of any batch."""
    names = ("context", "turn", "turns", "branch")
    for bucket in records.rollout_shapes:
        if all(getattr(need, name) <= getattr(bucket, name) for need in needs for name in names):
            return bucket
    return records.rollout_shapes[-1]


def _answers(
    records: Records, place: Mapping[str, int], steps: Sequence[Sequence[dict[str, Any]]]
) -> Iterator[LoggedBatch]:
    """Fresh and replayed answers; their rows have room for the longest context of all."""
    widest = records.rollout_shapes[-1]
    for step in steps:
        sampled = tuple(line["tokens"] for line in step)
        contexts = sum(records.needs[place[line["group"]]].context for line in step)
        yield LoggedBatch(widest, sampled, contexts + sum(sampled))
