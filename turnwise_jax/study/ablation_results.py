"""What an ablation's finished runs came to: numbers of each, then means and spreads over seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from turnwise_jax.eval.report import Report
from turnwise_jax.study.ablation_config import PLAIN, kind_of, label, rows_of
from turnwise_jax.study.plots import column
from turnwise_jax.study.worlds import WorldKind
from turnwise_jax.train.directory import REPORT
from turnwise_jax.train.metrics import GROUPS, METRICS, read_jsonl

COUNTS = ("generated", "replayed", "updates", "skipped_updates")  # over a whole run
SHARES = ("hinted", "zero_signal", "zero_signal_mixed")  # means over a run's updates, in percent
TIERS = ("buffer_easy", "buffer_medium", "buffer_hard")


@dataclass(frozen=True, eq=False)
class RunLog:
    """One run's logs over its S batches.

    Attributes:
      generated: i64[S] rollouts generated up to and with each batch.
      metrics: name -> f64[S], NaN where a batch has none.
      counts: of the whole run, by the names of ``COUNTS``.
    """

    generated: np.ndarray
    metrics: Mapping[str, np.ndarray]
    counts: Mapping[str, float]

    @classmethod
    def read(cls, directory: Path, curve: str) -> RunLog:
        """The logs in a finished run's directory; ``curve`` is the metric of its learning curve.

        A method that logs only the share of groups with a signal replays nothing, so what that
        share lacks to 1 is its share without one, by either count.
        """
        lines = read_jsonl(directory / METRICS)
        metrics = {name: column(lines, name) for name in (curve, "replayed", *SHARES, *TIERS)}
        for name in ("zero_signal", "zero_signal_mixed"):
            if np.isnan(metrics[name]).all():
                metrics[name] = 1.0 - column(lines, "signal")
        groups = read_jsonl(directory / GROUPS)
        fresh = Counter(group["step"] for group in groups if not group.get("replayed"))
        report = json.loads((directory / REPORT).read_text())
        counts = {
            "generated": float(fresh.total()),
            "replayed": float(np.nansum(metrics["replayed"])),
            "updates": float(report["updates"]),
            "skipped_updates": float(report["skipped_updates"]),
        }
        generated = np.cumsum([fresh[line["step"]] for line in lines], dtype=np.int64)
        return cls(generated, metrics, counts)

    def figures(self) -> dict[str, float]:
        """The run in numbers, by the names of ``COUNTS`` and ``SHARES``, without what it lacks."""
        found = dict(self.counts)
        for name in SHARES:
            known = self.metrics[name][np.isfinite(self.metrics[name])]
            if known.size:
                found[name] = 100.0 * float(known.mean())
        return found


class Outcome(NamedTuple):
    """One policy, evaluated.

    ``values``: by the names of the world's measures and categories, and of the run's figures.
    ``controls``: the same of the evaluations under each control. ``floor``: what knowing nothing
    earns. ``log``: of its run; None for the start, which is no variant.
    """

    values: Mapping[str, float]
    controls: Mapping[str, Mapping[str, float]]
    floor: Mapping[str, float]
    log: RunLog | None


def outcome(kind: WorldKind, reports: Mapping[str, Report], directory: Path | None) -> Outcome:
    """The outcome of a policy from its reports, by control, and the directory of its run."""
    log = None if directory is None else RunLog.read(directory, kind.curve[0])
    figures = {} if log is None else log.figures()
    return Outcome(
        values={**kind.values(reports[PLAIN]), **figures},
        controls={name: kind.values(r) for name, r in reports.items() if name != PLAIN},
        floor=kind.floor(reports[PLAIN]),
        log=log,
    )


class Spread(NamedTuple):
    """Mean and sample standard deviation over ``count`` seeds; no deviation of a single one."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None if there is no value."""
        if not len(values):
            return None
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), deviation, len(values))


@dataclass
class Results:
    """The start and every finished run: ``runs[variant][seed]``."""

    config: ConfigDict
    start: Outcome
    runs: dict[str, dict[int, Outcome]] = field(default_factory=dict)

    @property
    def kind(self) -> WorldKind:
        return kind_of(self.config)

    @property
    def categories(self) -> list[str]:
        """Names of the categories of the held-out records."""
        return [name for name in self.start.values if "/" in name]

    @property
    def replays(self) -> bool:
        """Whether any run has replayed a sample."""
        runs = [run for found in self.runs.values() for run in found.values()]
        return any(run.values.get("replayed") for run in runs)

    def add(self, name: str, seed: int, found: Outcome) -> None:
        self.runs.setdefault(name, {})[seed] = found

    def label(self, name: str) -> str:
        return label(self.config, name)

    def tables(self) -> dict[str, list[str]]:
        """Table -> those of its variants that have a finished run, in order; no empty table."""
        found = {
            table: [name for name in rows_of(self.config, table) if name in self.runs]
            for table in self.config.table_order
        }
        return {table: rows for table, rows in found.items() if rows}

    def finished(self) -> list[str]:
        """Variants with a finished run, in the order in which they are run."""
        return [name for name in self.config.order if name in self.runs]

    def over_seeds(self, name: str, value: str, control: str = PLAIN) -> Spread | None:
        """A value of a variant over its seeds; None where no run has it."""
        found = (
            run.values if control == PLAIN else run.controls.get(control, {})
            for run in self.runs[name].values()
        )
        return Spread.of([values[value] for values in found if value in values])

    def difference(self, name: str, reference: str, value: str) -> Spread | None:
        """A variant minus another one, seed by seed; None where they share no seed."""
        own, other = self.runs[name], self.runs[reference]
        shared = [seed for seed in own if seed in other]
        pairs = [(own[seed].values, other[seed].values) for seed in shared]
        return Spread.of([a[value] - b[value] for a, b in pairs if value in a and value in b])

    def curves(self, name: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """(f64[S] rollouts generated, f64[R, S] metric) of a variant's R runs.

        S is the length of the shortest; rollouts are the mean over the runs.
        """
        logs = [run.log for run in self.runs[name].values() if run.log is not None]
        length = min(len(log.generated) for log in logs)
        generated = np.mean([log.generated[:length] for log in logs], axis=0)
        return generated, np.array([log.metrics[metric][:length] for log in logs])
