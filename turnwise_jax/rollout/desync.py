"""Turns without a barrier: every rollout goes on to its next turn while others still speak.

What is shown next never depends on what was said. A rollout whose reply has ended waits only until
the next frames of its prompt are prefilled, for one waiting rollout of each prompt at a time, so
that the prompts' shared contexts stay where they are. All rollouts that speak decode a token per
step. Towards the end fewer and fewer have turns left: the loop then goes on with fewer rows, in a
few fixed sizes (:func:`levels`), each compiled once.

Rows stand in groups, one group of ``members`` rows per prompt. The random keys are those of
``rollout/decode.py``, so the same tokens come out, up to how a batch of another size is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from turnwise_jax.models.cache import KVCache
from turnwise_jax.rollout.decode import Chunk, Rule, State, TurnOutput, show
from turnwise_jax.rollout.sampling import choose_rows, fold_in


class Level(NamedTuple):
    """Rows that a loop has room for: ``members`` of each of ``prompts`` prompts.

    ``mixed``: any rows, each beside a copy of its prompt's context; ``members`` is 1.
    """

    prompts: int
    members: int
    mixed: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        return self.prompts, self.members

    @property
    def name(self) -> str:
        return f"{self.prompts}x{self.members}"

    def holds(self, live: Array) -> Array:
        """Whether the rows ``live[prompt, member]`` find places, bool scalar."""
        if self.mixed:
            return live.sum() <= self.prompts
        return live.sum(axis=1).max() <= self.members


class Shown(NamedTuple):
    """What the rows of a prompt have in common, P prompts.

    ``context``: the contexts' cache. ``turns``: the user turns ``[P, K, ...]``, the first empty.
    """

    context: KVCache
    turns: Chunk


class Use(NamedTuple):
    """What the loop did, int32 scalars.

    ``tokens``: rows that decoded a token, summed over decoding steps, of ``slots`` rows that took
    part. ``turns``: user turns shown, in ``lanes`` that there was room for.
    """

    tokens: Array
    slots: Array
    turns: Array
    lanes: Array


class Rows(NamedTuple):
    """Rollouts, n = P x members, each at a turn of its own.

    ``cache``, ``pending``, ``pending_length``, ``position``, ``key``: as in ``decode.State``.
    ``origin``: int32 ``[n]``, a row's number before any was left out. ``turn``: int32 ``[n]``, the
    turn that is being spoken or waited for, of ``turns``. ``said``: int32 ``[n]``, tokens of it so
    far. ``speaking``: bool ``[n]``. ``output``: of all turns, ``[n, K, ...]``.
    """

    cache: KVCache
    pending: Array
    pending_length: Array
    position: Array
    key: Array
    origin: Array
    turn: Array
    turns: Array
    said: Array
    speaking: Array
    output: TurnOutput
    use: Use

    @property
    def live(self) -> Array:
        """Rows with a turn left, bool ``[n]``."""
        return self.turn < self.turns

    @property
    def waiting(self) -> Array:
        """Rows whose next turn has to be shown, bool ``[n]``."""
        return self.live & ~self.speaking


def levels(prompts: int, members: int, *, split: bool) -> tuple[Level, ...]:
    """Sizes that a loop goes through, each with less room than the one before.

    Three quarters and half of each prompt's members, then as many rows as there are prompts, half
    and a quarter of that, whosever they are. Where prompts are ``split`` over devices none moves
    to another: the last size has a quarter of the members.
    """
    most, half, quarter = (-(-members * parts // 4) for parts in (3, 2, 1))
    sizes = [Level(prompts, members), Level(prompts, most), Level(prompts, half)]
    if split:
        sizes.append(Level(prompts, quarter))
    else:
        sizes = [size for size in sizes if size.members > 1 or size.members == members]
        sizes += [Level(-(-prompts // parts), 1, mixed=True) for parts in (1, 2, 4)]
    first, *others = sizes
    kept = [first]
    for size in others:
        if size.prompts * size.members < kept[-1].prompts * kept[-1].members:
            kept.append(size)
    return tuple(kept)


def start(state: State, counts: Array, depth: int, limit: int) -> Rows:
    """Rows before their first turn, from the state that follows the context.

    The last token of the context is pending, and the first turn shows nothing beyond it: every row
    with a turn already speaks.

    Args:
      counts: int32 ``[P]``, turns of every prompt.
      depth: K. limit: L, most tokens of a turn.
    """
    rows = len(state.position)
    turns = jnp.repeat(counts, rows // len(counts), axis=0)
    none = jnp.zeros(rows, jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    return Rows(
        *(state.cache, state.pending, state.pending_length, state.position, state.key),
        origin=jnp.arange(rows, dtype=jnp.int32),
        turn=none,
        turns=turns,
        said=none,
        speaking=turns > 0,
        output=TurnOutput(
            tokens=jnp.zeros((rows, depth, limit), jnp.int32),
            logprob=jnp.zeros((rows, depth, limit), jnp.float32),
            length=jnp.zeros((rows, depth), jnp.int32),
            truncated=jnp.zeros((rows, depth), bool),
        ),
        use=Use(zero, zero, zero, zero),
    )


def run_level(
    params: nnx.State,
    media: Any,
    allowed: Array,
    shown: Shown,
    rows: Rows,
    gather: Array,
    *,
    graphdef: nnx.GraphDef,
    rule: Rule,
    level: Level,
    after: Level | None,
) -> Rows:
    """Goes on with all rows until the next level has room for those with turns left.

    Args:
      allowed: bool ``[V]``, ids that may be sampled.
      gather: int32 scalar, waiting rows from which on turns are shown although others speak; at
        least 1.
      level: the size of ``rows``. after: the next one's, None to go on to the end.
    """
    model = nnx.merge(graphdef, params)
    pick = _picker(model.head(), allowed, rule)

    def too_many(rows: Rows) -> Array:
        live = rows.live.reshape(level.grid)
        return live.any() if after is None else ~after.holds(live)

    def nothing_to_show(rows: Rows) -> Array:
        return rows.speaking.any() & (rows.waiting.sum() < gather) & too_many(rows)

    def advance(rows: Rows) -> Rows:
        rows = jax.lax.while_loop(
            nothing_to_show, lambda rows: _speak(model, pick, shown.context, rows, rule), rows
        )
        return _show_some(model, media, pick, shown, rows, rule, level)

    return jax.lax.while_loop(too_many, advance, rows)


def narrow(shown: Shown, rows: Rows, *, level: Level, after: Level) -> tuple[Shown | None, Rows]:
    """The rows with turns left, in the next level's places, and what they are shown.

    None for the latter if it stays as it is: a program would copy the contexts.
    """
    live = rows.live.reshape(level.grid)
    if after.mixed:
        row = jnp.argsort(~live.reshape(-1), stable=True)[: after.prompts]
        prompt = row // level.members
        shown = Shown(
            _rows_of(shown.context, lambda x, axis: jnp.take(x, prompt, axis=axis)),
            jax.tree.map(lambda x: x[prompt], shown.turns),
        )
        return shown, _fewer(rows, lambda x, axis: jnp.take(x, row, axis=axis))
    # Within each prompt, so that nothing moves between devices.
    member = jnp.argsort(~live, axis=1, stable=True)[:, : after.members]

    def own(x: Array, axis: int) -> Array:
        kept = _members(x, member, level, axis)
        return kept.reshape(*kept.shape[:axis], -1, *kept.shape[axis + 2 :])

    return None, _fewer(rows, own)


Take = Callable[[Array, int], Array]  # some rows of an array, given their axis


def _fewer(rows: Rows, take: Take) -> Rows:
    rest = jax.tree.map(lambda x: take(x, 0), rows._replace(cache=None, use=None))
    return rest._replace(cache=_rows_of(rows.cache, take), use=rows.use)


def _rows_of(cache: KVCache, take: Take) -> KVCache:
    return KVCache(take(cache.k, 1), take(cache.v, 1), take(cache.length, 0))


def _members(x: Array, member: Array, level: Level, axis: int) -> Array:
    """Each prompt's ``member`` ``[P]`` or ``[P, m]``, of rows along ``axis``."""
    split = x.reshape(*x.shape[:axis], *level.grid, *x.shape[axis + 1 :])
    return jax.vmap(lambda own, m: jnp.take(own, m, axis=axis), in_axes=(axis, 0), out_axes=axis)(
        split, member
    )


