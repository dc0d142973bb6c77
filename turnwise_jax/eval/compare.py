"""Several reports of one benchmark beside one another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from turnwise_jax.errors import InputError
from turnwise_jax.eval.report import Report
from turnwise_jax.tables import markdown_table


def read_reports(paths: Sequence[str | os.PathLike[str]]) -> dict[str, Report]:
    """Reports by name: the file's folder, or its whole path where two folders are called alike.

    Raises:
      InputError: fewer than two files, one that is no report, or reports of different benchmarks or
        rules, whose numbers do not belong beside one another.
    """
    if len(paths) < 2:
        raise InputError(f"takes two or more reports, got {len(paths)}", field="compare")
    files = [Path(path) for path in paths]
    folders = [file.absolute().parent.name for file in files]
    names = [
        folder if folders.count(folder) == 1 else str(file)
        for folder, file in zip(folders, files, strict=True)
    ]
    found = {name: Report.read(file) for name, file in zip(names, files, strict=True)}
    if len(found) < len(files):
        raise InputError("names a file twice", field="compare")
    first = next(iter(found.values()))
    for file, report in zip(files, found.values(), strict=True):
        if (report.benchmark, report.rule) != (first.benchmark, first.rule):
            raise InputError(
                f"is of {report.benchmark} ({report.rule}), {files[0]} is of {first.benchmark} "
                f"({first.rule})",
                file=file,
            )
    return found


def cells(reports: Mapping[str, Report]) -> list[list[str]]:
    """A row for each metric of any report: its name, then value and interval in each report."""
    names = dict.fromkeys(name for report in reports.values() for name in report.metrics)
    return [[name, *[_cell(report, name) for report in reports.values()]] for name in names]


def _cell(report: Report, name: str) -> str:
    if name not in report.metrics:
        return ""
    text = f"{report.metrics[name]:.2f}"
    if name in report.intervals:
        low, high = report.intervals[name]
        text += f" ({low:.2f} to {high:.2f})"
    return text


def table(reports: Mapping[str, Report]) -> Table:
    """For the terminal."""
    first = next(iter(reports.values()))
    found = Table(title=first.benchmark, caption=first.rule, caption_justify="left")
    found.add_column("metric")
    for name in reports:
        found.add_column(name, justify="right")
    for row in cells(reports):
        found.add_row(*row)
    return found


def markdown(reports: Mapping[str, Report]) -> str:
    """For a file: the table, and the rule below it."""
    first = next(iter(reports.values()))
    lines = markdown_table(["metric", *reports], cells(reports))
    note = f"In brackets: 95 % interval over videos. {first.rule}."
    return f"# {first.benchmark}\n\n{lines}\n\n{note}\n"
