"""The device side of a rollout: prefill the context once, then one call per decision turn.

A prompt's context lives in one KV cache that its rollouts share, what follows in caches of their
own. Between turns the newest token
(the end marker, or the last token of a cut turn and the marker inserted after it) is *pending*: it
is not in the cache yet and goes there at the head of the next turn's prefill, so that closing a
turn costs no decoding step of its own.

Rows are the rollouts, N = B x G in (b, g) order. What is shown next never depends on the replies,
so pieces of text and frames come per prompt, ``[B, ...]``, and are repeated for its G rollouts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from turnwise_jax.models.cache import KVCache
from turnwise_jax.models.media import Media, MediaInput
from turnwise_jax.rollout.sampling import Sampling, choose_rows, fold_in, rollout_keys

PENDING = 2  # most tokens that wait for the next prefill: the last sampled one and a marker


class Chunk(NamedTuple):
    """A piece of every prompt's dialogue, right-padded to T tokens.

    ``tokens``: int32 ``[B, T]``. ``media_index``: int32 ``[B, T]``, row of the batch's media
    features or -1. ``positions``: int32 ``[B, 3, T]``, M-RoPE counted from the piece's start.
    ``length``: int32 ``[B]``, real tokens. ``span``: int32 ``[B]``, positions the piece takes up.
    """

    tokens: np.ndarray | Array
    media_index: np.ndarray | Array
    positions: np.ndarray | Array
    length: np.ndarray | Array
    span: np.ndarray | Array


class State(NamedTuple):
    """Every rollout between two turns.

    ``pending``: int32 ``[N, 2]``, of which the first ``pending_length[n]`` wait to be written.
    ``position``: int32 ``[N]``, M-RoPE position of the first pending token. ``key``: random keys
    ``[N]``. ``turn``: int32 scalar, index of the next decision turn.
    """

    cache: KVCache
    pending: Array
    pending_length: Array
    position: Array
    key: Array
    turn: Array


class TurnOutput(NamedTuple):
    """One decision turn of every rollout; entries past ``length`` are 0.

    ``tokens``: int32 ``[N, L]``, sampled ids with the end marker where it was sampled.
    ``logprob``: f32 ``[N, L]``. ``length``: int32 ``[N]``, 0 for rows without this turn.
    ``truncated``: bool ``[N]``, cut at L tokens without a marker.
    """

    tokens: Array
    logprob: Array
    length: Array
    truncated: Array


class Rule(NamedTuple):
    """What a decoding loop must know besides the model; static.

    ``marker`` is the id of the end-of-turn marker, ``limit`` the most tokens of a turn.
    """

    sampling: Sampling
    marker: int
    limit: int


def encode(params: nnx.State, media: MediaInput, *, graphdef: nnx.GraphDef) -> Media:
    """Features of a batch's frames and sounds."""
    return nnx.merge(graphdef, params).encode_media(media)


def begin(
    params: nnx.State,
    media: Any,
    context: Chunk,
    seed: Array,
    step: Array,
    prompt: Array,
    *,
    graphdef: nnx.GraphDef,
    group_size: int,
    capacity: int,
    copies: int = 1,
) -> tuple[KVCache, State]:
    """Prefills each prompt's context once, for all of its G rollouts.

    The last context token stays pending, so that the first turn is a turn like any other. Where
    there are fewer prompts than devices to share them, each comes ``copies`` times in a row and
    every copy's context is prefilled, for an equal share of its rollouts.

    Args:
      media: encoded frames and sounds, None if the batch has none.
      context: what precedes the first decision, at least one token.
      seed, step, prompt: uint32 scalars and ``[B]``: the randomness of the rollouts.
      group_size: G.
      capacity: cache slots of a rollout's own.
      copies: how often each prompt comes; divides G.

    Returns:
      The contexts' cache, a row for each prompt (or copy of it), and the state of every rollout.
    """
    model = nnx.merge(graphdef, params)
    batch, width = context.tokens.shape
    share = group_size // copies
    last = (context.length - 1)[:, None]
    _, shared = model(
        context.tokens,
        context.positions,
        media=media,
        media_index=None if media is None else context.media_index,
        valid=jnp.arange(width)[None] < last,
        cache=model.init_cache(batch, width),
        fresh=True,
    )
    pending = jnp.take_along_axis(context.tokens, last, axis=1)
    return shared, State(
        cache=model.init_cache(batch * share, capacity),
        pending=jnp.repeat(jnp.pad(pending, ((0, 0), (0, PENDING - 1))), share, axis=0),
        pending_length=jnp.ones(batch * share, jnp.int32),
        position=jnp.repeat(context.span - 1, share),
        key=rollout_keys(seed, step, prompt, group_size, copies=copies),
        turn=jnp.zeros((), jnp.int32),
    )


