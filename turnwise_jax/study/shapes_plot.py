"""The picture of ``turnwise shapes``: lengths with the advised buckets, padding by their number."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from turnwise_jax.study.style import FAINT, INK, MUTED, PALETTE, SMALL, clean, new_figure, wrapped
from turnwise_jax.train.buckets.options import Advice, Lengths
from turnwise_jax.train.buckets.report import Found

BINS = 40
BLUE, ORANGE = PALETTE[:2]
# Whose lengths a field of the config limits.
LIMITED = {"shapes.rollout_lengths": ("rollouts",), "shapes.row_lengths": ("rows", "sampled")}


def plot_lengths(found: Found) -> Figure:
    """A histogram for each kind of length, then the padding of the best buckets."""
    panels = len(found.lengths) + len(found.advice)
    columns = 2 if panels <= 4 else 3
    rows = -(-panels // columns)
    figure = new_figure(3.6 * columns, 2.3 * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    limits = {
        name: advice.advised.lengths for advice in found.advice for name in LIMITED[advice.field]
    }
    for axes, lengths in zip(grid, found.lengths, strict=False):
        _histogram(axes, lengths, limits.get(lengths.name, ()))
    for axes, advice in zip(grid[len(found.lengths) :], found.advice, strict=False):
        _padding(axes, advice)
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure


def _histogram(axes: Axes, lengths: Lengths, limits: tuple[int, ...]) -> None:
    clean(axes, lengths.name)
    axes.hist(lengths.values, bins=BINS, color=BLUE)
    for number, limit in enumerate(limits):
        label = "advised buckets end here" if number == 0 else None
        axes.axvline(limit, color=ORANGE, linewidth=1.0, linestyle=(0, (4, 2)), label=label)
    if limits:
        axes.margins(y=0.3)
        axes.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED, loc="upper left")
    axes.set_xlabel(wrapped(lengths.what, 44), fontsize=SMALL, color=MUTED)
    axes.set_ylabel("count", fontsize=SMALL, color=MUTED)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _padding(axes: Axes, advice: Advice) -> None:
    clean(axes, f"padding by {advice.field.removeprefix('shapes.')}")
    numbers = [len(option.rooms) for option in advice.options]
    axes.plot(numbers, [o.padding for o in advice.options], color=BLUE, marker="o", markersize=4)
    axes.plot(
        len(advice.now.rooms),
        advice.now.padding,
        color=INK,
        marker="x",
        linestyle="none",
        label="as the config has it",
    )
    axes.plot(
        len(advice.advised.rooms),
        advice.advised.padding,
        color=ORANGE,
        marker="o",
        linestyle="none",
        label="advised",
    )
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED)
    axes.axhline(0.0, color=FAINT, linewidth=0.8)
    axes.margins(x=0.1)
    axes.set_ylim(0.0, 1.15 * max(advice.now.padding, advice.options[0].padding) + 0.01)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("buckets", fontsize=SMALL, color=MUTED)
