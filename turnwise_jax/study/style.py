"""The look of every picture: one palette that colour-blind readers can tell apart, little ink."""

from __future__ import annotations

import io
import os
import textwrap
import warnings
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from turnwise_jax.files import write_bytes

# Okabe and Ito's palette, most distinct first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, MUTED, FAINT, SHADE = "#222222", "#6b6b6b", "#d9d9d9", "#f0f0f0"
SMALL, NORMAL, LARGE = 7.5, 8.5, 10.0
DPI = 150


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, in order; the palette repeats after six."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches, that draws without a display and without pyplot's global state."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(h_pad=0.07, w_pad=0.05)
    return figure


def clean(axes: Axes, title: str = "") -> None:
    """Left and bottom spines only, small muted ticks, the title at the left."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=2.5, color=FAINT)
    axes.set_title(title, loc="left", fontsize=NORMAL, color=INK)


def printable(text: str) -> str:
    """Text on one line, every run of blanks and of what cannot be printed as one blank."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def wrapped(text: str, width: int, *, lines: int = 4) -> str:
    """Printable text in at most ``lines`` lines of ``width``."""
    return "\n".join(textwrap.wrap(printable(text), width, max_lines=lines, placeholder=" ..."))


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure as PNG, atomically. Letters that the font lacks are drawn as boxes."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(buffer, format="png", dpi=DPI)
    write_bytes(path, buffer.getvalue())
