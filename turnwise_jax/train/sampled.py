"""A run's batches of rollouts, in order; the next may be sampled while the caller judges one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from turnwise_jax.data.pipeline import Example
from turnwise_jax.rollout.features import SliceFeatures
from turnwise_jax.rollout.prompts import PromptBatch
from turnwise_jax.rollout.stream import Rollouts, StreamEngine
from turnwise_jax.train.ahead import Ahead, Make
from turnwise_jax.train.batches import Clock
from turnwise_jax.train.hosts import Hosts
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.sharing import take_up

_ARRAYS = {"tokens": np.int32, "length": np.int32, "logp": np.float32, "truncated": bool}
_TEXT = "text"


class Sampled(NamedTuple):
    """A batch of this process's rollouts.

    ``lag``: batches that were trained between sampling and taking it, 0 or 1. ``ended``: when
    sampling did, on the clock of ``time.perf_counter``. ``kept``: features came from memory.
    """

    examples: list[Example]
    rollouts: Rollouts
    lag: int
    ended: float
    kept: bool


class Sampler:
    """Reads prompts and samples their rollouts.

    With ``ahead``, :meth:`begin` starts on the next batch in a thread, with the parameters that it
    is given. What was sampled so is part of the run's memory, for the parameters are gone once they
    have been updated; position and left-out records are those behind the batch that was taken last.
    """

    def __init__(
        self,
        loader: Ahead,
        engine: StreamEngine,
        *,
        skipped: list[str],
        group_size: int,
        seed: int,
        batches: int,
        ahead: bool,
        hosts: Hosts,
    ):
        """
        Args:
          loader: makes prompts of examples by ``engine.prepare``.
          skipped: lines about records that this process left out, which the loader adds to.
          batches: of the whole run; nothing is sampled beyond.
          ahead: whether :meth:`begin` does anything.
        """
        self._loader, self._engine, self._skipped = loader, engine, skipped
        self._group_size, self._seed, self._batches = group_size, seed, batches
        self._hosts = hosts
        self._pool = ThreadPoolExecutor(1, "sampling") if ahead else None
        self._next: Future[Sampled] | None = None
        self._behind: dict[str, Any] | None = None  # position without what is sampled ahead
        self._saved: dict[str, np.ndarray] = {}  # this process's part of a checkpoint's rollouts

    def take(self, params: nnx.State, batch: int, clock: Clock) -> Sampled:
        """Batch number ``batch``, sampled with ``params`` unless it has been sampled already."""
        if self._next:
            sampled, self._next, self._behind = self._next.result(), None, None
        else:
            examples, prompts, depth = self._read(clock)
            rollouts = self._as_saved(prompts)
            if rollouts is not None:
                if self._engine.keep_features:
                    shown = self._engine.encoded(params, prompts)
                    rollouts = replace(rollouts, prompts=shown)
                sampled = self._sampled(examples, prompts, rollouts, 1)
            else:
                sampled = self._sample(params, examples, prompts, depth, batch, 0)
        clock.lap("rollout")
        return sampled

    def begin(self, params: nnx.State, batch: int, clock: Clock) -> None:
        """Starts to sample batch number ``batch``, if it is to be sampled ahead.

        ``params`` may not be given away before :meth:`wait` has returned.
        """
        if self._pool and batch < self._batches:
            self._behind = self._position()
            examples, prompts, depth = self._read(clock)
            self._next = self._pool.submit(self._sample, params, examples, prompts, depth, batch, 1)
            clock.lap("rollout")

    def wait(self) -> float | None:
        """Until what was begun is sampled: when it was; None if nothing was begun.

        Raises:
          Exception: what sampling raised.
        """
        return self._next.result().ended if self._next else None

    def start(self) -> None:
        """Begins to read the first batch."""
        self._loader.start()

    def position(self) -> dict[str, Any]:
        """Of the loader and the left-out records, behind the batch that was taken last."""
        return self._behind or self._position()

    def memory(self) -> dict[str, np.ndarray]:
        """The rollouts of all processes that were sampled ahead, in the order of one process."""
        if not self._next:
            return {}
        rollouts = self._next.result().rollouts
        own = [
            [
                rollouts.ids[b],
                rollouts.text[b],
                *(getattr(rollouts, name)[b].tolist() for name in _ARRAYS),
            ]
            for b in range(len(rollouts.ids))
        ]
        ids, text, *columns = zip(*self._hosts.dealt(self._hosts.gather(own)), strict=True)
        pairs = zip(_ARRAYS.items(), columns, strict=True)
        arrays = {name: np.asarray(column, dtype) for (name, dtype), column in pairs}
        return {**arrays, _TEXT: np.frombuffer(json.dumps([ids, text]).encode(), np.uint8)}

    def seek(
        self, positions: Sequence[dict[str, Any]], memory: dict[str, np.ndarray], batch: int
    ) -> None:
        """To where :meth:`position` and :meth:`memory` were told, ``batch`` batches taken."""
        take_up(self._loader, self._skipped, positions, batch, self._hosts)
        own = slice(self._hosts.index, None, self._hosts.count)
        self._saved = {name: array[own] for name, array in memory.items() if name in _ARRAYS}
        if memory:
            self._ids, self._text = (x[own] for x in json.loads(memory[_TEXT].tobytes()))

    def close(self) -> None:
        """Waits for what was begun and stops all threads."""
        if self._pool:
            self._pool.shutdown()
        self._loader.close()

    def _position(self) -> dict[str, Any]:
        return {"loader": self._loader.get_state(), "skipped": list(self._skipped)}

    def _read(self, clock: Clock) -> tuple[list[Example], PromptBatch, int]:
        examples, prompts = next(self._loader)
        clock.lap("data_wait")
        return examples, *common_bucket(self._engine, examples, prompts, self._hosts)

    def _sample(
        self,
        params: nnx.State,
        examples: list[Example],
        prompts: PromptBatch,
        depth: int,
        batch: int,
        lag: int,
    ) -> Sampled:
        rollouts = self._engine.rollout(
            params,
            prompts,
            group_size=self._group_size,
            seed=self._seed,
            step=batch,
            depth=depth,
        )
        return self._sampled(examples, prompts, rollouts, lag)

    def _sampled(
        self, examples: list[Example], prompts: PromptBatch, rollouts: Rollouts, lag: int
    ) -> Sampled:
        kept = isinstance(prompts.media, SliceFeatures)
        if not kept:
            self._engine.encoder.kept.note(examples, prompts.shapes, rollouts.prompts.media)
        return Sampled(examples, rollouts, lag, time.perf_counter(), kept)

    def _as_saved(self, prompts: PromptBatch) -> Rollouts | None:
        """The rollouts of a checkpoint as answers to these prompts; None without any.

        Nor if any process reads other prompts now: a record that can no longer be used, or records
        left out where the number of processes changed.
        """
        arrays, self._saved = self._saved, {}
        if not arrays:
            return None
        fits = tuple(self._ids) == prompts.ids
        fits = fits and arrays["length"].shape[2] == prompts.turn_mask.shape[1]
        if self._hosts.any(not fits):
            return None
        count = len(prompts.ids)
        return Rollouts(
            prompts=prompts,
            ids=prompts.ids,
            **arrays,
            text=self._text,
            turn_mask=prompts.turn_mask[:count],
            time=prompts.time[:count],
            marker=self._engine.policy.vocab.im_end,
        )


def common_bucket(
    engine: StreamEngine, examples: Sequence[Example], prompts: PromptBatch, hosts: Hosts
) -> tuple[PromptBatch, int]:
    """This process's prompts in the bucket that all processes use, and the turns to run.

    With kept features if all processes have those of all their prompts, otherwise with frames and
    sounds.

    Args:
      prompts: the examples in the smallest bucket that holds them.
    """
    room = engine.buckets.index(prompts.shapes)
    held = engine.encoder.kept.holds(examples, prompts.shapes)
    rooms, depths, all_held = zip(*hosts.gather([room, prompts.depth, held]), strict=True)
    kept = all(all_held)
    if max(rooms) > room or kept != isinstance(prompts.media, SliceFeatures):
        prompts = engine.prepare(examples, smallest=max(rooms), kept=kept)
    return prompts, max(depths)


def on_devices(prepare: Make, layout: Layout) -> Make:
    """``prepare``, with the prompts' frames and sounds put where the rollouts will look for them.

    What else is in a batch of prompts is a thousandth of these, and is needed on the host too.
    """

    def make(examples: Sequence[Example]) -> PromptBatch:
        prompts = prepare(examples)
        return replace(prompts, media=layout.split(prompts.media))

    return make
