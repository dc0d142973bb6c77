"""What every benchmark takes and returns: judges in, numbers with intervals and their rule out."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from turnwise_jax.data.records import Window
from turnwise_jax.errors import InputError
from turnwise_jax.files import write_text
from turnwise_jax.rewards.judges import Judge, make_judge, misplaced_rule


class Judges(NamedTuple):
    """``reward`` grades from 0 to 4, as in training; ``benchmark`` from 0 to 2."""

    reward: Judge
    benchmark: Judge


def make_judges(config: Mapping[str, Any]) -> Judges:
    """Both judges of one ``judge`` section (kind, address, cache, ...; see ``make_judge``)."""
    fields = {name: config[name] for name in config if name != "levels"}
    return Judges(make_judge({**fields, "levels": 5}), make_judge({**fields, "levels": 3}))


def judged_by(config: Mapping[str, Any], windows: Iterable[Window]) -> str:
    """The judge of a ``judge`` section in words, with a warning if it does not suit the windows."""
    name = f"{config['kind']} {config['model']}" if config["kind"] == "openai" else config["kind"]
    warning = misplaced_rule(config["kind"], (window.answer for window in windows))
    return f"judge: {name}" + (f" (WARNING: {warning})" if warning else "")


@dataclass(frozen=True)
class Report:
    """The result of one benchmark on one set of predictions.

    Attributes:
      benchmark: its key in ``BENCHMARKS``.
      rule: the rule in force, in words: what counts, over what it is averaged, which judge.
      metrics: name -> value. Shares are in percent, PAUC is times 100, rewards are as in eq. 1.
      intervals: name -> (low, high), 95 % bootstrap over videos; absent for a single video.
      counts: how many dialogues, videos, windows, replies and judgements stand behind them,
        and how many judgements are missing.
    """

    benchmark: str
    rule: str
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, atomically."""
        write_text(path, json.dumps(self.to_json(), indent=2) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Report:
        """Read what :meth:`write` wrote; InputError if the file holds something else."""
        try:
            record = json.loads(Path(path).read_text())
            record["intervals"] = {k: (low, high) for k, (low, high) in record["intervals"].items()}
            report = cls(**record)
            for value in (*report.metrics.values(), *itertools.chain(*report.intervals.values())):
                float(value)
            return report
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise InputError(f"is not a report: {error}", file=path) from error

    def table(self, title: str = "") -> Table:
        """The report as a table for the terminal."""
        table = Table(title=title or self.benchmark, caption=self.rule, caption_justify="left")
        table.add_column("metric")
        table.add_column("value", justify="right")
        table.add_column("95 % interval over videos", justify="right")
        for name, value in self.metrics.items():
            low_high = self.intervals.get(name)
            spread = "" if low_high is None else f"{low_high[0]:.2f} to {low_high[1]:.2f}"
            table.add_row(name, f"{value:.2f}", spread)
        table.add_section()
        for name, count in self.counts.items():
            table.add_row(name, str(count), "")
        return table
