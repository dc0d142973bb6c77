"""A set on one page: of streaming dialogues their windows, decisions and replies; of questions
their kinds, answers and lengths."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise_jax.data.checking.checking import Checked
from turnwise_jax.data.checking.tally import Tally
from turnwise_jax.files import replacing

BLUE, ORANGE, INK, MUTED, FAINT = "#0072B2", "#D55E00", "#222222", "#6b6b6b", "#d9d9d9"
_MOST_DECISIONS = 10
_MOST_NAMES = 12


def draw_summary(checked: Checked, path: str | os.PathLike[str]) -> Figure:
    """Four panels of the set, as PNG."""
    figure = Figure(figsize=(9.6, 6.8), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.1)
    panels = list(figure.subplots(2, 2).flat)
    tally = checked.tally
    if tally.questions > tally.streaming:
        _questions(panels, tally)
    else:
        _streams(panels, tally)
    figure.suptitle(headline(checked), x=0.01, ha="left", fontsize=10, color=INK)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=130)
    return figure


def headline(checked: Checked) -> str:
    """The set's name and its counts, in two lines."""
    tally = checked.tally
    counts = [f"{tally.records:,} records", f"{checked.unusable:,} unusable"]
    counts += [f"{len(files):,} {kind}s" for kind, files in checked.media.used.items() if files]
    if tally.window_seconds:
        counts.append(f"{len(tally.window_seconds):,} windows")
    if tally.given_turns:
        counts.append(f"{100 * tally.silences / tally.given_turns:.1f} % of given turns silent")
    name = f"{checked.path} ({checked.source})".replace("$", r"\$")
    return f"{name}\n{', '.join(counts)}"


def _streams(panels: Sequence[Axes], tally: Tally) -> None:
    _histogram(panels[0], "Windows by length", tally.window_seconds, "seconds", "windows")
    _decisions(panels[1], tally)
    _over_time(panels[2], tally)
    _histogram(panels[3], "Dialogues by length", tally.dialogue_seconds, "seconds", "dialogues")


def _questions(panels: Sequence[Axes], tally: Tally) -> None:
    _bars(panels[0], "Kinds of question", tally.kinds)
    _bars(panels[1], "Right options", dict(sorted(tally.letters.items())))
    _bars(panels[2], "Categories", tally.categories)
    _histogram(panels[3], "Clips by length", tally.dialogue_seconds, "seconds", "questions")


def _clean(axes: Axes, title: str, x: str, y: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=8, length=2.5, color=FAINT)
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.set_xlabel(x, fontsize=8, color=MUTED)
    axes.set_ylabel(y, fontsize=8, color=MUTED)


def _nothing(axes: Axes, title: str) -> None:
    _clean(axes, title, "", "")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=MUTED, fontsize=9)


def _histogram(axes: Axes, title: str, values: Sequence[float], x: str, y: str) -> None:
    """A histogram with the median marked; the last bar has the longest hundredth if far off."""
    if not len(values):
        return _nothing(axes, title)
    numbers = np.asarray(values, float)
    end = np.quantile(numbers, 0.99)
    if numbers.max() > 1.5 * end:
        title = f"{title} (last bar: {end:.4g} and longer)"
    else:
        end = numbers.max()
    _clean(axes, title, x, y)
    low = min(0.0, numbers.min())
    edges = np.linspace(low, end if end > low else low + 1.0, 31)
    axes.hist(np.minimum(numbers, end), bins=edges, color=BLUE)
    middle = np.median(numbers)
    axes.axvline(middle, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    right = middle > low + 0.7 * (edges[-1] - low)
    axes.annotate(
        f" median {middle:.4g} ",
        (middle, 1.0),
        xycoords=("data", "axes fraction"),
        ha="right" if right else "left",
        va="top",
        fontsize=8,
        color=INK,
    )
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return None


def _decisions(axes: Axes, tally: Tally) -> None:
    """Windows by how many decisions they hold; those without one stand out."""
    title = "Decisions in a window"
    if not tally.decisions:
        return _nothing(axes, title)
    _clean(axes, title, "decisions", "windows")
    counts = Counter(min(int(count), _MOST_DECISIONS) for count in tally.decisions)
    places = range(max(counts) + 1)
    heights = [counts[place] for place in places]
    axes.bar(places, heights, color=[ORANGE] + [BLUE] * (len(heights) - 1))
    share = 100 * counts[0] / len(tally.decisions)
    axes.annotate(
        f"{share:.1f} % without",
        (0, counts[0]),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=ORANGE,
    )
    names = [f"{place}+" if place == _MOST_DECISIONS else str(place) for place in places]
    axes.set_xticks(places, names)
    axes.margins(y=0.12)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return None


def _over_time(axes: Axes, tally: Tally) -> None:
    """Share of given turns with a reply, and of decisions in a window, along the dialogue."""
    title = "Along the dialogue"
    lines = [
        ("given turns with a reply", tally.said_at, tally.given_at, ORANGE),
        ("decisions in a window", tally.due_at, tally.deciding_at, BLUE),
    ]
    lines = [line for line in lines if len(line[2])]
    if not lines:
        return _nothing(axes, title)
    _clean(axes, title, "seconds from the start", "share, %")
    end = max(max(line[2]) for line in lines)
    edges = np.linspace(0.0, end * (1 + 1e-9) or 1.0, 25)
    for label, part, whole, colour in lines:
        of = np.histogram(whole, edges)[0]
        share = 100 * np.histogram(part, edges)[0] / np.maximum(of, 1)
        times = np.histogram(whole, edges, weights=whole)[0] / np.maximum(of, 1)
        axes.plot(times[of > 0], share[of > 0], color=colour, label=label, marker=".")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 105)
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED)
    return None


def _bars(axes: Axes, title: str, counts: dict[str, int]) -> None:
    """One bar a name, the most frequent ones of many."""
    if not counts:
        return _nothing(axes, title)
    rows = list(counts.items())
    if len(rows) > _MOST_NAMES:
        rows = Counter(counts).most_common(_MOST_NAMES)
        title = f"{title} (the {_MOST_NAMES} most frequent of {len(counts)})"
    _clean(axes, title, "questions", "")
    names = [(name or "(none)").replace("$", r"\$")[:28] for name, _ in rows]
    axes.barh(range(len(rows)), [count for _, count in rows], color=BLUE)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return None