Pick = Callable[[Array, Array, Array, Array], tuple[Array, Array]]


def _picker(head: Array, allowed: Array, rule: Rule) -> Pick:
    """Samples a token per row from hidden states, keys, and the numbers of turn and token."""

    def pick(hidden: Array, key: Array, turn: Array, said: Array) -> tuple[Array, Array]:
        logits = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
        return choose_rows(logits, allowed, fold_in(fold_in(key, turn), said), rule.sampling)

    return pick


def _speak(model: Any, pick: Pick, context: KVCache, rows: Rows, rule: Rule) -> Rows:
    """One more token of every row that speaks."""
    count = len(rows.turn)
    hidden, cache = model(
        rows.pending[:, :1],
        jnp.broadcast_to(rows.position[:, None, None], (count, 3, 1)),
        valid=rows.speaking[:, None],
        cache=rows.cache,
        shared=context,
    )
    token, logprob = pick(hidden[:, 0], rows.key, rows.turn, rows.said)
    use = rows.use._replace(
        tokens=rows.use.tokens + rows.speaking.sum(dtype=jnp.int32), slots=rows.use.slots + count
    )
    rows = rows._replace(cache=cache, use=use)
    return _said(rows, rows.speaking, token, logprob, rows.position + 1, rule)


def _show_some(
    model: Any, media: Any, pick: Pick, shown: Shown, rows: Rows, rule: Rule, level: Level
) -> Rows:
    """Shows its next turn to one waiting row of each prompt, the one that is furthest behind, and
    samples the first token of its reply."""
    order = jnp.where(rows.waiting, rows.turn, jnp.iinfo(jnp.int32).max).reshape(level.grid)
    member = jnp.argmin(order, axis=1)

    def lane(x: Array, axis: int = 0) -> Array:
        return _members(x, member, level, axis)

    cache = _rows_of(rows.cache, lane)
    state = State(cache, *map(lane, (rows.pending, rows.pending_length, rows.position, rows.key)),
                  turn=lane(rows.turn))  # fmt: skip
    active = lane(rows.waiting)
    chunk = jax.tree.map(lambda x: jax.vmap(lambda own, k: own[k])(x, state.turn), shown.turns)
    hidden, cache, position = show(model, media, shown.context, state, chunk, active)
    token, logprob = pick(hidden, state.key, state.turn, lane(rows.said))

    is_lane = (jnp.arange(level.members)[None] == member[:, None]) & active[:, None]
    use = rows.use._replace(
        turns=rows.use.turns + active.sum(dtype=jnp.int32), lanes=rows.use.lanes + level.prompts
    )
    rows = rows._replace(cache=_put_back(rows.cache, cache, member, level), use=use)
    spread = [jnp.repeat(x, level.members, axis=0) for x in (token, logprob, position)]
    return _said(rows, is_lane.reshape(-1), *spread, rule)


