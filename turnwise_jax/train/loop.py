"""The training loop: collect a batch, update, log, checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax

from turnwise_jax.progress import ProgressBar
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.compiled import compile_update
from turnwise_jax.train.metrics import CompileCounter, MetricsWriter, count_compiles
from turnwise_jax.train.state import Batch, TrainState


class Collected(Protocol):
    """One batch with what was learnt while making it."""

    batch: Batch
    metrics: dict[str, float]
    timing: dict[str, float]
    groups: list[dict[str, Any]]
    tokens: int  # real tokens in the batch


class Collector(Protocol):
    """Turns data (and, in RL, the current parameters) into batches."""

    def __call__(self, state: TrainState, iteration: int) -> Collected: ...

    def position(self) -> dict[str, Any]:
        """JSON-able data position after the batches collected so far."""

    def seek(self, position: dict[str, Any]) -> None:
        """Go on from an earlier ``position()``."""

    def shapes(self) -> list[Batch]:
        """An empty batch of every shape that can come."""

    def close(self) -> None:
        """Release threads and connections."""


@dataclass
class Run:
    """Everything that one training run is made of; built by ``train/run.py``."""

    directory: Path
    state: TrainState
    collect: Collector
    step_arguments: dict[str, Any]  # static arguments of `train_step`
    iterations: int
    inner_epochs: int
    checkpoint_every: int
    keep_checkpoints: int


def fit(run: Run) -> tuple[TrainState, bool]:
    """Train to the end, or to SIGTERM; goes on from the newest checkpoint in ``run.directory``.

    Returns:
      The last state and whether all iterations are done.
    """
    checkpoints = Checkpointer(run.directory / "checkpoints", keep=run.keep_checkpoints)
    state, start = resume(run, checkpoints)
    reporter = Reporter(MetricsWriter(run.directory, start))
    update = compile_update(
        run.state, run.collect.shapes(), run.step_arguments, inner_epochs=run.inner_epochs
    )
    done = start
    with (
        stop_on_sigterm() as stop,
        count_compiles() as reporter.compiles,
        ProgressBar(run.directory.name, run.iterations, done=start) as reporter.bar,
    ):
        for iteration in range(start, run.iterations):
            reporter.begin(iteration)
            collected = run.collect(state, iteration)
            state, metrics = update(state, collected.batch)
            reporter.end(collected, metrics)
            done = iteration + 1
            last = done == run.iterations or stop.requested
            if last or done % run.checkpoint_every == 0:
                reporter.flush()
                checkpoints.save(done, state, {"iteration": done, **run.collect.position()})
            if stop.requested:
                break
    checkpoints.wait()
    checkpoints.close()
    reporter.writer.close()
    return state, done == run.iterations


def resume(run: Run, checkpoints: Checkpointer) -> tuple[TrainState, int]:
    """State and first iteration: the newest checkpoint's, or the run's initial ones."""
    latest = checkpoints.latest_step()
    if latest is None:
        return run.state, 0
    state, position = checkpoints.restore(latest, run.state)
    run.collect.seek(position)
    return state, int(position["iteration"])


class Reporter:
    """Writes each step's numbers while the next step runs, so that logging never stalls it."""

    def __init__(self, writer: MetricsWriter):
        self.writer = writer
        self.compiles: CompileCounter
        self.bar: ProgressBar
        self._waiting: tuple[int, Collected, dict[str, Any], float] | None = None

    def begin(self, iteration: int) -> None:
        self._iteration, self._began = iteration, time.perf_counter()

    def end(self, collected: Collected, metrics: dict[str, Any]) -> None:
        """The step is dispatched; write the one before it, which ended when this one began."""
        waiting, self._waiting = (
            self._waiting,
            (self._iteration, collected, metrics, self._began),
        )
        if waiting:
            self._write(*waiting, ended=self._began)

    def flush(self) -> None:
        """Wait for the newest step and write it."""
        if self._waiting:
            jax.block_until_ready(self._waiting[2])
            self._write(*self._waiting, ended=time.perf_counter())
            self._waiting = None

    def _write(
        self,
        iteration: int,
        collected: Collected,
        metrics: dict[str, Any],
        began: float,
        *,
        ended: float,
    ) -> None:
        numbers = {**collected.metrics, **{k: float(v) for k, v in jax.device_get(metrics).items()}}
        timing = {
            **collected.timing,
            "seconds": ended - began,
            "tokens_per_second": collected.tokens / (ended - began),
            "compiles": self.compiles.count,
        }
        self.writer.write(iteration, numbers, timing, collected.groups)
        shown = [f"{k} {numbers[k]:.3f}" for k in ("reward", "loss") if k in numbers]
        self.bar.update(1, "  ".join(shown))


@dataclass
class StopRequest:
    requested: bool = False


@contextmanager
def stop_on_sigterm() -> Iterator[StopRequest]:
    """SIGTERM (a spot machine's notice) asks the loop to checkpoint and end after this step."""
    stop = StopRequest()

    def on_signal(*_: Any) -> None:
        stop.requested = True

    try:
        previous = signal.signal(signal.SIGTERM, on_signal)
    except ValueError:  # not the main thread: the owner of the process handles signals
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, previous)
