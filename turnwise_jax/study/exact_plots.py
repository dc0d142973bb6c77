"""The exact study's pictures: estimators, sweeps over strength and length, learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from turnwise_jax.study.exact_measure import MEANS, TOKEN_MEAN, TURN_MEAN
from turnwise_jax.study.exact_tables import TITLES, alphas_of, find, main_rows
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

PAINT = {  # (credit, reduction) of the four that the paper compares
    ("shared", TOKEN_MEAN): PALETTE[1],
    ("shared", TURN_MEAN): PALETTE[4],
    ("turn", TOKEN_MEAN): PALETTE[5],
    ("turn", TURN_MEAN): PALETTE[0],
}
PANELS = {
    "pairs": "Expected updates, groups of two",
    "large groups": "Expected updates, endless groups",
    "sampled": "Sampled updates",
}


def write_pictures(directory: Path, results: Mapping[str, Any]) -> None:
    """``estimators.png``, ``sweeps.png`` and ``learning.png``."""
    save(plot_estimators(results), directory / "estimators.png")
    save(plot_sweeps(results), directory / "sweeps.png")
    save(plot_learning(results), directory / "learning.png")


def plot_estimators(results: Mapping[str, Any]) -> Figure:
    """Alignment, noise and expected cosine of every estimator, a dot for each policy."""
    group = min(row["group"] for row in results["estimators"])
    rows = main_rows(results)
    paint = colours(list(results["policies"]))
    figure = new_figure(9.6, 0.245 * len(rows) + 1.3)
    panels = {
        "alignment": "Alignment of the expected update",
        "noise": "Noise of one update (log scale)",
        "cosine": "Expected cosine of one update",
    }
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, (field, title) in zip(grid.flat, panels.items(), strict=True):
        clean(axes, title)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        names = [f"{c}, {TITLES[r]}{', normalised' if n else ''}" for c, r, n in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=SMALL, color=INK)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=SHADE, linewidth=0.8)
        axes.set_axisbelow(True)
        for place, (credit, reduction, normalised) in enumerate(rows):
            for policy, colour in paint.items():
                wanted = {"credit": credit, "reduction": reduction, "normalised": normalised}
                row = find(results, policy=policy, group=group, **wanted)
                if row is not None:
                    axes.plot([row[field]], [place], "o", color=colour, ms=4.5, alpha=0.85)
    grid.flat[0].axvline(1.0, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    grid.flat[1].set_xscale("log")
    _plain_log(grid.flat[1])
    _keyed(figure, f"Groups of {group}, against the true gradient", paint)
    return figure


def plot_sweeps(results: Mapping[str, Any]) -> Figure:
    """Noise and alignment by the correction's strength, alignment by the length of a reply."""
    figure = new_figure(9.6, 5.4)
    grid = figure.subplots(2, 3)
    paint = colours(list(results["policies"]))
    alphas = alphas_of(results)
    group = min(row["group"] for row in results["estimators"])
    for line, normalised in enumerate((False, True)):
        words = "normalised" if normalised else "not normalised"
        for column, (field, title) in enumerate((("noise", "Noise"), ("alignment", "Alignment"))):
            axes = grid[line, column]
            _ruled(axes, f"{title}, turn mean, {words}")
            for policy, colour in paint.items():
                wanted = {"policy": policy, "group": group, "normalised": normalised}
                found = [find(results, alpha=a, reduction=TURN_MEAN, **wanted) for a in alphas]
                values = [np.nan if row is None else row[field] for row in found]
                axes.plot(alphas, values, "o-", color=colour, ms=3.5, linewidth=1.5)
            axes.set_xlabel("alpha", fontsize=SMALL, color=MUTED)
            axes.set_xticks(alphas)
    for line, reduction in enumerate(MEANS):
        axes = grid[line, 2]
        _ruled(axes, f"Alignment, {TITLES[reduction]}, not normalised")
        for policy, colour in paint.items():
            for credit, style in (("shared", ":"), ("turn", "-")):
                rows = [
                    row
                    for row in results["lengths"]
                    if (row["policy"], row["credit"], row["reduction"])
                    == (policy, credit, reduction)
                ]
                x, y = ([row[key] for row in rows] for key in ("long_tokens", "alignment"))
                axes.plot(x, y, style, marker="o", color=colour, ms=3, linewidth=1.5)
        axes.set_xscale("log", base=2)
        _plain_log(axes)
        axes.set_xlabel(
            "tokens of a long reply; dotted: shared credit", fontsize=SMALL, color=MUTED
        )
    title = f"Strength of the correction, groups of {group}; length of the replies"
    _keyed(figure, title, paint)
    return figure


