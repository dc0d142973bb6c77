"""An ablation's pictures: learning curves, share of prompts without a signal, results, the buffer.

All are small multiples. Curves are means over seeds, bands reach from the lowest seed to the
highest, and a variant's runs are cut to the length of the shortest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise_jax.study.ablation_config import START
from turnwise_jax.study.ablation_results import TIERS, Results
from turnwise_jax.study.plots import band, draw_band
from turnwise_jax.study.style import (
    FAINT,
    INK,
    LARGE,
    MUTED,
    NORMAL,
    PALETTE,
    SHADE,
    SMALL,
    clean,
    colours,
    new_figure,
    save,
)

FRESH, MIXED = PALETTE[1], PALETTE[0]
TIER_PAINT = ("#9ecae1", "#4292c6", "#084594")  # easy, medium, hard


def write_pictures(directory: Path, results: Results) -> list[Path]:
    """The pictures of the runs that are finished; those without anything to show are left out."""
    drawn = {
        "curves.png": plot_learning(results),
        "signal.png": plot_signal(results),
        "results.png": plot_dots(results),
        "tiers.png": plot_tiers(results),
    }
    written = []
    for name, figure in drawn.items():
        if figure is not None:
            save(figure, directory / name)
            written.append(directory / name)
    return written


def plot_learning(results: Results) -> Figure | None:
    """The training reward against rollouts generated, a panel for each table."""
    tables = results.tables()
    metric, title = results.kind.curve
    panels = _panels(len(tables), width=4.0, height=2.9, columns=2, sharey=True)
    if panels is None:
        return None
    figure, grid = panels
    for axes, (table, rows) in zip(grid, tables.items(), strict=True):
        clean(axes, table)
        for name, paint in colours(rows).items():
            generated, values_RS = results.curves(name, metric)
            draw_band(axes, generated, band(values_RS), paint, results.label(name))
        _ruled(axes)
        axes.set_xlabel("rollouts generated", fontsize=SMALL, color=MUTED)
        _legend(axes)
    figure.suptitle(title, x=0.01, ha="left", fontsize=LARGE, color=INK)
    return figure


def plot_signal(results: Results) -> Figure | None:
    """Share of prompts without a learning signal at each update, a panel for each variant."""
    names = results.finished()
    panels = _panels(len(names), width=2.5, height=1.75, columns=4, sharey=True)
    if panels is None:
        return None
    figure, grid = panels
    for axes, name in zip(grid, names, strict=True):
        clean(axes, results.label(name))
        for metric, paint in (("zero_signal", FRESH), ("zero_signal_mixed", MIXED)):
            _, values_RS = results.curves(name, metric)
            if metric == "zero_signal_mixed" and not np.nansum(results.curves(name, "replayed")[1]):
                continue  # the same as the other
            draw_band(axes, np.arange(values_RS.shape[1]), band(100.0 * values_RS), paint, "")
        axes.set_ylim(0, 100)
        _ruled(axes)
    for axes in grid[-min(4, len(names)) :]:
        axes.set_xlabel("update", fontsize=SMALL, color=MUTED)
    title = "Prompts without a learning signal, %"
    if results.replays:
        _keyed(figure, title, {"fresh samples alone": FRESH, "with replayed ones": MIXED})
    else:
        figure.suptitle(title, x=0.01, ha="left", fontsize=LARGE, color=INK)
    return figure


def plot_tiers(results: Results) -> Figure | None:
    """Samples in each tier of the replay buffer, means over seeds, a panel for each variant."""
    easy, found = TIERS[0], {}
    for name in results.finished():
        if np.isfinite(results.curves(name, easy)[1]).any():
            generated, _ = results.curves(name, easy)
            sizes = [np.nan_to_num(results.curves(name, tier)[1].mean(axis=0)) for tier in TIERS]
            found[results.label(name)] = generated, sizes
    return draw_tiers(found, "rollouts generated")


def draw_tiers(
    found: Mapping[str, tuple[np.ndarray, Sequence[np.ndarray]]], xlabel: str
) -> Figure | None:
    """Stacked sizes of the tiers, a panel for each label; None for no label.

    Args:
      found: label -> (x f64[S], sizes of the tiers easy, medium and hard, f64[S] each).
      xlabel: what x is.
    """
    panels = _panels(len(found), width=2.5, height=1.75, columns=4, sharey=True)
    if panels is None:
        return None
    figure, grid = panels
    for axes, (label, (x, sizes)) in zip(grid, found.items(), strict=True):
        clean(axes, label)
        axes.stackplot(x, *sizes, colors=TIER_PAINT, linewidth=0)
        axes.set_ylim(0, None)
        _ruled(axes)
    for axes in grid[-min(4, len(found)) :]:
        axes.set_xlabel(xlabel, fontsize=SMALL, color=MUTED)
    words = [tier.removeprefix("buffer_") for tier in TIERS]
    _keyed(figure, "Samples in the buffer", dict(zip(words, TIER_PAINT, strict=True)))
    return figure


def plot_dots(results: Results) -> Figure | None:
    """Every run as a dot and every variant's mean, a row of panels for each table."""
    tables, measures = results.tables(), results.kind.measures
    if not tables:
        return None
    heights = [len(rows) + 1.6 for rows in tables.values()]
    figure = new_figure(2.3 * len(measures) + 1.5, 0.3 * sum(heights) + 0.5)
    grid = figure.subplots(
        len(tables),
        len(measures),
        squeeze=False,
        sharex="col",
        height_ratios=heights,
    )
    for axes_row, (table, rows) in zip(grid, tables.items(), strict=True):
        for column, (axes, measure) in enumerate(zip(axes_row, measures, strict=True)):
            clean(axes, f"{table}: {measure.title}" if column == 0 else measure.title)
            axes.spines["left"].set_visible(False)
            axes.set_ylim(len(rows) - 0.5, -0.6)
            shown = [results.label(name) if column == 0 else "" for name in rows]
            axes.set_yticks(range(len(rows)), shown, fontsize=NORMAL, color=INK)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelbottom=True)
            axes.grid(axis="y", color=SHADE, linewidth=0.8)
            axes.set_axisbelow(True)
            _draw_dots(axes, results, rows, measure.name, measure.decimals)
    title = "Held-out results: each seed (ring), mean (dot)"
    words = {results.label(START): (0, ()), "knowing nothing": (0, (1.5, 2))}
    if not results.start.floor:
        del words["knowing nothing"]
    _lined(figure, title, words)
    return figure


