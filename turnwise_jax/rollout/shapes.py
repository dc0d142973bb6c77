"""Static shapes: room for every dialogue of a batch, in a few buckets per data set.

Batches that fall into one bucket share one compilation. Buckets are listed from the smallest to the
largest, and a batch takes the first one that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from turnwise_jax.data.chat import Grid, Lengths, Row
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy

TOKEN_MULTIPLE = 32  # contexts, caches and rows are rounded up to this many tokens
TURN_MULTIPLE = 8


class RolloutNeed(NamedTuple):
    """Room that one dialogue needs in a rollout, named as in :class:`Shapes`."""

    context: int
    turn: int
    turns: int
    branch: int
    slices: int
    sounds: int

    @property
    def whole(self) -> int:
        """Tokens of the longest finished rollout."""
        return self.context - 1 + self.branch

    @classmethod
    def of(cls, lengths: Lengths, slices: int, sounds: int, new_tokens: int) -> RolloutNeed:
        """From exact token counts.

        Of a finished rollout its own are the context's last token, the later user turns and, per
        decision, ``new_tokens`` sampled tokens and a marker.
        """
        turns = 1 + len(lengths.turns)
        branch = 1 + sum(lengths.turns) + turns * (new_tokens + 1)
        return cls(lengths.context, max(lengths.turns, default=1), turns, branch, slices, sounds)


class Shapes(NamedTuple):
    """One bucket of rollouts.

    ``batch``: B prompts; a smaller batch is padded with prompts that take no turn. ``context``:
    most tokens before the first decision. ``turn``: most tokens of a later user turn. ``turns``: K,
    most decisions. ``new_tokens``: L, most sampled tokens of a turn, the end marker included.
    ``branch``: most tokens of one rollout over all its turns, from the context's last token on.
    ``slices``: most vision slices of all prompts together, ``sounds``: most audio slices, 0 where
    there are none. ``slots``: room of one vision slice, from the model family's ``slots_for``; None
    without any. ``part``, ``parts``: which of several such batches this is, laid end to end: media
    count from the first.
    """

    batch: int
    context: int
    turn: int
    turns: int
    new_tokens: int
    branch: int
    slices: int
    slots: Any
    sounds: int = 0
    part: int = 0
    parts: int = 1

    @classmethod
    def for_dialogues(
        cls,
        dialogues: Sequence[Dialogue],
        grids: Sequence[Sequence[Grid]],
        policy: Policy,
        *,
        batch_size: int,
        new_tokens: int,
        buckets: int = 1,
        halved: Sequence[str] = ("context", "whole"),
        lengths: Sequence[int] = (),
    ) -> tuple[Shapes, ...]:
        """Buckets for batches of ``batch_size`` of these dialogues, the smallest first.

        The largest holds any batch. Each further one holds contexts and rollouts of half the size
        of the one before; it is left out when it holds less than one batch of these dialogues.

        Args:
          dialogues: with open turns.
          grids: each dialogue's vision grids, in the order of ``records.media_groups``.
          halved: what halves: of dialogues without a given past the whole rollout alone, as their
            contexts are all alike.
          lengths: instead of halvings, most tokens of a whole rollout (``RolloutNeed.whole``) in
            each bucket, in rising order.

        Raises:
          InputError: a dialogue that is longer than the last of ``lengths``.
        """
        needs = [
            need_of(dialogue, own, policy, new_tokens)
            for dialogue, own in zip(dialogues, grids, strict=True)
        ]
        _check_longest(needs, dialogues, "whole", lengths, "shapes.rollout_lengths")
        slots = _slots(grids, policy)
        limits = _limits(needs, halved, buckets, lengths, "whole")
        return tuple(
            cls(
                batch=batch_size,
                context=_round_up(room.context, TOKEN_MULTIPLE),
                turn=_round_up(room.turn, TURN_MULTIPLE),
                turns=room.turns,
                new_tokens=new_tokens,
                branch=_round_up(room.branch, TOKEN_MULTIPLE),
                slices=room.slices,
                slots=slots,
                sounds=room.sounds,
            )
            for room in _rooms(needs, limits, batch_size)
        )


class RowNeed(NamedTuple):
    """Room that one dialogue needs as a supervised row, named as in :class:`RowShapes`."""

    length: int
    actions: int
    turns: int
    slices: int
    sounds: int

    @classmethod
    def of(cls, row: Row, grids: Sequence[Grid], sounds: int) -> RowNeed:
        """From the row itself and its media."""
        turns = int(row.turn_id.max(initial=-1)) + 1
        return cls(len(row.tokens), int(row.loss_mask.sum()), turns, _slices(grids), sounds)


class RowShapes(NamedTuple):
    """One bucket of supervised rows.

    ``batch``: N. ``length``: T. ``actions``: A. ``turns``: K. ``slices``, ``slots``, ``sounds``,
    ``part``, ``parts``: as in :class:`Shapes`.
    """

    batch: int
    length: int
    actions: int
    turns: int
    slices: int
    slots: Any
    sounds: int = 0
    part: int = 0
    parts: int = 1

    @classmethod
    def for_dialogues(
        cls,
        dialogues: Sequence[Dialogue],
        grids: Sequence[Sequence[Grid]],
        policy: Policy,
        *,
        batch_size: int,
        buckets: int = 1,
        lengths: Sequence[int] = (),
    ) -> tuple[RowShapes, ...]:
        """Buckets for batches of these dialogues with given replies; see :class:`Shapes`.

        ``lengths``: instead of halvings, most tokens of a row in each bucket, in rising order.
        """
        needs = [
            RowNeed.of(
                policy.template.training_row(dialogue, own),
                own,
                policy.template.sound_slices(dialogue),
            )
            for dialogue, own in zip(dialogues, grids, strict=True)
        ]
        _check_longest(needs, dialogues, "length", lengths, "shapes.row_lengths")
        slots = _slots(grids, policy)
        limits = _limits(needs, ("length",), buckets, lengths, "length")
        return tuple(
            cls(
                batch=batch_size,
                length=_round_up(room.length, TOKEN_MULTIPLE),
                actions=_round_up(room.actions, TURN_MULTIPLE),
                turns=room.turns,
                slices=room.slices,
                slots=slots,
                sounds=room.sounds,
            )
            for room in _rooms(needs, limits, batch_size)
        )


def need_of(
    dialogue: Dialogue, grids: Sequence[Grid], policy: Policy, new_tokens: int
) -> RolloutNeed:
    """Room that a dialogue needs, from its record and its vision grids alone."""
    template = policy.template
    return RolloutNeed.of(
        template.lengths(dialogue, grids),
        _slices(grids),
        template.sound_slices(dialogue),
        new_tokens,
    )


def row_buckets(
    shapes: Shapes, count: int, *, shared: bool = False, lengths: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """(T, A) for rows of these rollouts, the smallest first.

    The largest has room for replies of the full length at every turn, each further one for half as
    many sampled tokens; what is shown to the policy is the same in all. ``shared``: without the
    context, except for its last token. ``lengths``: instead of halvings, the sampled tokens of
    each, in rising order.

    Raises:
      InputError: a rollout may sample more tokens than the last of ``lengths``.
    """
    most = shapes.turns * shapes.new_tokens
    shown = shapes.branch - most + (0 if shared else shapes.context)
    if lengths and lengths[-1] < most:
        raise InputError(
            f"ends with {lengths[-1]}, a rollout may sample {most} tokens ({shapes.turns} turns of "
            f"{shapes.new_tokens}); add {most}",
            field="shapes.row_lengths",
        )
    sampled = sorted({min(length, most) for length in lengths})
    if not lengths:
        halved = [most >> halvings for halvings in range(count)]
        sampled = [a for a in reversed(halved) if a >= shapes.turns] or [most]
    return [(-(-(shown + a) // TURN_MULTIPLE) * TURN_MULTIPLE, a) for a in sampled]


Need = TypeVar("Need", RolloutNeed, RowNeed)
Bucket = TypeVar("Bucket", Shapes, RowShapes)


def shared(buckets: Sequence[Bucket], split: int, part: int, parts: int) -> tuple[Bucket, ...]:
    """The buckets as one of ``parts`` shares, with media that come apart into ``split``."""
    return tuple(
        bucket._replace(
            slices=_round_up(bucket.slices, split),
            sounds=_round_up(bucket.sounds, split),
            part=part,
            parts=parts,
        )
        for bucket in buckets
    )


def padded(buckets: Sequence[Shapes], parts: int, group_size: int = 1) -> tuple[Shapes, ...]:
    """The buckets with prompts that take no turn where ``parts`` could not share their rows."""
    multiple = parts // math.gcd(parts, group_size)
    wider = [bucket._replace(batch=_round_up(bucket.batch, multiple)) for bucket in buckets]
    return shared(wider, parts, 0, 1)


def choose(
    buckets: Sequence[Bucket],
    needs: Sequence[RolloutNeed] | Sequence[RowNeed],
    dialogues: Sequence[Dialogue],
) -> Bucket:
    """The first bucket that holds a batch of dialogues.

    Raises:
      InputError: none does; names the dialogue that is too large for the last one.
    """
    if not buckets or not dialogues:
        raise InputError("no dialogue to batch" if buckets else "no shapes to batch into")
    for bucket in buckets:
        misfit = _misfit(bucket, needs, dialogues)
        if misfit is None:
            return bucket
    raise misfit


def _misfit(
    bucket: Shapes | RowShapes,
    needs: Sequence[RolloutNeed] | Sequence[RowNeed],
    dialogues: Sequence[Dialogue],
) -> InputError | None:
    if len(needs) > bucket.batch:
        return InputError(f"{len(needs)} dialogues, the shape holds {bucket.batch}", field="batch")
    slices = sounds = 0
    for need, dialogue in zip(needs, dialogues, strict=True):
        slices, sounds = slices + need.slices, sounds + need.sounds
        wanted = need._replace(slices=slices, sounds=sounds)._asdict()
        for name, size in wanted.items():
            room = getattr(bucket, name)
            if size > room:
                return InputError(
                    f"needs {size}, the largest shape has {room}",
                    file=dialogue.file,
                    record=dialogue.id,
                    field=name,
                )
    return None


def _limits(
    needs: Sequence[RolloutNeed] | Sequence[RowNeed],
    halved: Sequence[str],
    buckets: int,
    lengths: Sequence[int],
    measure: str,
) -> list[dict[str, int]]:
    """What a dialogue may need at most to count for each bucket, the largest bucket first."""
    if not needs:
        raise InputError("no dialogue to choose shapes for")
    if lengths:
        return [{measure: length} for length in reversed(lengths)]
    widest = {name: max(getattr(need, name) for need in needs) for name in halved}
    return [{name: size >> n for name, size in widest.items()} for n in range(buckets)]


def _check_longest(
    needs: Sequence[RolloutNeed] | Sequence[RowNeed],
    dialogues: Sequence[Dialogue],
    measure: str,
    lengths: Sequence[int],
    field: str,
) -> None:
    """Given lengths must hold every dialogue."""
    for need, dialogue in zip(needs, dialogues, strict=True):
        size = getattr(need, measure)
        if lengths and size > lengths[-1]:
            raise InputError(
                f"ends with {lengths[-1]}, this dialogue needs {size}; `turnwise shapes` chooses "
                "lengths for the data",
                file=dialogue.file,
                record=dialogue.id,
                field=field,
            )


def _rooms(
    needs: Sequence[Need], limits: Sequence[Mapping[str, int]], batch_size: int
) -> list[Need]:
    """Least room for any batch of the dialogues within each limit, the smallest first."""
    rooms: list[Need] = []
    for number, limit in enumerate(limits):
        inside = [
            need
            for need in needs
            if all(getattr(need, name) <= size for name, size in limit.items())
        ]
        if number and len(inside) < batch_size:
            break
        room = type(inside[0])(*map(max, zip(*inside, strict=True)))
        room = room._replace(
            slices=_heaviest([need.slices for need in inside], batch_size),
            sounds=_heaviest([need.sounds for need in inside], batch_size),
        )
        if room not in rooms:
            rooms.append(room)
    return rooms[::-1]


def _heaviest(counts: Sequence[int], batch_size: int) -> int:
    """Slices of the heaviest batch; a data set shorter than a batch may repeat its heaviest."""
    heaviest = sorted(counts, reverse=True)[:batch_size]
    return sum(heaviest) + heaviest[0] * (batch_size - len(heaviest))


def _slices(grids: Sequence[Grid]) -> int:
    return sum(t for t, _, _ in grids)


def _slots(grids: Sequence[Sequence[Grid]], policy: Policy) -> Any:
    sizes = {(h, w) for own in grids for _, h, w in own}
    return policy.family.slots_for(sorted(sizes), policy.config) if sizes else None


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
