"""An ablation's results as files: Markdown for readers, CSV and JSON with every number."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from turnwise_jax.files import write_text
from turnwise_jax.study.ablation_config import PLAIN, START
from turnwise_jax.study.ablation_results import COUNTS, SHARES, Results, Spread
from turnwise_jax.study.worlds import Measure
from turnwise_jax.tables import markdown_table

FIGURES = (
    Measure("generated", "rollouts generated", 0),
    Measure("replayed", "samples replayed", 0),
    Measure("updates", "updates", 0),
    Measure("hinted", "hinted prompts, %"),
    Measure("zero_signal", "no signal, fresh samples alone, %"),
    Measure("zero_signal_mixed", "no signal, with replayed ones, %"),
)
CONTROLS = {"muted": "sound muted", "blanked": "frames grey", "swapped": "another video's frames"}
MINUS, PLUS_MINUS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"


def write_tables(directory: Path, results: Results) -> None:
    """``tables.md``, ``tables.csv`` and ``results.json`` of the runs that are finished."""
    write_text(directory / "tables.md", markdown(results))
    write_text(directory / "tables.csv", comma_separated(results))
    write_text(directory / "results.json", json.dumps(as_json(results), indent=2) + "\n")


def markdown(results: Results) -> str:
    """Every table: its results, its runs in numbers, its categories; then the controls."""
    parts = []
    for table, rows in results.tables().items():
        parts += [f"## {table}", markdown_table(*_results(results, rows))]
        parts.append(markdown_table(*_figures(results, rows)))
        if results.categories:
            parts.append(markdown_table(*_categories(results, rows)))
    controlled = _controls(results)
    if controlled is not None:
        parts += ["## controls", markdown_table(*controlled)]
    return "\n\n".join([*parts, *_notes(results)]) + "\n"


def _results(results: Results, rows: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(head, body): the measures of the start and of every variant, and what sets it apart."""
    measures, reference = results.kind.measures, rows[0]
    first = measures[0]
    head = ["variant", "seeds", first.title, f"against {results.label(reference)}"]
    start = [_number(results.start.values.get(m.name), m) for m in measures]
    body = [[results.label(START), "", start[0], "", *start[1:]]]
    for name in rows:
        cells = [_spread(results.over_seeds(name, m.name), m.decimals) for m in measures]
        apart = results.difference(name, reference, first.name) if name != reference else None
        seeds = str(len(results.runs[name]))
        cells.insert(1, _spread(apart, first.decimals, "+"))
        body.append([results.label(name), seeds, *cells])
    return [*head, *(m.title for m in measures[1:])], body


