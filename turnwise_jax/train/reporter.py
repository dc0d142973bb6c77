"""One step's numbers on their way to the logs and the progress bar."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import jax

from turnwise_jax.progress import ProgressBar
from turnwise_jax.train.metrics import CompileCounter, MetricsWriter, Unwritten

SHOWN = ("reward", "loss")  # beside the progress bar


class Collected(Protocol):
    """What the reporter reads of a batch; see ``loop.Collected``."""

    metrics: dict[str, Any]
    timing: dict[str, float | None]
    groups: list[dict[str, Any]]
    tokens: int


class _Step(NamedTuple):
    iteration: int
    began: float
    known: dict[str, Any]
    metrics: dict[str, Any]  # still on the device
    timing: dict[str, float | None]
    groups: list[dict[str, Any]]
    tokens: int


class Reporter:
    """Writes each step's numbers while the next step runs, so that logging never stalls it."""

    def __init__(
        self, writer: MetricsWriter | Unwritten, compiles: CompileCounter, total: int, done: int
    ):
        """
        Args:
          writer: where numbers go; closed with the reporter.
          compiles: counts the compiles that should not happen.
          total, done: iterations in all, and before this process began.
        """
        self._writer, self._compiles = writer, compiles
        self._bar = ProgressBar(writer.directory.name, total, done=done)
        self._waiting: _Step | None = None

    def __enter__(self) -> Reporter:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        self._writer.close()

    def begin(self, iteration: int) -> None:
        """A step begins."""
        self._iteration, self._began = iteration, time.perf_counter()

    def end(self, collected: Collected, metrics: dict[str, Any]) -> None:
        """The step is dispatched; write the one before it, which ended when this one began."""
        before = self._waiting
        self._waiting = _Step(
            self._iteration,
            self._began,
            collected.metrics,
            metrics,
            collected.timing,
            collected.groups,
            collected.tokens,
        )
        if before:
            self._write(before, self._began)

    def add(self, numbers: dict[str, Any], timing: dict[str, float | None]) -> None:
        """More about the step that ended last."""
        if self._waiting:
            self._waiting.known.update(numbers)
            self._waiting.timing.update(timing)

    def note(self, text: str) -> None:
        """Shown beside the progress bar until a step is written."""
        self._bar.update(0, text)

    def flush(self) -> None:
        """Wait for the newest step and write it to disk."""
        if self._waiting:
            jax.block_until_ready(self._waiting.metrics)
            self._write(self._waiting, time.perf_counter())
            self._waiting = None
        self._writer.sync()

    def _write(self, step: _Step, ended: float) -> None:
        seconds = ended - step.began
        fetched = {name: value.item() for name, value in jax.device_get(step.metrics).items()}
        numbers = {**step.known, **fetched}
        timing = {
            "seconds": seconds,
            "tokens_per_second": step.tokens / seconds,
            "compiles": self._compiles.count,
            "starvation": (step.timing.get("data_wait") or 0.0) / seconds,
            **step.timing,
        }
        if self._compiles.names:
            timing["compiled"] = list(self._compiles.names)  # what should have been ready
        self._writer.write(step.iteration, numbers, timing, step.groups)
        shown = [f"{name} {numbers[name]:.3f}" for name in SHOWN if numbers.get(name) is not None]
        self._bar.update(1, "  ".join(shown))