def plot_learning(results: Mapping[str, Any]) -> Figure:
    """Expected reward against updates of equal length: the four estimators, then the alphas."""
    rows = results["learning"]
    kinds = [kind for kind in PANELS if any(row["updates_by"] == kind for row in rows)]
    figure = new_figure(3.4 * len(kinds) + 0.3, 5.6)
    grid = figure.subplots(2, len(kinds), squeeze=False, sharey=True)
    truth = next(row for row in rows if row["updates_by"] == "truth")
    strengths = dict(zip(alphas_of(results), _shades(len(alphas_of(results))), strict=True))
    for column, kind in enumerate(kinds):
        mine = [row for row in rows if row["updates_by"] == kind]
        mine.sort(key=lambda row: (row["reduction"], row["alpha"]))
        above, below = grid[0, column], grid[1, column]
        _ruled(above, PANELS[kind])
        _ruled(below, f"{PANELS[kind]}, turn mean")
        for row in mine:
            paint = PAINT.get((row["credit"], row["reduction"]))
            if paint is not None:
                name = f"{row['credit']} credit, {TITLES[row['reduction']]}"
                _draw(above, row, paint, name)
            if row["reduction"] == TURN_MEAN:
                _draw(below, row, strengths[row["alpha"]], f"alpha {row['alpha']:g}")
        for axes in (above, below):
            steps = np.arange(len(truth["curve"]))
            axes.plot(steps, truth["curve"], color=INK, linewidth=1, linestyle=(0, (4, 3)))
            axes.margins(x=0.01)
        below.set_xlabel("update", fontsize=SMALL, color=MUTED)
    for axes in grid[:, 0]:
        legend = axes.legend(frameon=False, fontsize=SMALL, handlelength=1.2, loc="lower right")
        for text, handle in zip(legend.get_texts(), legend.get_lines(), strict=True):
            text.set_color(handle.get_color())
    figure.suptitle(
        "Expected reward (eq. 1); dashed: along the true gradient",
        x=0.01,
        ha="left",
        fontsize=LARGE,
        color=INK,
    )
    return figure


def _draw(axes: Axes, row: Mapping[str, Any], paint: Any, name: str) -> None:
    """The mean curve of the runs; how far runs differ is in the tables."""
    axes.plot(np.arange(len(row["curve"])), row["curve"], color=paint, linewidth=1.6, label=name)


def _shades(count: int) -> list[tuple[float, float, float]]:
    """From light to dark blue."""
    light, dark = np.array([0.72, 0.84, 0.94]), np.array([0.03, 0.19, 0.42])
    return [tuple(light + (dark - light) * t) for t in np.linspace(0, 1, count)]


def _ruled(axes: Axes, title: str) -> None:
    clean(axes, title)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def _plain_log(axes: Axes) -> None:
    """Numbers instead of powers."""
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _keyed(figure: Figure, title: str, paint: Mapping[str, str]) -> None:
    """A title and the policies' colours above the panels."""
    axes = figure.axes[0]
    handles = [axes.plot([], [], "o", color=c, ms=5)[0] for c in paint.values()]
    legend = figure.legend(
        handles,
        list(paint),
        title=title,
        loc="outside upper left",
        ncols=len(paint),
        frameon=False,
        fontsize=NORMAL,
        title_fontsize=LARGE,
        alignment="left",
        handlelength=1.0,
    )
    legend.get_title().set_color(INK)