def _said(
    rows: Rows, who: Array, token: Array, logprob: Array, position: Array, rule: Rule
) -> Rows:
    """Rows after the rows ``who`` have said ``token`` at ``position``."""
    output, nowhere = rows.output, rows.output.tokens.shape[2]
    place = jnp.where(who, rows.said, nowhere)

    def written(kept: Array, new: Array) -> Array:
        def one(kept: Array, turn: Array, place: Array, new: Array) -> Array:
            return kept.at[turn, place].set(new, mode="drop")

        return jax.vmap(one)(kept, rows.turn, place, new)

    said = rows.said + who
    cut = who & (token != rule.marker) & (said == rule.limit)
    ended = who & (cut | (token == rule.marker))
    now = (jnp.arange(output.length.shape[1])[None] == rows.turn[:, None]) & who[:, None]
    pending = jnp.stack([token, jnp.full_like(token, rule.marker)], axis=1)
    return rows._replace(
        pending=jnp.where(who[:, None], pending, rows.pending),
        pending_length=jnp.where(who, 1 + cut, rows.pending_length),
        position=jnp.where(who, position, rows.position),
        turn=rows.turn + ended,
        said=jnp.where(ended, 0, said),
        speaking=(rows.speaking | who) & ~ended,
        output=TurnOutput(
            tokens=written(output.tokens, token),
            logprob=written(output.logprob, logprob),
            length=output.length + now,
            truncated=output.truncated | (now & cut[:, None]),
        ),
    )


def _put_back(cache: KVCache, lanes: KVCache, member: Array, level: Level) -> KVCache:
    """``cache`` with one row of each prompt replaced."""

    def entries(old: Array, new: Array) -> Array:
        split = old.reshape(old.shape[0], *level.grid, *old.shape[2:])
        put = jax.vmap(lambda own, n, m: own.at[:, m].set(n), in_axes=(1, 1, 0), out_axes=1)
        return put(split, new, member).reshape(old.shape)

    length = jax.vmap(lambda own, n, m: own.at[m].set(n))
    return KVCache(
        entries(cache.k, lanes.k),
        entries(cache.v, lanes.v),
        length(cache.length.reshape(level.grid), lanes.length, member).reshape(-1),
    )
