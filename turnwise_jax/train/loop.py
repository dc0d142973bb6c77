"""The training loop: collect a batch, update, log, checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.train.checkpoint import Checkpointer, abstract
from turnwise_jax.train.compiled import Update, compile_all
from turnwise_jax.train.held_out import HeldOut
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.metrics import (
    COMPILES,
    MetricsWriter,
    Unwritten,
    append_jsonl,
    count_compiles,
)
from turnwise_jax.train.reporter import Reporter
from turnwise_jax.train.signals import stop_on_sigterm
from turnwise_jax.train.state import Batch, TrainState, fingerprint

CHECKPOINTS = "checkpoints"


class Collected(Protocol):
    """One batch with what was learnt while making it.

    ``batch`` is this process's share, the rest is about the whole.
    """

    batch: Batch
    metrics: dict[str, Any]  # the same whenever the run is repeated
    timing: dict[str, float | None]
    groups: list[dict[str, Any]]
    tokens: int  # real tokens in the batch
    prepared: bool  # whether the batch comes from ``Update.prepare``


class Collector(Protocol):
    """Turns data (and, in RL, the current parameters) into batches."""

    def __call__(self, state: TrainState, iteration: int) -> Collected: ...

    def position(self) -> dict[str, Any]:
        """JSON-able data position after the batches collected so far."""

    def memory(self) -> dict[str, np.ndarray]:
        """What else must be known to go on, the same in every process; no array is empty."""

    def seek(
        self, positions: list[dict[str, Any]], memory: dict[str, np.ndarray], iteration: int
    ) -> None:
        """Go on behind ``iteration`` batches, where each process was at its ``position()``."""

    def shapes(self) -> list[Batch]:
        """An empty batch of every shape that can come."""

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Calls that compile what collecting needs, one part each."""

    def close(self) -> None:
        """Release threads and connections."""


@dataclass
class Run:
    """Everything that one training run is made of; built by ``train/run.py``."""

    directory: Path
    state: TrainState | None  # the initial one; `fit` takes it
    collect: Collector
    update: Update
    iterations: int
    checkpoint_every: int
    keep_checkpoints: int
    hosts: Hosts = field(default=ALONE)
    held_out: HeldOut | None = None


def fit(run: Run) -> tuple[TrainState, bool]:
    """Train to the end, or to SIGTERM; goes on from the newest checkpoint in ``run.directory``.

    Returns:
      The last state and whether all iterations are done.
    """
    with (
        stop_on_sigterm() as stop,
        count_compiles() as compiles,
        closing(Checkpointer(run.directory / CHECKPOINTS, keep=run.keep_checkpoints)) as saved,
    ):
        state, done = resume(run, saved)
        if done < run.iterations:
            updates = run.update.programs(state, run.collect.shapes())
            looks = run.held_out.programs(state) if run.held_out else []
            compile_all([*run.collect.programs(state), *updates, *looks])
            if run.hosts.main:
                append_jsonl(run.directory / COMPILES, [{"step": done, **compiles.summary()}])
        if run.hosts.any(stop.requested) or done == run.iterations:  # nothing new to save
            return state, done == run.iterations
        fixed = fingerprint(state)
        compiles.restart()
        writer = MetricsWriter(run.directory, done) if run.hosts.main else Unwritten(run.directory)
        stopping = False
        with Reporter(writer, compiles, run.iterations, done) as reporter:
            while done < run.iterations and not stopping:
                reporter.begin(done)
                collected = run.collect(state, done)
                state, metrics = run.update(state, collected.batch, prepared=collected.prepared)
                reporter.end(collected, metrics)
                del collected  # its arrays may be on the devices, where the next batch is to go
                done += 1
                if run.held_out and run.held_out.due(done):
                    reporter.add(*run.held_out(state, reporter.note))
                stopping = run.hosts.any(stop.requested)
                if stopping or done == run.iterations or done % run.checkpoint_every == 0:
                    reporter.flush()
                    positions = run.hosts.gather(run.collect.position())
                    meta = {"iteration": done, "positions": positions, "frozen": fixed}
                    saved.save(done, state.kept(), meta, run.collect.memory())
    return state, done == run.iterations


def resume(run: Run, saved: Checkpointer) -> tuple[TrainState, int]:
    """State and first iteration: the newest checkpoint's, or the run's initial ones."""
    latest = saved.latest_step()
    state, run.state = run.state, None
    if latest is None:
        return state, 0
    like = state._replace(**jax.tree.map(abstract, state.kept()))
    del state  # so that two states are never in memory
    state, meta = restored(saved, latest, like)
    done = int(meta["iteration"])
    run.collect.seek(meta["positions"], saved.memory(latest), done)
    return state, done


def restored(saved: Checkpointer, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
    """The state of a run's checkpoint, and what else it holds.

    Args:
      saved: the run's checkpoints.
      step: which.
      like: has the frozen parameters, and what the others look like.

    Raises:
      InputError: it cannot be read, does not fit, or the run began with other frozen parameters.
    """
    kept, meta = saved.restore(step, like.kept())
    if meta["frozen"] != fingerprint(like):
        raise InputError(
            "its frozen (or reference) weights are no longer those that the run began with",
            file=saved.directory,
            field="policy.checkpoint",
        )
    return like._replace(**kept), meta
