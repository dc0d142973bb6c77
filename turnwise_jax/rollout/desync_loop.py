"""The host side of turns without a barrier: one compiled program per level, none waited for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from turnwise_jax.models.cache import KVCache
from turnwise_jax.models.sharding import traced_on
from turnwise_jax.rollout.decode import Chunk, Rule, State, TurnOutput
from turnwise_jax.rollout.desync import Level, Rows, Shown, Use, levels, narrow, run_level, start
from turnwise_jax.rollout.placement import Placement, placed


class SlotUse(NamedTuple):
    """Shares of a rollout's work that something came of.

    ``decoding``: of the rows in decoding steps, those that sampled a token. ``showing``: of the
    rows in which user turns were prefilled, those that had one. None where no such work was done.
    """

    decoding: float | None
    showing: float | None

    def timing(self) -> dict[str, float | None]:
        """As a training log has it."""
        return {"slot_use": self.decoding, "shown_use": self.showing}

    @classmethod
    def of(cls, use: Use) -> SlotUse:
        """From counts."""
        tokens, slots, turns, lanes = map(int, use)
        return cls(tokens / slots if slots else None, turns / lanes if lanes else None)

    @classmethod
    def with_barrier(cls, length: np.ndarray) -> SlotUse:
        """Of rows that wait for each other after every turn, ``length[n, k]`` sampled tokens.

        The first token of a turn comes from showing it, each further one from a decoding step.
        """
        rows, further = len(length), np.maximum(length - 1, 0)
        counts = (further.sum(), rows * further.max(axis=0).sum())
        shown = length > 0
        return cls.of(Use(*counts, shown.sum(), rows * shown.any(axis=0).sum()))


NO_USE = SlotUse(None, None)


class DesyncLoop:
    """Compiled loops of one policy structure, for any number of levels."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        allowed: jax.Array,
        placement: Placement,
        state: State,
        show_at: float,
    ):
        """
        Args:
          state: where each part of a rollout's state lives.
          show_at: share of a level's rows that wait before turns are shown to some of them while
            others speak; with 0 one is enough.
        """
        self._allowed, self._place, self._show_at = allowed, placement, show_at
        rows, whole, cache = placement.rows, placement.whole, state.cache
        self._shown = Shown(cache, Chunk(*(rows,) * len(Chunk._fields)))
        output = TurnOutput(*(rows,) * len(TurnOutput._fields))
        self._rows = Rows(
            **dict.fromkeys(Rows._fields, rows)
            | {"cache": cache, "output": output, "use": Use(*(whole,) * len(Use._fields))}
        )
        self._start = jax.jit(
            start,
            static_argnames=("depth", "limit"),
            donate_argnames="state",
            out_shardings=self._rows,
        )
        self._level = jax.jit(
            partial(traced_on(placement.mesh, run_level), graphdef=graphdef),
            static_argnames=("rule", "level", "after"),
            donate_argnames="rows",
            out_shardings=self._rows,
        )
        self._narrow = {
            mixed: jax.jit(
                narrow,
                static_argnames=("level", "after"),
                out_shardings=(self._shown if mixed else None, self._rows),
            )
            for mixed in (False, True)
        }

    def run(
        self,
        params: nnx.State,
        media: Any,
        context: KVCache,
        state: State,
        turns: Chunk,
        counts: jax.Array,
        rule: Rule,
    ) -> tuple[TurnOutput, SlotUse]:
        """Every rollout to its last turn.

        Args:
          context, state: before the first turn; no longer to be used after this.
          turns: ``[P, K, ...]``, the user turns of every prompt in ``context``.
          counts: int32 ``[P]``, how many it has.

        Returns:
          This process's rows ``[N, K, ...]``, and the use of slots by all processes' rows.
        """
        shown, depth = Shown(context, turns), turns.tokens.shape[1]
        rows = self._start(state, counts, depth=depth, limit=rule.limit)
        told = []
        for level, after in self._sizes(shown, rows):
            rows = self._level(
                *(params, media, self._allowed, shown, rows, self._gather(level)),
                **{"rule": rule, "level": level, "after": after},
            )
            told.append((rows.origin, rows.output))
            if after is not None:
                copied, rows = self._narrow[after.mixed](shown, rows, level=level, after=after)
                if copied is not None:  # the caller holds the contexts, which nothing reads now
                    jax.tree.map(lambda array: array.delete(), shown)
                    shown = copied
        return _merged(self._place.own(told)), SlotUse.of(jax.device_get(rows.use))

    def lowerings(
        self,
        params: nnx.State,
        media: Any,
        context: KVCache,
        state: State,
        turns: Chunk,
        counts: jax.Array,
        rule: Rule,
    ) -> Iterator[tuple[str, jax.stages.Lowered]]:
        """The programs of :meth:`run`, lowered from shapes: ``start``, and of every level the loop
        and, but for the last one, what makes the next one's rows of its own."""
        shown, depth = Shown(context, turns), turns.tokens.shape[1]
        first = self._start.lower(state, counts, depth=depth, limit=rule.limit)
        yield "start", first
        rows = jax.tree.map(placed, first.out_info, self._rows)
        for level, after in self._sizes(shown, rows):
            lowered = self._level.lower(
                *(params, media, self._allowed, shown, rows, self._gather(level)),
                **{"rule": rule, "level": level, "after": after},
            )
            yield f"turns_{level.name}", lowered
            if after is not None:
                narrowed = self._narrow[after.mixed].lower(shown, rows, level=level, after=after)
                yield f"narrow_{level.name}", narrowed
                copied, fewer = narrowed.out_info
                rows = jax.tree.map(placed, fewer, self._rows)
                if copied is not None:
                    shown = jax.tree.map(placed, copied, self._shown)

    def _sizes(self, shown: Shown, rows: Rows) -> Iterator[tuple[Level, Level | None]]:
        """Each level with the one after it."""
        prompts = shown.context.length.shape[0]
        members = rows.turn.shape[0] // prompts
        sizes = levels(prompts, members, split=self._place.row_parts > 1)
        return zip_longest(sizes, sizes[1:])

    def _gather(self, level: Level) -> np.int32:
        return np.int32(max(1, math.ceil(self._show_at * level.prompts * level.members)))


def _merged(told: list[tuple[np.ndarray, TurnOutput]]) -> TurnOutput:
    """What every row has said at the last level that it took part in."""
    (origin, output), *_ = told
    first = origin.min()
    whole = jax.tree.map(np.copy, output)
    for origin, output in told:
        for kept, new in zip(whole, output, strict=True):
            kept[origin - first] = new
    return whole