def take_turn(
    params: nnx.State,
    media: Any,
    allowed: Array,
    shared: KVCache,
    state: State,
    chunk: Chunk,
    active: Array,
    *,
    graphdef: nnx.GraphDef,
    rule: Rule,
) -> tuple[State, TurnOutput]:
    """Shows a turn to every rollout and samples the replies.

    Args:
      shared: the contexts' cache.
      allowed: bool ``[V]``, ids that may be sampled.
      chunk: the user turn; of length 0 for the first one, which ends the context.
      active: bool ``[B]``, prompts (or copies of them) that have this turn. The others' rows stay
        as they are.
    """
    model = nnx.merge(graphdef, params)
    group_size = state.position.shape[0] // active.shape[0]
    chunk, active = jax.tree.map(lambda x: jnp.repeat(x, group_size, axis=0), (chunk, active))
    hidden, cache, position = show(model, media, shared, state, chunk, active)
    keys = fold_in(state.key, state.turn)
    cache, output = _reply(model, shared, cache, hidden, position, active, allowed, keys, rule)
    return _close(state, cache, output, position, active, rule.marker), output


def show(
    model: Any, media: Any, shared: KVCache, state: State, chunk: Chunk, active: Array
) -> tuple[Array, KVCache, Array]:
    """Prefills [pending | chunk] of every row.

    Returns:
      Hidden state ``[N, D]`` of the last token, the cache, and the next position ``[N]``.
    """
    width = chunk.tokens.shape[1]
    column = jnp.arange(PENDING + width)[None]
    pending = state.pending_length[:, None]
    source = jnp.clip(column - pending, 0, width - 1)
    old = jnp.clip(column, 0, PENDING - 1)
    is_old = column < pending
    tokens = jnp.where(
        is_old,
        jnp.take_along_axis(state.pending, jnp.broadcast_to(old, is_old.shape), axis=1),
        jnp.take_along_axis(chunk.tokens, source, axis=1),
    )
    media_index = jnp.take_along_axis(chunk.media_index, source, axis=1)
    shown = jnp.take_along_axis(chunk.positions, source[:, None], axis=2) + pending[:, None]
    offset = jnp.where(is_old[:, None], column[:, None], shown)
    end = pending + chunk.length[:, None]
    hidden, cache = model(
        tokens,
        state.position[:, None, None] + offset,
        media=media,
        media_index=None if media is None else jnp.where(is_old, -1, media_index),
        valid=(column < end) & active[:, None],
        cache=state.cache,
        shared=shared,
    )
    last = jnp.take_along_axis(hidden, (end - 1)[..., None], axis=1)[:, 0]
    return last, cache, state.position + state.pending_length + chunk.span


def _reply(
    model: Any,
    shared: KVCache,
    cache: KVCache,
    hidden: Array,
    position: Array,
    active: Array,
    allowed: Array,
    keys: Array,
    rule: Rule,
) -> tuple[KVCache, TurnOutput]:
    """Samples until every row has its marker or L tokens. The last token is not written."""
    head = model.head()
    rows = hidden.shape[0]

    def pick(hidden: Array, number: Array, speaking: Array, output: TurnOutput) -> TurnOutput:
        logits = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
        token, logprob = choose_rows(logits, allowed, fold_in(keys, number), rule.sampling)
        return TurnOutput(
            tokens=output.tokens.at[:, number].set(jnp.where(speaking, token, 0)),
            logprob=output.logprob.at[:, number].set(jnp.where(speaking, logprob, 0.0)),
            length=output.length + speaking,
            truncated=speaking & (token != rule.marker),
        )

    def unfinished(carry: tuple[Array, KVCache, TurnOutput]) -> Array:
        number, _, output = carry
        return (number < rule.limit) & output.truncated.any()

    def advance(carry: tuple[Array, KVCache, TurnOutput]) -> tuple[Array, KVCache, TurnOutput]:
        number, cache, output = carry
        newest = jnp.take(output.tokens, number - 1, axis=1)[:, None]
        where = jnp.broadcast_to((position + number - 1)[:, None, None], (rows, 3, 1))
        speaking = output.truncated
        hidden, cache = model(newest, where, valid=speaking[:, None], cache=cache, shared=shared)
        return number + 1, cache, pick(hidden[:, 0], number, speaking, output)

    nothing = TurnOutput(
        tokens=jnp.zeros((rows, rule.limit), jnp.int32),
        logprob=jnp.zeros((rows, rule.limit), jnp.float32),
        length=jnp.zeros(rows, jnp.int32),
        truncated=active,
    )
    first = pick(hidden, jnp.zeros((), jnp.int32), active, nothing)
    _, cache, output = jax.lax.while_loop(
        unfinished, advance, (jnp.ones((), jnp.int32), cache, first)
    )
    return cache, output


def _close(
    state: State, cache: KVCache, output: TurnOutput, position: Array, active: Array, marker: int
) -> State:
    """The state after a turn: what was sampled last waits, with a marker if none was sampled."""
    newest = jnp.take_along_axis(output.tokens, (output.length - 1)[:, None], axis=1)
    pending = jnp.concatenate([newest, jnp.full_like(newest, marker)], axis=1)
    return State(
        cache=cache,
        pending=jnp.where(active[:, None], pending, state.pending),
        pending_length=jnp.where(
            active, 1 + output.truncated.astype(jnp.int32), state.pending_length
        ),
        position=jnp.where(active, position + output.length - 1, state.position),
        key=state.key,
        turn=state.turn + 1,
    )
