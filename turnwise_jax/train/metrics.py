"""Where a run's numbers go: JSON lines, TensorBoard, a progress bar, and a count of compiles.

``metrics.jsonl`` holds what depends on the run alone, so that a resumed run's file equals an
uninterrupted one's byte for byte; clock-dependent figures (seconds, tokens per second, compiles)
are in ``timing.jsonl``. Both have one line per step and the same step axis.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from tensorboardX import SummaryWriter

METRICS, TIMING, GROUPS = "metrics.jsonl", "timing.jsonl", "groups.jsonl"
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a torn last line is left out. Missing file: []."""
    path = Path(path)
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        records.append(json.loads(line))
    return records


def truncate_jsonl(path: str | os.PathLike, steps: int) -> None:
    """Atomically drop every line whose ``step`` is not below ``steps``, and a torn last line."""
    path = Path(path)
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        if json.loads(line)["step"] < steps:
            kept.append(line + b"\n")
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as handle:
        handle.write(b"".join(kept))
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(handle.name, path)


def append_jsonl(path: str | os.PathLike, records: list[Mapping[str, Any]]) -> None:
    """Append one line per record; NaN and infinities become ``null`` (strict JSON)."""
    data = "".join(json.dumps(_jsonable(r), allow_nan=False) + "\n" for r in records)
    with open(path, "ab") as handle:
        handle.write(data.encode())


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
    """Counts XLA backend compiles in this process, whatever started them."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, name: str, seconds: float, **_: Any) -> None:
        if name == _COMPILE_EVENT:
            self.count += 1

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
        self._board = SummaryWriter(
            str(self.directory / "tensorboard"), purge_step=start_step, write_to_disk=True
        )

    def write(
        self,
        step: int,
        metrics: Mapping[str, Any],
        timing: Mapping[str, Any],
        groups: list[Mapping[str, Any]] = (),
    ) -> None:
        append_jsonl(self.directory / METRICS, [{"step": step, **metrics}])
        append_jsonl(self.directory / TIMING, [{"step": step, **timing}])
        if groups:
            append_jsonl(self.directory / GROUPS, [{"step": step, **g} for g in groups])
        for name, value in {**metrics, **timing}.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._board.close()
