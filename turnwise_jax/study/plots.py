"""Pictures of a study's numbers: training curves, and the final results with their intervals."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise_jax.eval.report import Report
from turnwise_jax.study.style import (
    FAINT,
    INK,
    LARGE,
    MUTED,
    NORMAL,
    SHADE,
    SMALL,
    clean,
    colours,
    new_figure,
    save,
)

Records = Sequence[Mapping[str, Any]]
WINDOW = 20  # updates in a trailing mean (paper, Fig. 3), at most a fifth of a run


class Panel(NamedTuple):
    """One small plot: a metric of the training log, its title, and a factor for its values."""

    metric: str
    title: str
    scale: float = 1.0


RL_PANELS = (
    Panel("reward", "Reward (eq. 1)"),
    Panel("pauc", "Window quality P, times 100"),
    Panel("repetition", "Repetition penalty"),
    Panel("out_of_window", "Out-of-window penalty"),
    Panel("non_silent", "Non-silent decisions, %", 100.0),
    Panel("signal", "Groups with a learning signal, %", 100.0),
)
SFT_PANELS = (
    Panel("loss", "Cross-entropy of the reply tokens"),
    Panel("held_out_loss", "The same of held-out records"),
)


class Band(NamedTuple):
    """A metric over S batches of several runs: f64[S] mean, lowest and highest."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(values_RS: np.ndarray, window: int = WINDOW) -> Band:
    """Mean and ends over runs of each run's trailing mean; NaN where no run has a value."""
    smooth_RS = np.array([_smooth(values_S, window) for values_S in values_RS])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(empty slice|All-NaN).*")
        ends = np.nanmin(smooth_RS, axis=0), np.nanmax(smooth_RS, axis=0)
        return Band(np.nanmean(smooth_RS, axis=0), *ends)


def draw_band(axes: Axes, x: np.ndarray, drawn: Band, paint: str, label: str) -> None:
    """The mean as a line, the ends as a band behind it."""
    axes.fill_between(x, drawn.low, drawn.high, color=paint, alpha=0.15, linewidth=0)
    axes.plot(x, drawn.mean, color=paint, linewidth=1.7, label=label)


def plot_curves(
    runs: Mapping[str, Records],
    path: str | os.PathLike[str],
    *,
    panels: Sequence[Panel] = RL_PANELS,
    window: int = WINDOW,
    warmup: int = 0,
) -> Figure:
    """Training curves of single runs; arguments as of :func:`plot_seeds`."""
    alone = {label: [records] for label, records in runs.items()}
    return plot_seeds(alone, path, panels=panels, window=window, warmup=warmup)


