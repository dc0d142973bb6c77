"""Where a run's numbers go: JSON lines and TensorBoard; and a count of compiles.

``metrics.jsonl`` holds what depends on the run alone, so that a resumed run's file equals an
uninterrupted one's byte for byte; clock-dependent figures (seconds, tokens per second, compiles)
are in ``timing.jsonl``. Both have one line per step and the same step axis. ``groups.jsonl`` has
one line per rollout. TensorBoard's files are a copy, made anew from the first two on resume.
``compiles.jsonl`` has one line per process: what it compiled before its first step.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from turnwise_jax.files import write_bytes

METRICS, TIMING, GROUPS = "metrics.jsonl", "timing.jsonl", "groups.jsonl"
COMPILES = "compiles.jsonl"
BOARD = "tensorboard"
_AXES = ("step", "time")
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a torn last line is left out. Missing file: []."""
    return [json.loads(line) for line in _whole_lines(Path(path))]


def truncate_jsonl(path: str | os.PathLike, steps: int) -> None:
    """Atomically drop every line whose ``step`` is not below ``steps``, and a torn last line."""
    path = Path(path)
    if not path.exists():
        return
    kept = [line + b"\n" for line in _whole_lines(path) if json.loads(line)["step"] < steps]
    write_bytes(path, b"".join(kept))


def append_jsonl(path: str | os.PathLike, records: Sequence[Mapping[str, Any]]) -> None:
    """Append one line per record; NaN and infinities become ``null`` (strict JSON)."""
    data = "".join(json.dumps(_jsonable(r), allow_nan=False) + "\n" for r in records)
    with open(path, "ab") as handle:
        handle.write(data.encode())


def _whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None


class CompileCounter:
    """Counts XLA backend compiles in this process, whatever started them.

    ``names`` and ``seconds``: programs compiled since the last :meth:`restart`, and the time they
    took.
    """

    def __init__(self) -> None:
        self.restart()
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    @property
    def count(self) -> int:
        return len(self.names)

    def restart(self) -> None:
        self.names: list[str] = []
        self.seconds = 0.0

    def summary(self) -> dict[str, Any]:
        """For the logs: how many programs of which name, and how long it took."""
        return {"programs": self.count, "seconds": self.seconds, "names": Counter(self.names)}

    def _on_event(self, name: str, seconds: float, **details: Any) -> None:
        if name == _COMPILE_EVENT:
            self.names.append(str(details.get("fun_name", "?")))
            self.seconds += seconds

    def close(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)


@contextmanager
def count_compiles() -> Iterator[CompileCounter]:
    """``with count_compiles() as c: ...; c.count`` is the number of compiles so far."""
    counter = CompileCounter()
    try:
        yield counter
    finally:
        counter.close()


class MetricsWriter:
    """Writes a run's metrics and, on resume, first forgets what came after the checkpoint.

    Args:
      directory: the run's folder.
      start_step: first step that will be written; later lines of an earlier attempt are dropped.
    """

    def __init__(self, directory: str | os.PathLike, start_step: int):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, TIMING, GROUPS):
            truncate_jsonl(self.directory / name, start_step)
        shutil.rmtree(self.directory / BOARD, ignore_errors=True)
        (self.directory / BOARD).mkdir()
        # Not its SummaryWriter, which writes from a thread and whose `flush` does not wait for it.
        self._board = EventsWriter(str(self.directory / BOARD / "events"))
        logs = (read_jsonl(self.directory / name) for name in (METRICS, TIMING))
        for metrics, timing in zip(*logs, strict=False):
            self._draw(metrics, timing)
        self._board.flush()

    def write(
        self,
        step: int,
        metrics: Mapping[str, Any],
        timing: Mapping[str, Any],
        groups: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """One step; it is in the files when this returns."""
        metrics, timing = {"step": step, **metrics}, {"step": step, "time": time.time(), **timing}
        append_jsonl(self.directory / METRICS, [metrics])
        append_jsonl(self.directory / TIMING, [timing])
        if groups:
            append_jsonl(self.directory / GROUPS, [{"step": step, **group} for group in groups])
        self._draw(metrics, timing)
        self._board.flush()

    def sync(self) -> None:
        """Make what is written survive a crash of the machine."""
        for name in (METRICS, TIMING, GROUPS):
            if (self.directory / name).exists():
                with open(self.directory / name, "rb") as handle:
                    os.fsync(handle.fileno())

    def close(self) -> None:
        self._board.close()

    def _draw(self, metrics: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        """Every finite number as a TensorBoard scalar; a list as one curve per entry."""
        values = []
        for name, value in {**metrics, **timing}.items():
            curves = {name: value}
            if isinstance(value, list | tuple):
                curves = {f"{name}/{index}": number for index, number in enumerate(value)}
            values += [
                Summary.Value(tag=tag, simple_value=number)
                for tag, number in curves.items()
                if tag not in _AXES and isinstance(number, int | float) and math.isfinite(number)
            ]
        summary = Summary(value=values)
        self._board.write_event(
            Event(step=metrics["step"], wall_time=timing["time"], summary=summary)
        )


class Unwritten:
    """The writer of a process whose numbers another one writes."""

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)

    def write(self, *_: Any) -> None:
        """Nothing; as all others."""

    def sync(self) -> None: ...

    def close(self) -> None: ...
