"""One dialogue's credit: what each decision added, and shared against turn-level advantages."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turnwise_jax.data.records import Window, is_silent
from turnwise_jax.study.style import (
    FAINT,
    INK,
    MUTED,
    NORMAL,
    SMALL,
    clean,
    new_figure,
    save,
    wrapped,
)

GAIN, LOSS, SHARED, WINDOW = "#009E73", "#D55E00", "#6b6b6b", "#dcebf7"
MINUS = "\N{MINUS SIGN}"


def draw_credit(
    times: Sequence[float],
    replies: Sequence[str],
    prefix_scores: Sequence[float],
    shared: float,
    turn: Sequence[float],
    *,
    windows: Sequence[Window] = (),
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Three panels over one time axis: what was said, the score so far, the advantages.

    Args:
      times: K decision times, seconds.
      replies: K replies.
      prefix_scores: U_0..U_K, the score with all later replies silent (paper eq. 3).
      shared: the trajectory's group-relative advantage (eq. 2), the same for every turn.
      turn: K turn-level advantages (eq. 4 or 5).
      windows: reply windows, shaded.
      path: PNG to write; None only returns the figure.

    Raises:
      ValueError: the lengths do not agree.
    """
    if not len(times) == len(replies) == len(turn) == len(prefix_scores) - 1:
        raise ValueError(
            f"{len(times)} times, {len(replies)} replies, {len(turn)} advantages and "
            f"{len(prefix_scores)} prefix scores do not belong together"
        )
    step = float(min(np.diff(times), default=1.0))
    figure = new_figure(max(6.5, 1.05 * len(times) + 1.0), 5.6)
    said, score, credit = figure.subplots(3, 1, sharex=True, height_ratios=[0.9, 1.1, 1.2])
    for axes in (said, score, credit):
        for window in windows:
            axes.axvspan(window.start, window.end, color=WINDOW, linewidth=0, zorder=0)
    _draw_replies(said, times, replies, windows, step)
    _draw_scores(score, times, prefix_scores, step)
    _draw_advantages(credit, times, shared, turn, step)
    credit.set_xlim(times[0] - step, times[-1] + 0.6 * step)
    credit.set_xticks(list(times), [f"{time:g}" for time in times])
    credit.set_xlabel("seconds of video shown at the decision", fontsize=SMALL, color=MUTED)
    if path is not None:
        save(figure, path)
    return figure


def _draw_replies(
    axes: Axes,
    times: Sequence[float],
    replies: Sequence[str],
    windows: Sequence[Window],
    step: float,
) -> None:
    clean(axes, "Replies (dot: silent); shaded: reply windows with the reference answer")
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.set_ylim(-1.15, 0.75)
    axes.axhline(0, color=FAINT, linewidth=0.7, zorder=1)
    for window in windows:
        width = max(12, round(14 * (window.end - window.start) / step))
        text = wrapped(window.answer, width)
        middle = (window.start + window.end) / 2
        axes.text(middle, 0.45, text, fontsize=SMALL, color="#1f5a93", ha="center", va="center")
    for time, reply in zip(times, replies, strict=True):
        if is_silent(reply):
            axes.plot([time], [0], ".", color="#9a9a9a", markersize=5)
            continue
        axes.plot([time], [0], "o", color=INK, markersize=6)
        text = wrapped(reply.strip() or "(empty)", 14)
        axes.text(time, -0.2, text, fontsize=SMALL, color=INK, ha="center", va="top")


def _draw_scores(
    axes: Axes, times: Sequence[float], prefix_scores: Sequence[float], step: float
) -> None:
    clean(axes, "Score if all later decisions were silent, and what each decision added to it")
    x = np.concatenate([[times[0] - step], times, [times[-1] + 0.6 * step]])
    y = np.concatenate([prefix_scores, prefix_scores[-1:]])
    axes.step(x, y, where="post", color=INK, linewidth=1.6)
    for k, time in enumerate(times):
        change = prefix_scores[k + 1] - prefix_scores[k]
        if abs(change) < 5e-3:
            continue
        colour = GAIN if change > 0 else LOSS
        axes.plot([time, time], prefix_scores[k : k + 2], color=colour, linewidth=3.2)
        _label(axes, time, max(prefix_scores[k : k + 2]), change, colour, above=True)
    axes.margins(y=0.25)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def _draw_advantages(
    axes: Axes, times: Sequence[float], shared: float, turn: Sequence[float], step: float
) -> None:
    clean(axes, "Advantage: turn-level (bars) and shared by all turns (dashed)")
    axes.bar(times, turn, width=0.5 * step, color=[GAIN if a > 0 else LOSS for a in turn], zorder=2)
    axes.axhline(0, color=INK, linewidth=0.8, zorder=3)
    axes.axhline(shared, color=SHARED, linewidth=1.3, linestyle=(0, (4, 3)), zorder=3)
    for time, advantage in zip(times, turn, strict=True):
        colour = GAIN if advantage > 0 else LOSS
        _label(axes, time, advantage, advantage, colour, above=advantage > 0)
    axes.text(
        times[0] - 0.95 * step,
        shared,
        f"shared\n{_signed(shared)}",
        fontsize=SMALL,
        color=SHARED,
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        zorder=4,
    )
    axes.margins(y=0.25)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def _label(axes: Axes, x: float, y: float, value: float, colour: str, *, above: bool) -> None:
    axes.annotate(
        _signed(value),
        (x, y),
        xytext=(0, 3 if above else -3),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        fontsize=NORMAL,
        color=colour,
        zorder=5,
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)