def plot_seeds(
    runs: Mapping[str, Sequence[Records]],
    path: str | os.PathLike[str],
    *,
    panels: Sequence[Panel] = RL_PANELS,
    window: int = WINDOW,
    warmup: int = 0,
) -> Figure:
    """Training curves, one colour a label.

    A single run: batch means faint, trailing means solid. Several runs, seeds of one variant: mean
    of their trailing means with a band from the lowest to the highest, up to the shortest run's
    end.

    Args:
      runs: label -> for each of its runs the lines of ``metrics.jsonl``, each with ``step``.
      path: the PNG to write.
      panels: what to draw; a metric that no run has logged is left out.
      window: updates in the trailing mean, at most a fifth of a run's length.
      warmup: first updates to shade, those of the credit's warm-up.
    """
    every = [records for group in runs.values() for records in group]
    logged = {metric for records in every for record in records for metric in record}
    present = [panel for panel in panels if panel.metric in logged]
    columns = 2 if len(present) == 4 else min(3, max(1, len(present)))
    rows = -(-max(1, len(present)) // columns)
    figure = new_figure(3.3 * columns + 0.4, 2.2 * rows + 0.45)
    grid = figure.subplots(rows, columns, squeeze=False)
    paint = colours(list(runs))
    for index, axes in enumerate(grid.flat):
        if index >= len(present):
            axes.set_axis_off()
            continue
        if warmup:
            axes.axvspan(0, warmup, color=SHADE, linewidth=0)
        _draw_panel(axes, present[index], runs, paint, window)
        if index >= len(present) - columns:
            axes.set_xlabel("update", fontsize=SMALL, color=MUTED)
    _legend(figure, paint, shaded=warmup > 0)
    save(figure, path)
    return figure


def trailing_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Mean of each value and up to ``window - 1`` before it; missing values (NaN) are left out."""
    values = np.asarray(values, float)
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    number = count[end] - count[start]
    mean = (total[end] - total[start]) / np.maximum(number, 1)
    return np.where(number > 0, mean, np.nan)


def plot_results(
    reports: Mapping[str, Report],
    path: str | os.PathLike[str],
    *,
    metrics: Mapping[str, str],
    reference: Mapping[str, float] | None = None,
) -> Figure:
    """One dot and interval per row and metric.

    Args:
      reports: row label -> report, drawn from the top.
      path: the PNG to write.
      metrics: metric -> panel title.
      reference: metric -> a value to mark, such as PAUC 25 for silence.
    """
    labels = list(reports)
    figure = new_figure(2.6 * len(metrics) + 1.4, 0.34 * len(labels) + 0.9)
    grid = figure.subplots(1, len(metrics), sharey=True, squeeze=False)
    for axes, (metric, title) in zip(grid.flat, metrics.items(), strict=True):
        clean(axes, title)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), labels, fontsize=NORMAL, color=INK)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=SHADE, linewidth=0.8)
        axes.set_axisbelow(True)
        if reference and metric in reference:
            axes.axvline(reference[metric], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        decimals = 1 if max(abs(r.metrics[metric]) for r in reports.values()) >= 10 else 2
        for row, report in enumerate(reports.values()):
            _draw_interval(axes, row, report, metric, decimals)
        axes.margins(x=0.14)
    save(figure, path)
    return figure


def _draw_interval(axes: Axes, row: int, report: Report, metric: str, decimals: int) -> None:
    value = report.metrics[metric]
    low, high = report.intervals.get(metric, (value, value))
    axes.plot([low, high], [row, row], color="#0072B2", linewidth=1.6, solid_capstyle="round")
    axes.plot([value], [row], "o", color="#0072B2", markersize=5)
    axes.annotate(
        f"{value:.{decimals}f}".replace("-", "\N{MINUS SIGN}"),
        (value, row),
        xytext=(0, 5.5),
        textcoords="offset points",
        ha="center",
        fontsize=SMALL,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2},
    )


def _draw_panel(
    axes: Axes,
    panel: Panel,
    runs: Mapping[str, Sequence[Records]],
    paint: Mapping[str, str],
    window: int,
) -> None:
    clean(axes, panel.title)
    for label, group in runs.items():
        curves = [_curve(records, panel) for records in group]
        curves = [(steps, values) for steps, values in curves if np.isfinite(values).any()]
        if len(curves) == 1:
            ((steps, values),) = curves
            known = np.isfinite(values)
            steps, values = steps[known], values[known]
            axes.plot(steps, values, color=paint[label], linewidth=0.7, alpha=0.28)
            axes.plot(steps, _smooth(values, window), color=paint[label], linewidth=1.7)
        elif curves:
            length = min(len(steps) for steps, _ in curves)
            values_RS = np.array([values[:length] for _, values in curves])
            draw_band(axes, curves[0][0][:length], band(values_RS, window), paint[label], "")
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def column(records: Records, metric: str) -> np.ndarray:
    """f64[S] a metric of the log's lines, NaN where a line has none."""
    values = (record.get(metric) for record in records)
    return np.array([math.nan if value is None else float(value) for value in values])


def credit_warmup(records: Records) -> int:
    """Batches whose alpha is below the highest one logged; 0 where none is logged."""
    alpha_S = column(records, "alpha")
    return int((alpha_S < np.nanmax(alpha_S)).sum()) if np.isfinite(alpha_S).any() else 0


def _curve(records: Records, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values as drawn, NaN where there is none) of one run."""
    steps = np.array([record["step"] for record in records])
    return steps, column(records, panel.metric) * panel.scale


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing means, over at most a fifth of the values."""
    return trailing_mean(values, max(1, min(window, len(values) // 5)))


def _legend(figure: Figure, paint: Mapping[str, str], *, shaded: bool) -> None:
    """Names in their colours above the panels; the shading explained in grey."""
    words = [(name, colour) for name, colour in paint.items()]
    if shaded:
        words.append(("credit warm-up", MUTED))
    handles = [
        figure.axes[0].plot([], [], color=colour, linewidth=6 if colour == MUTED else 2.2)[0]
        for _, colour in words
    ]
    if shaded:
        handles[-1].set_color("#e2e2e2")
    legend = figure.legend(
        handles,
        [name for name, _ in words],
        loc="outside upper left",
        ncols=len(words),
        frameon=False,
        fontsize=LARGE,
        handlelength=1.4,
        columnspacing=1.6,
    )
    for text, (_, colour) in zip(legend.get_texts(), words, strict=True):
        text.set_color(colour)
