"""The picture of credit redistribution: density of both advantages, signs of repetitive replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from turnwise_jax.study.analyze_credit import Redistribution, pooled, redistributions
from turnwise_jax.study.analyze_runs import Run
from turnwise_jax.study.credit import GAIN, LOSS
from turnwise_jax.study.style import FAINT, INK, MUTED, SMALL, clean, new_figure

BINS = 48
TINT, ZERO = "#fbeee2", "#c9c9c9"
DENSITY = ListedColormap(colormaps["Blues"](np.linspace(0.22, 1.0, 256)))


def plot_redistribution(runs: Mapping[str, Sequence[Run]]) -> Figure | None:
    """A column for each label, its runs pooled; None for no label.

    Above: how many decisions have which shared (across) and turn-level advantage (up), on a
    logarithmic scale; on the dashed diagonal nothing changes, in the tinted quarters the sign does.
    Below: signs of the advantages of repetitive replies.

    Args:
      runs: label -> runs that have decisions.
    """
    if not runs:
        return None
    count = len(runs)
    figure = new_figure(max(3.2 * count, 4.6) + 0.9, 4.9)
    figure.get_layout_engine().set(hspace=0.06)
    grid = figure.subplots(2, count, squeeze=False, height_ratios=[3.0, 0.9])
    found = {label: pooled(counts) for label, counts in redistributions(runs).items()}
    across, up = _limits(runs)
    drawn = [
        _draw_density(axes, label, group, found[label], across, up)
        for axes, (label, group) in zip(grid[0], runs.items(), strict=True)
    ]
    highest = max(picture.get_array().max() for picture in drawn)
    for picture in drawn:
        picture.set_norm(LogNorm(1, max(highest, 2)))
    bar = figure.colorbar(drawn[-1], ax=list(grid[0]), fraction=0.035, pad=0.015)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.tick_params(colors=MUTED, labelsize=SMALL, length=2.5)
    bar.set_label("decisions", fontsize=SMALL, color=MUTED)
    grid[0, 0].set_ylabel("turn-level advantage", fontsize=SMALL, color=MUTED)
    for number, (axes, label) in enumerate(zip(grid[1], runs, strict=True)):
        _draw_signs(axes, found[label], named=number == 0)
    return figure


def _limits(runs: Mapping[str, Sequence[Run]]) -> tuple[float, float]:
    """Half widths of the axes: the largest magnitudes among all decisions."""
    every = [run.decisions for group in runs.values() for run in group if run.decisions is not None]
    across = max(float(np.abs(decisions.shared_N).max()) for decisions in every)
    up = max(float(np.abs(decisions.turn_N).max()) for decisions in every)
    return 1.05 * max(across, 1e-3), 1.05 * max(up, 1e-3)


def _draw_density(
    axes: Axes,
    label: str,
    group: Sequence[Run],
    found: Redistribution,
    across: float,
    up: float,
) -> QuadMesh:
    shares = found.shares()
    clean(axes, f"{label}\n{shares['sign_change']:.1f} % of decisions change sign")
    decisions = [run.decisions for run in group if run.decisions is not None]
    shared = np.concatenate([d.shared_N for d in decisions])
    turn = np.concatenate([d.turn_N for d in decisions])
    for corner in ((-across, 0), (0, -up)):
        axes.add_patch(Rectangle(corner, across, up, facecolor=TINT, linewidth=0, zorder=0))
    edges = np.linspace(-across, across, BINS + 1), np.linspace(-up, up, BINS + 1)
    density, _, _ = np.histogram2d(shared, turn, bins=edges)
    picture = axes.pcolormesh(
        *edges, np.ma.masked_equal(density.T, 0), cmap=DENSITY, rasterized=True, zorder=2
    )
    reach = min(across, up)
    axes.plot([-reach, reach], [-reach, reach], color=INK, lw=0.9, ls=(0, (4, 3)), zorder=3)
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=1)
    axes.set_xlim(-across, across)
    axes.set_ylim(-up, up)
    axes.set_xlabel("shared advantage", fontsize=SMALL, color=MUTED)
    return picture


def _draw_signs(axes: Axes, found: Redistribution, *, named: bool) -> None:
    title = f"{found.repetitive:,} repetitive replies by sign of advantage"
    if found.shared_above:
        title += f"\nfrom above 0 to below: {found.reversed:,} of {found.shared_above:,}"
    clean(axes, title)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(1.6, -0.6)
    axes.set_yticks([0, 1], ["shared", "turn"] if named else ["", ""], fontsize=SMALL, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% below 0 (left), above 0 (right)", fontsize=SMALL, color=MUTED)
    if not found.repetitive:
        return
    counts = ((found.shared_below, found.shared_above), (found.turn_below, found.turn_above))
    for row, (below, above) in enumerate(counts):
        left = 0.0
        for part, paint in (
            (below, LOSS),
            (found.repetitive - below - above, ZERO),
            (above, GAIN),
        ):
            width = 100.0 * part / found.repetitive
            axes.barh(row, width, left=left, height=0.62, color=paint, linewidth=0)
            if width >= 12:
                words = {"ha": "center", "va": "center", "fontsize": SMALL, "color": "white"}
                axes.text(left + width / 2, row, f"{width:.1f}", **words)
            left += width