def _draw_dots(
    axes: Axes, results: Results, rows: Sequence[str], value: str, decimals: int
) -> None:
    for level, dashes in ((results.start.values, (0, ())), (results.start.floor, (0, (1.5, 2)))):
        if value in level:
            axes.axvline(level[value], color=MUTED, linewidth=0.9, linestyle=dashes, zorder=1)
    for place, name in enumerate(rows):
        found = [run.values[value] for run in results.runs[name].values() if value in run.values]
        spread = results.over_seeds(name, value)
        if spread is None:
            continue
        axes.plot(found, [place] * len(found), "o", mfc="none", mec=PALETTE[0], ms=4, alpha=0.75)
        axes.plot([spread.mean], [place], "o", color=PALETTE[0], markersize=5.5)
        axes.annotate(
            f"{spread.mean:.{decimals}f}".replace("-", "\N{MINUS SIGN}"),
            (spread.mean, place),
            xytext=(0, 5.5),
            textcoords="offset points",
            ha="center",
            fontsize=SMALL,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2},
        )
    axes.margins(x=0.14)


def _ruled(axes: Axes) -> None:
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def _panels(
    count: int, *, width: float, height: float, columns: int, sharey: bool = False
) -> tuple[Figure, list[Axes]] | None:
    """A figure with ``count`` panels, inches each, filled row by row; None for no panel."""
    if not count:
        return None
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(width * columns + 0.3, height * rows + 0.5)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def _legend(axes: Axes) -> None:
    """Names in their colours, where they hide least."""
    legend = axes.legend(frameon=False, fontsize=SMALL, handlelength=1.2, loc="best")
    for text, handle in zip(legend.get_texts(), legend.get_lines(), strict=True):
        text.set_color(handle.get_color())


def _keyed(figure: Figure, title: str, words: dict[str, str]) -> None:
    """A title and the colours' meanings above the panels."""
    axes = figure.axes[0]
    handles = [axes.plot([], [], color=paint, linewidth=3)[0] for paint in words.values()]
    _title(figure, title, handles, list(words))


def _lined(figure: Figure, title: str, words: dict[str, tuple]) -> None:
    """A title and the upright lines' meanings above the panels."""
    axes = figure.axes[0]
    handles = [
        axes.plot([], [], color=MUTED, linewidth=0.9, linestyle=dashes)[0]
        for dashes in words.values()
    ]
    _title(figure, title, handles, list(words))


def _title(figure: Figure, title: str, handles: list, names: list[str]) -> None:
    legend = figure.legend(
        handles,
        names,
        title=title,
        loc="outside upper left",
        ncols=len(names),
        frameon=False,
        fontsize=NORMAL,
        title_fontsize=LARGE,
        alignment="left",
        handlelength=1.6,
    )
    legend.get_title().set_color(INK)
