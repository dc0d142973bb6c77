"""Streaming rollouts: B prompts x G rollouts turn by turn, or one dialogue as it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from turnwise_jax.data.pipeline import Example
from turnwise_jax.errors import InputError
from turnwise_jax.models.cache import KVCache
from turnwise_jax.models.decoder import cast_kernels
from turnwise_jax.models.sharding import traced_on
from turnwise_jax.rollout.decode import Chunk, Rule, State, TurnOutput, begin, take_turn
from turnwise_jax.rollout.desync_loop import NO_USE, DesyncLoop, SlotUse
from turnwise_jax.rollout.features import Encoder
from turnwise_jax.rollout.placement import Placement, placed
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import PromptBatch, empty_batch, prompt_batch
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import Shapes


@dataclass(frozen=True, eq=False)
class Rollouts:
    """What G rollouts of each of B prompts said.

    Attributes:
      prompts: the batch that they answer.
      ids: the prompts' names, B of them.
      tokens: int32 ``[B, G, K, L]``, sampled ids with the end marker where it was sampled.
      length: int32 ``[B, G, K]``, sampled ids of a turn; 0 where there is no such turn.
      logp: f32 ``[B, G, K, L]``, behaviour log-probabilities.
      truncated: bool ``[B, G, K]``, cut at L tokens.
      text: ``text[b][g][k]``, without the marker, stripped; "" where there is no such turn.
      turn_mask: bool ``[B, K]``. time: f32 ``[B, K]``, seconds of video shown at the decision.
      marker: id of the end-of-turn marker.
      use: how much of the work on the device had a result; with a barrier of this process's rows.
    """

    prompts: PromptBatch
    ids: tuple[str, ...]
    tokens: np.ndarray
    length: np.ndarray
    logp: np.ndarray
    truncated: np.ndarray
    text: list[list[list[str]]]
    turn_mask: np.ndarray
    time: np.ndarray
    marker: int
    use: SlotUse = NO_USE


class TurnResult(NamedTuple):
    """One decision of one dialogue. ``tokens``, ``logp``: the sampled ids and their values."""

    turn: int
    time: float
    text: str
    tokens: np.ndarray
    logp: np.ndarray
    truncated: bool


class StreamEngine:
    """Compiled rollouts of one policy structure; parameters are arguments of every call.

    One compilation of three functions (frames, context, turn) per shape bucket and group size, or
    of a few more without a barrier between turns (``rollout/desync.py``). Rows and the cache are
    split over the mesh; features are whole on every device.
    """

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        shapes: Shapes | Sequence[Shapes],
        placement: Placement | None = None,
        *,
        desynchronised: bool = False,
        show_at: float = 0.0,
        keep_features: bool = False,
        feature_bytes: int = 0,
    ):
        """
        Args:
          policy: structure, tokenizer and preprocessing; its parameters are not used.
          sampling: how tokens are chosen.
          shapes: one bucket, or several, the smallest first. ``batch`` counts this process's
            prompts.
          placement: where rows live; on one device if None.
          desynchronised: a rollout goes on to its next turn while others still speak, instead of
            waiting for all. The same tokens, but for rounding in batches of other sizes.
          show_at: then, the share of rows that wait before turns are shown to some of them.
          keep_features: the prompts of ``Rollouts`` have encoded media in place of frames and
            sounds, for passes whose towers are the same.
          feature_bytes: of the host's memory for features that are noted in ``encoder.kept``.
        """
        self.policy = policy
        self.sampling = sampling
        self.buckets = (shapes,) if isinstance(shapes, Shapes) else tuple(shapes)
        if len({bucket.new_tokens for bucket in self.buckets}) != 1:
            raise InputError("must be the same in every bucket", field="new_tokens")
        self.placement = placement or Placement.on_one_device()
        self.keep_features = keep_features
        self._allowed, self._dtype = policy.allowed, policy.dtype
        graphdef, rows = policy.graphdef, self.placement.rows
        state = _state_shardings(self.placement)
        self.encoder = Encoder(policy, self.placement, room=feature_bytes)
        self._begin = jax.jit(
            partial(traced_on(self.placement.mesh, begin), graphdef=graphdef),
            static_argnames=("group_size", "capacity", "copies"),
            out_shardings=(state.cache, state),
        )
        self._turn = jax.jit(
            partial(traced_on(self.placement.mesh, take_turn), graphdef=graphdef),
            static_argnames="rule",
            donate_argnames="state",
            out_shardings=(state, rows),
        )
        self._loop: DesyncLoop | None = None
        if desynchronised:
            self._loop = DesyncLoop(graphdef, self._allowed, self.placement, state, show_at)

    def prepare(
        self, examples: Sequence[Example], *, smallest: int = 0, kept: bool = True
    ) -> PromptBatch:
        """The examples in the smallest bucket that holds them, from bucket ``smallest`` on.

        Args:
          kept: with features in place of frames and sounds, if they are kept of all examples.

        Raises:
          InputError: naming the dialogue that fits none.
        """
        features = self.encoder.kept if kept else None
        return prompt_batch(examples, self.policy, self.buckets[smallest:], features)

    def warm_up(self, params: nnx.State, *, group_size: int) -> None:
        """Compiles every bucket by running it on an empty batch."""
        params = self._cast(params)
        for shapes in self.buckets:
            prompts = empty_batch(self.policy, shapes)
            media = self.encoder.warm_up(params, prompts.media, shapes)
            prompts = replace(prompts, media=media)
            self._all_turns(params, prompts, group_size, 0, 0, depth=1)

    def lowerings(
        self, params: nnx.State, prompts: PromptBatch, *, group_size: int
    ) -> Iterator[tuple[str, jax.stages.Lowered]]:
        """The compiled functions of such a batch, lowered from shapes alone: nothing is run.

        Args:
          params: shapes, dtypes and shardings.
          prompts: of whose arrays only shapes count.
          group_size: G.
        """
        place, media = self.placement.split_shapes, prompts.media
        params = cast_kernels(params, self._dtype)
        if media is not None:
            encode_ = self.encoder.lower(params, media)
            yield "encode", encode_
            media = placed(encode_.out_info, self.placement.whole)
        context, prompt = place(self._copied((prompts.context, prompts.seed)))
        zero = np.uint32(0)
        options = {
            "group_size": group_size,
            "capacity": prompts.shapes.branch,
            "copies": self.placement.copies(prompts.shapes.batch),
        }
        begin_ = self._begin.lower(params, media, context, zero, zero, prompt, **options)
        yield "begin", begin_
        places = _state_shardings(self.placement)
        shared, state = jax.tree.map(placed, begin_.out_info, (places.cache, places))
        rule = self._rule(prompts)
        if self._loop is not None:
            turns = self._turns_and_counts(prompts)
            yield from self._loop.lowerings(params, media, shared, state, *place(turns), rule)
            return
        chunk, active = place(self._copied((prompts.turn(0), prompts.turn_mask[:, 0])))
        yield (
            "turn",
            self._turn.lower(params, media, self._allowed, shared, state, chunk, active, rule=rule),
        )

    def rollout(
        self,
        params: nnx.State,
        examples: Sequence[Example] | PromptBatch,
        *,
        group_size: int,
        seed: int,
        step: int = 0,
        depth: int | None = None,
    ) -> Rollouts:
        """Runs G rollouts of every prompt to their last turn.

        The same parameters, seed, step, prompt id and shapes give the same rollouts, whatever else
        is in the batch.

        Args:
          params: the policy's parameters.
          examples: prompts, or what :meth:`prepare` made of them.
          group_size: G.
          seed, step: of the randomness; 32 bits each.
          depth: turns to run, if not this batch's own: the deepest batch's of all processes.
        """
        if group_size < 1:
            raise InputError(f"must be at least 1, not {group_size}", field="group_size")
        prompts = examples if isinstance(examples, PromptBatch) else self.prepare(examples)
        self._copies(prompts, group_size)
        params = self._cast(params)
        shown = self._encoded(params, prompts)
        output, use = self._all_turns(params, shown, group_size, seed, step, depth or prompts.depth)
        return self._collect(shown if self.keep_features else prompts, output, use, group_size)

    def encoded(self, params: nnx.State, prompts: PromptBatch) -> PromptBatch:
        """The prompts with encoded media in place of frames and sounds."""
        return self._encoded(self._cast(params), prompts)

    def as_kept(self, prompts: PromptBatch) -> PromptBatch:
        """What ``Rollouts.prompts`` will be of such prompts; encoded media as shapes alone."""
        if not self.keep_features:
            return prompts
        return replace(prompts, media=self.encoder.shapes(self.policy.params, prompts.media))

    def stream(
        self, params: nnx.State, example: Example, *, seed: int = 0, step: int = 0
    ) -> Iterator[TurnResult]:
        """One rollout of one dialogue; yields each decision as soon as it is made."""
        params = self._cast(params)
        prompts = self._encoded(params, self.prepare([example]))
        for k, out in self._turns(params, prompts, 1, seed, step, prompts.depth):
            row = jax.tree.map(lambda array: array[0], jax.device_get(out))
            ids = row.tokens[: row.length]
            yield TurnResult(
                turn=k,
                time=float(prompts.time[0, k]),
                text=self._text(ids),
                tokens=ids,
                logp=row.logprob[: row.length],
                truncated=bool(row.truncated),
            )

    def _all_turns(
        self,
        params: nnx.State,
        prompts: PromptBatch,
        group_size: int,
        seed: int,
        step: int,
        depth: int,
    ) -> tuple[TurnOutput, SlotUse]:
        """All turns of this process's rows, ``[N, K, ...]``, and how well their slots were used."""
        if self._loop is None:
            turns = self._turns(params, prompts, group_size, seed, step, depth)
            outputs = self.placement.own([out for _, out in turns])
            missing = prompts.shapes.turns - len(outputs)
            output = jax.tree.map(
                lambda *of: np.pad(
                    np.stack(of, axis=1), ((0, 0), (0, missing), *((0, 0),) * (of[0].ndim - 1))
                ),
                *outputs,
            )
            return output, SlotUse.with_barrier(output.length)
        *shown, state = self._start(params, prompts, group_size, seed, step)
        turns, counts = self.placement.split(self._turns_and_counts(prompts))
        return self._loop.run(params, *shown, state, turns, counts, self._rule(prompts))

    def _turns_and_counts(self, prompts: PromptBatch) -> tuple[Chunk, np.ndarray]:
        """The user turns of every prompt, or copy of it, ``[P, K, ...]``, and how many it has."""
        turns = jax.tree.map(lambda x: np.ascontiguousarray(np.swapaxes(x, 0, 1)), prompts.turns)
        return self._copied((turns, prompts.turn_mask.sum(axis=1, dtype=np.int32)))

    def _turns(
        self,
        params: nnx.State,
        prompts: PromptBatch,
        group_size: int,
        seed: int,
        step: int,
        depth: int,
    ) -> Iterator[tuple[int, TurnOutput]]:
        """Turn by turn; nothing here waits for the device."""
        *shown, state = self._start(params, prompts, group_size, seed, step)
        for k in range(depth):
            state, out = self._advance(params, shown, state, prompts, k)
            yield k, out

    def _advance(
        self, params: nnx.State, shown: Sequence[Any], state: State, prompts: PromptBatch, k: int
    ) -> tuple[State, TurnOutput]:
        rule = self._rule(prompts)
        chunk, active = self._per_prompt((prompts.turn(k), prompts.turn_mask[:, k]))
        media, shared = shown
        return self._turn(params, media, self._allowed, shared, state, chunk, active, rule=rule)

    def _rule(self, prompts: PromptBatch) -> Rule:
        return Rule(self.sampling, self.policy.vocab.im_end, prompts.shapes.new_tokens)

    def _start(
        self, params: nnx.State, prompts: PromptBatch, group_size: int, seed: int, step: int
    ) -> tuple[Any, KVCache, State]:
        """Features of the media, the contexts' cache, and the rollouts before their first turn."""
        copies = self._copies(prompts, group_size)
        context, prompt = self._per_prompt((prompts.context, prompts.seed))
        shared, state = self._begin(
            params,
            prompts.media,
            context,
            np.uint32(seed % 2**32),
            np.uint32(step % 2**32),
            prompt,
            group_size=group_size,
            capacity=prompts.shapes.branch,
            copies=copies,
        )
        return prompts.media, shared, state

    def _copies(self, prompts: PromptBatch, group_size: int) -> int:
        copies = self.placement.copies(prompts.shapes.batch)
        if group_size % copies:
            raise InputError(
                f"{prompts.shapes.batch} prompts of {group_size} rollouts are no equal parts for "
                f"{self.placement.own_row_parts} devices",
                field="group_size",
            )
        return copies

    def _cast(self, params: nnx.State) -> nnx.State:
        return cast_kernels(self.placement.settled(params), self._dtype)

    def _encoded(self, params: nnx.State, prompts: PromptBatch) -> PromptBatch:
        return replace(prompts, media=self.encoder(params, prompts.media))

    def _per_prompt(self, tree: Any) -> Any:
        """Arrays with one entry per prompt, on the devices that have the prompt's rows."""
        return self.placement.split(self._copied(tree))

    def _copied(self, tree: Any) -> Any:
        copies = self.placement.copies(jax.tree.leaves(tree)[0].shape[0])
        return jax.tree.map(lambda x: np.repeat(x, copies, axis=0), tree)

    def _collect(
        self, prompts: PromptBatch, output: TurnOutput, use: SlotUse, group_size: int
    ) -> Rollouts:
        """Turns ``[N, K, ...]`` as ``[B, G, K, ...]``, padding prompts dropped."""
        batch, count = prompts.shapes.batch, len(prompts.ids)
        output = jax.tree.map(lambda x: x.reshape(batch, group_size, *x.shape[1:])[:count], output)
        text = [
            [
                [self._text(ids[:n]) for ids, n in zip(row, counts, strict=True)]
                for row, counts in zip(group, lengths, strict=True)
            ]
            for group, lengths in zip(output.tokens, output.length, strict=True)
        ]
        return Rollouts(
            prompts=prompts,
            ids=prompts.ids,
            tokens=output.tokens,
            length=output.length,
            logp=output.logprob,
            truncated=output.truncated,
            text=text,
            turn_mask=prompts.turn_mask[:count],
            time=prompts.time[:count],
            marker=self.policy.vocab.im_end,
            use=use,
        )

    def _text(self, ids: np.ndarray) -> str:
        """The reply that ids spell, without the end marker and blanks around it."""
        vocab = self.policy.vocab
        return vocab.decode(ids[ids != vocab.im_end]).strip()


def _state_shardings(placement: Placement) -> State:
    """Where each part of a rollout's state lives."""
    rows = placement.rows
    return State(
        cache=KVCache(placement.cache, placement.cache, rows),
        pending=rows,
        pending_length=rows,
        position=rows,
        key=rows,
        turn=placement.whole,
    )
