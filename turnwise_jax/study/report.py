"""A study's results as files: table (Markdown, CSV, terminal), JSON and pictures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from turnwise_jax.eval.report import Report
from turnwise_jax.files import write_text
from turnwise_jax.study.plots import (
    RL_PANELS,
    SFT_PANELS,
    credit_warmup,
    plot_curves,
    plot_results,
)
from turnwise_jax.tables import markdown_table
from turnwise_jax.train.metrics import METRICS, read_jsonl


class Column(NamedTuple):
    """A metric of the streaming report as a column; ``short`` "" leaves it out of the terminal."""

    metric: str
    title: str
    decimals: int
    short: str


COLUMNS = (
    Column("reward", "reward", 3, "reward"),
    Column("pauc", "PAUC", 1, "PAUC"),
    Column("repetition_rate", "repetitive %", 1, "repe-\ntitive %"),
    Column("out_of_window_rate", "out-of-window %", 1, "out of\nwindow %"),
    Column("non_silent_share", "non-silent %", 1, "non-\nsilent %"),
    Column("reply_characters", "characters a reply", 1, ""),
)
PICTURED = {
    "pauc": "PAUC (\N{GREEK SMALL LETTER OMEGA} = 0.5)",
    "reward": "Reward (eq. 1)",
    "repetition_rate": "Repetitive replies, %",
    "out_of_window_rate": "Replies when none is due, %",
}
SILENCE_PAUC = 25.0


def write_results(directory: Path, reports: Mapping[str, Report]) -> None:
    """``results.json``, ``table.md``, ``table.csv`` and ``results.png``, from label -> report."""
    write_text(
        directory / "results.json",
        json.dumps({name: report.to_json() for name, report in reports.items()}, indent=2) + "\n",
    )
    write_text(directory / "table.md", markdown(reports))
    write_text(directory / "table.csv", comma_separated(reports))
    plot_results(
        reports,
        directory / "results.png",
        metrics=PICTURED,
        reference={"pauc": SILENCE_PAUC},
    )


def markdown(reports: Mapping[str, Report]) -> str:
    """The table, and below it what it is about."""
    head = ["policy", *(column.title for column in COLUMNS)]
    body = [
        [name, *(_cell(report, column) for column in COLUMNS)] for name, report in reports.items()
    ]
    lines = [markdown_table(head, body)]
    report = next(iter(reports.values()))
    counts = report.counts
    lines += [
        "",
        f"{counts['dialogues']} held-out dialogues on {counts['videos']} videos, "
        f"{counts['windows']} reply windows. In brackets: 95 % bootstrap interval over videos.",
        "",
        f"Rule: {report.rule}.",
    ]
    failed = {name: failures(report) for name, report in reports.items() if failures(report)}
    if failed:
        named = ", ".join(f"{name} {count}" for name, count in failed.items())
        lines += ["", f"Judgements that failed and are left out: {named}."]
    return "\n".join(lines) + "\n"


def failures(report: Report) -> int:
    """Judgements that a report had to do without."""
    return sum(count for name, count in report.counts.items() if name.startswith("failed_"))


def comma_separated(reports: Mapping[str, Report]) -> str:
    """Every metric of every row with the ends of its interval (empty where there is none)."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    metrics = list(next(iter(reports.values())).metrics)
    ends = [f"{metric}_{end}" for metric in metrics for end in ("low", "high")]
    writer.writerow(["policy", *metrics, *ends])
    for name, report in reports.items():
        spans = [x for m in metrics for x in report.intervals.get(m, ("", ""))]
        writer.writerow([name, *(report.metrics[m] for m in metrics), *spans])
    return buffer.getvalue()


def terminal(reports: Mapping[str, Report], title: str) -> Table:
    """The table for the terminal; narrow, so without intervals."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    shown = [column for column in COLUMNS if column.short]
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in shown:
        table.add_column(column.short, justify="right", no_wrap=True)
    for name, report in reports.items():
        table.add_row(name, *(_number(report, column) for column in shown))
    return table


def write_curves(directory: Path, runs: Mapping[str, Path]) -> list[Path]:
    """``curves.png`` of the runs that log rewards, ``curves_sft.png`` of the others.

    Args:
      directory: where the pictures go.
      runs: label -> directory of a training run.

    Returns:
      The pictures written.
    """
    logs = {name: read_jsonl(path / METRICS) for name, path in runs.items()}
    rl = {name: log for name, log in logs.items() if any("reward" in line for line in log)}
    sft = {name: log for name, log in logs.items() if log and name not in rl}
    written = []
    if rl:
        written.append(directory / "curves.png")
        warmup = max(map(credit_warmup, rl.values()))
        plot_curves(rl, written[-1], panels=RL_PANELS, warmup=warmup)
    if sft:
        written.append(directory / "curves_sft.png")
        plot_curves(sft, written[-1], panels=SFT_PANELS)
    return written


def _number(report: Report, column: Column) -> str:
    return f"{report.metrics[column.metric]:.{column.decimals}f}"


def _cell(report: Report, column: Column) -> str:
    """The number; for reward and PAUC also the interval, where there is one."""
    low, high = report.intervals.get(column.metric, (0.0, 0.0))
    if column.metric not in ("reward", "pauc") or low == high:
        return _number(report, column)
    span = f"[{low:.{column.decimals}f}, {high:.{column.decimals}f}]"
    return f"{_number(report, column)} {span}"
