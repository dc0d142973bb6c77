"""Training dynamics (paper 5.2, Fig. 3): curves of the logs, and what the last updates came to.

Runs are told apart by what they log: streaming RL, RL on questions with an answer (AVATAR), and
supervised training. Each sort has its panels, which are also the columns of its table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.study.ablation_results import TIERS, Spread
from turnwise_jax.study.ablation_tables import MINUS, PLUS_MINUS
from turnwise_jax.study.analyze_runs import Run
from turnwise_jax.study.plots import RL_PANELS, SFT_PANELS, WINDOW, Panel, column
from turnwise_jax.tables import markdown_table

LAST = 50  # updates in the table's means (paper 5.2)


class Sort(NamedTuple):
    """One sort of runs: the name of its files, a metric that it logs, its panels.

    A run is of the first sort whose ``mark`` it logs.
    """

    name: str
    mark: str
    panels: tuple[Panel, ...]


# Those of eq. 1, and the terms of other rewards, which runs without them leave out.
STREAM_PANELS = (
    Panel("reward", "Reward"),
    *RL_PANELS[1:],
    Panel("format", "Well-formed turns, %", 100.0),
    Panel("timing", "Timing"),
    Panel("correctness", "Correctness"),
    Panel("efficiency", "Efficiency"),
    Panel("turn_f1", "Turn-level F1, at most 2"),
    Panel("rubric", "Rubric"),
)
ANSWER_PANELS = (
    Panel("accuracy", "Accuracy reward of the fresh answers"),
    Panel("reward", "Total reward"),
    Panel("format", "Format reward"),
    Panel("zero_signal", "Prompts without a signal, fresh, %", 100.0),
    Panel("zero_signal_mixed", "Prompts without a signal, all, %", 100.0),
    Panel("hinted", "Hinted prompts, %", 100.0),
)
SORTS = (
    Sort("dynamics", "non_silent", STREAM_PANELS),
    Sort("answers", "zero_signal", ANSWER_PANELS),
    Sort("supervised", "loss", SFT_PANELS),
)


def sorted_runs(runs: Mapping[str, Sequence[Run]]) -> dict[Sort, dict[str, list[Run]]]:
    """The runs of each sort by label; no empty sort or label."""
    found: dict[Sort, dict[str, list[Run]]] = {}
    for label, group in runs.items():
        for run in group:
            logged = {name for record in run.records for name in record}
            sort = next((sort for sort in SORTS if sort.mark in logged), None)
            if sort is not None:
                found.setdefault(sort, {}).setdefault(label, []).append(run)
    return {sort: found[sort] for sort in SORTS if sort in found}


def last_mean(run: Run, panel: Panel, count: int = LAST) -> float | None:
    """Mean of the panel's values over a run's last updates; None where none is logged."""
    values = column(run.records[-count:], panel.metric)
    known = values[np.isfinite(values)]
    return float(known.mean()) * panel.scale if known.size else None


def markdown(sort: Sort, runs: Mapping[str, Sequence[Run]]) -> str:
    """One row per label: mean and deviation over its runs of each run's last mean."""
    panels = _shown(sort, runs)
    head = ["run", "runs", "updates", *(panel.title for panel in panels)]
    body = []
    for label, group in runs.items():
        spreads = [_spread(group, panel) for panel in panels]
        cells = [_cell(spread, panel) for spread, panel in zip(spreads, panels, strict=True)]
        body.append([label, str(len(group)), _updates(group), *cells])
    return "\n\n".join([markdown_table(head, body), _note(sort, runs)]) + "\n"


def comma_separated(sort: Sort, runs: Mapping[str, Sequence[Run]]) -> str:
    """A line for each run: its last means, in the units of the table."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    panels = _shown(sort, runs)
    writer.writerow(["label", "run", "updates", "averaged", "warmup", *(p.metric for p in panels)])
    for label, group in runs.items():
        for run in group:
            means = [last_mean(run, panel) for panel in panels]
            counts = [len(run.records), min(LAST, len(run.records)), run.warmup]
            cells = ["" if mean is None else mean for mean in means]
            writer.writerow([label, str(run.directory), *counts, *cells])
    return buffer.getvalue()


def buffers(runs: Mapping[str, Sequence[Run]]) -> dict[str, tuple[np.ndarray, list[np.ndarray]]]:
    """Label -> (batches, mean sizes of the replay buffer's tiers) of the runs that log them."""
    found = {}
    for label, group in runs.items():
        kept = [run.records for run in group if np.isfinite(column(run.records, TIERS[0])).any()]
        if not kept:
            continue
        length = min(map(len, kept))
        sizes = [
            np.mean([np.nan_to_num(column(records[:length], tier)) for records in kept], axis=0)
            for tier in TIERS
        ]
        found[label] = np.array([record["step"] for record in kept[0][:length]]), sizes
    return found


def _shown(sort: Sort, runs: Mapping[str, Sequence[Run]]) -> list[Panel]:
    every = [run for group in runs.values() for run in group]
    return [p for p in sort.panels if any(last_mean(run, p) is not None for run in every)]


def _spread(group: Sequence[Run], panel: Panel) -> Spread | None:
    means = [last_mean(run, panel) for run in group]
    return Spread.of([mean for mean in means if mean is not None])


def _updates(group: Sequence[Run]) -> str:
    counts = sorted({len(run.records) for run in group})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _cell(spread: Spread | None, panel: Panel) -> str:
    if spread is None:
        return ""
    decimals = 1 if panel.scale != 1.0 or abs(spread.mean) >= 10 else 3
    text = f"{spread.mean:.{decimals}f}".replace("-", MINUS)
    if spread.deviation is None:
        return text
    return f"{text} {PLUS_MINUS} {spread.deviation:.{decimals}f}"


def _note(sort: Sort, runs: Mapping[str, Sequence[Run]]) -> str:
    shortest = min(len(run.records) for group in runs.values() for run in group)
    last = f"Means over the last {LAST} updates"
    if shortest < LAST:
        last += f" (of shorter runs over all; the shortest has {shortest})"
    seeds = any(len(group) > 1 for group in runs.values())
    over = f"; with {PLUS_MINUS} the sample standard deviation over runs" if seeds else ""
    told = [
        f"{last}{over}. Picture: trailing means of {WINDOW} updates, or of a fifth of a shorter "
        "run; one run also has its batch means, several have a band from the lowest to the highest."
    ]
    if any(panel.metric == "repetition" for panel in _shown(sort, runs)):
        told.append(
            "Repetition penalty: share of a trajectory's replies that the judge calls repetitive. "
            "Out-of-window penalty: share of its decisions outside all windows that are replies. "
            "Both before their weights, means over trajectories."
        )
    return " ".join(told)