def _figures(results: Results, rows: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(head, body): what each variant's runs did, means over seeds."""
    figures, body = _shown(results), []
    for name in rows:
        found = [results.over_seeds(name, figure.name) for figure in figures]
        means = [None if spread is None else spread.mean for spread in found]
        cells = [_number(m, figure) for m, figure in zip(means, figures, strict=True)]
        body.append([results.label(name), *cells])
    return ["variant", *(figure.title for figure in figures)], body


def _shown(results: Results) -> list[Measure]:
    """The figures that tell something: none about replay or hints in a study without."""
    left_out = set() if results.replays else {"replayed", "zero_signal_mixed"}
    every = [run.values for runs in results.runs.values() for run in runs.values()]
    return [f for f in FIGURES if f.name not in left_out and any(f.name in v for v in every)]


def _categories(results: Results, rows: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(head, body): the first measure in every category."""
    names = results.categories
    start = [_number(results.start.values.get(name), Measure(name, name)) for name in names]
    body = [[results.label(START), *start]]
    for row in rows:
        body.append([results.label(row), *(_spread(results.over_seeds(row, n), 1) for n in names)])
    return [f"{results.kind.measures[0].title} in", *names], body


def _controls(results: Results) -> tuple[list[str], list[list[str]]] | None:
    """(head, body): policies plain and deprived of something, beside what knowing nothing earns."""
    measures = (*results.kind.measures, *(Measure(name, name) for name in results.categories))
    head = ["policy", *(m.title for m in measures)]
    body = []
    if results.start.floor:
        floor = [_number(results.start.floor.get(m.name), m) for m in measures]
        body.append(["knowing nothing", *floor])
    deprived = {PLAIN: results.start.values, **results.start.controls}
    for control, values in deprived.items():
        cells = [_number(values.get(m.name), m) for m in measures]
        body.append([_deprived(results.label(START), control), *cells])
    for name in results.config.evaluation.controls:
        if name not in results.runs:
            continue
        for control in deprived:
            found = [results.over_seeds(name, m.name, control) for m in measures]
            cells = [_spread(s, m.decimals) for s, m in zip(found, measures, strict=True)]
            body.append([_deprived(results.label(name), control), *cells])
    return (head, body) if results.start.controls else None


def _deprived(name: str, control: str) -> str:
    return name if control == PLAIN else f"{name}, {CONTROLS.get(control, control)}"


def _notes(results: Results) -> list[str]:
    """What the numbers are."""
    asked, seeds = results.kind, results.config.seeds
    done = sum(len(runs) for runs in results.runs.values())
    notes = [
        f"{done} of {len(seeds) * len(results.config.order)} runs are finished. Mean "
        f"{PLUS_MINUS} sample standard deviation over seeds ({', '.join(map(str, seeds))}); all "
        "runs start from the same policy. Against: the mean and deviation of the differences seed "
        "by seed.",
        _equal_rollouts(results),
        "No signal: share of prompts of which no sample has an advantage other than 0, mean over "
        "the updates of a run.",
    ]
    if results.start.floor:
        notes.append(
            "Knowing nothing: guessing where a question has options, always the most common answer "
            f"where it has none. Benchmark: {asked.benchmark}, greedy, held-out records."
        )
    skipped = {
        results.label(name): spread.mean
        for name in results.finished()
        if (spread := results.over_seeds(name, "skipped_updates")) and spread.mean
    }
    if skipped:
        told = ", ".join(f"{name} {mean:.1f}" for name, mean in skipped.items())
        notes.append(f"Updates left out because they were not finite, a run: {told}.")
    return notes


def _equal_rollouts(results: Results) -> str:
    """Whether the runs may be compared."""
    found = {
        int(run.values["generated"]) for runs in results.runs.values() for run in runs.values()
    }
    if len(found) == 1:
        told = "; what it replayed comes on top." if results.replays else "."
        return f"Every run generated {found.pop()} rollouts{told}"
    return (
        f"The runs did not generate equally many rollouts ({min(found)} to {max(found)}), so they "
        "cannot be compared directly."
    )


def comma_separated(results: Results) -> str:
    """One line per table and variant: each value's mean, deviation and difference (or empty)."""
    names = [*(m.name for m in results.kind.measures), *results.categories, *COUNTS, *SHARES]
    parts = ("mean", "sd", "difference", "difference_sd")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["table", "variant", "label", "seeds", *(f"{n}_{part}" for n in names for part in parts)]
    )
    for table, rows in results.tables().items():
        for name in rows:
            cells: list[Any] = [table, name, results.label(name), len(results.runs[name])]
            for value in names:
                for spread in (
                    results.over_seeds(name, value),
                    results.difference(name, rows[0], value),
                ):
                    cells += ["", ""] if spread is None else [spread.mean, spread.deviation]
            writer.writerow(cells)
    return buffer.getvalue()


def as_json(results: Results) -> dict[str, Any]:
    """Every number of every run, and the tables' spreads."""
    first = results.kind.measures[0].name
    return {
        "seeds": list(results.config.seeds),
        "knowing_nothing": dict(results.start.floor),
        "start": {"values": dict(results.start.values), "controls": _plain(results.start.controls)},
        "runs": {
            name: {
                "label": results.label(name),
                "seeds": {
                    str(seed): {"values": dict(run.values), "controls": _plain(run.controls)}
                    for seed, run in results.runs[name].items()
                },
                "spread": {
                    value: spread._asdict()
                    for value in next(iter(results.runs[name].values())).values
                    if (spread := results.over_seeds(name, value)) is not None
                },
            }
            for name in results.finished()
        },
        "tables": {
            table: [
                {"variant": name, "difference": _optional(results.difference(name, rows[0], first))}
                for name in rows
            ]
            for table, rows in results.tables().items()
        },
    }


def summary(results: Results) -> Group:
    """What the variants are compared by, for the terminal; the files have the rest."""
    shown = []
    for title, rows in results.tables().items():
        table = Table(title=title, box=box.SIMPLE_HEAD)
        head, body = _results(results, rows)
        for number, name in enumerate(head[:4]):
            table.add_column(name, justify="right" if number else "left", no_wrap=True)
        for cells in body:
            table.add_row(*cells[:4])
        shown.append(table)
    return Group(*shown)


def _plain(controls: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: dict(values) for name, values in controls.items()}


def _optional(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else spread._asdict()


def _number(value: float | None, measure: Measure) -> str:
    return "" if value is None else f"{value:.{measure.decimals}f}".replace("-", MINUS)


def _spread(spread: Spread | None, decimals: int, sign: str = "") -> str:
    """Mean and deviation; ``sign`` "+" gives a mean of 0 or more one too."""
    if spread is None:
        return ""
    text = f"{spread.mean:{sign}.{decimals}f}".replace("-", MINUS)
    if spread.deviation is None:
        return text
    return f"{text} {PLUS_MINUS} {spread.deviation:.{decimals}f}"
