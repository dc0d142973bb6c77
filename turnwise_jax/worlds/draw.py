"""A contact sheet of one dialogue: what was shown, asked and said, and what would be right."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from turnwise_jax.data.records import Dialogue, is_silent
from turnwise_jax.data.video import read_frames, read_image

GIVEN, GOOD, BAD, WINDOW = "#777777", "#1a7f37", "#b3261e", "#cfe3ff"


def contact_sheet(
    dialogue: Dialogue,
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] = ".",
    replies: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Draws the frames over a time line with windows, reference answers and replies, as PNG.

    Args:
      dialogue: any streaming dialogue; frame paths are taken relative to `root`.
      path: the picture to write.
      replies: one text per open turn, drawn green inside a window and red outside; None: only the
        replies given in the dialogue are drawn, in grey.
      title: first line; the dialogue's id if None.
    """
    most = max(1, *(len(turn.frames) for turn in dialogue.turns))
    figure = Figure(figsize=(1.3 * len(dialogue.turns) + 0.6, 1.45 * most + 2.6))
    FigureCanvasAgg(figure)
    strip, line = figure.subplots(2, 1, height_ratios=[1.45 * most, 2.0])
    _strip(strip, dialogue, _pictures(dialogue, root), most)
    _time_line(line, dialogue, replies)
    figure.suptitle(title or dialogue.id, fontsize=9)
    figure.subplots_adjust(0.02, 0.09, 0.99, 0.94, 0.0, 0.03)
    figure.savefig(path, dpi=110)


def _strip(axes: Axes, dialogue: Dialogue, pictures: list[list[np.ndarray]], most: int) -> None:
    """One column per turn, its frames from the top, each with its time."""
    for k, turn in enumerate(dialogue.turns):
        for row, (frame, picture) in enumerate(zip(turn.frames, pictures[k], strict=True)):
            top = most - row
            axes.imshow(picture, extent=(k + 0.09, k + 0.91, top - 0.98, top - 0.16))
            time = turn.time if frame.time is None else frame.time
            axes.text(k + 0.5, top - 0.14, f"{time:g} s", fontsize=7, ha="center")
    axes.set_xlim(0.0, len(dialogue.turns))
    axes.set_ylim(0.0, most)
    axes.set_axis_off()


def _pictures(dialogue: Dialogue, root: str | os.PathLike[str]) -> list[list[np.ndarray]]:
    """Frames of every turn; each video is decoded once."""
    videos: dict[str, list[float]] = {}
    for turn in dialogue.turns:
        for frame in turn.frames:
            if frame.time is not None:
                videos.setdefault(frame.path, []).append(frame.time)
    shown: dict[tuple[str, float | None], np.ndarray] = {}
    for name, times in videos.items():
        images = read_frames(os.path.join(root, name), times)
        shown.update({(name, time): image for time, image in zip(times, images, strict=True)})
    for turn in dialogue.turns:
        for frame in turn.frames:
            if frame.time is None:
                shown[frame.path, None] = read_image(os.path.join(root, frame.path))
    return [[shown[frame.path, frame.time] for frame in turn.frames] for turn in dialogue.turns]


def _time_line(axes: Axes, dialogue: Dialogue, replies: Sequence[str] | None) -> None:
    times = [turn.time for turn in dialogue.turns]
    first = dialogue.first_open
    spacing = times[1] - times[0] if len(times) > 1 else 1.0
    axes.set_xlim(times[0] - spacing, times[-1])
    axes.set_ylim(0.0, 4.0)
    axes.set_yticks([])
    axes.set_xticks(times)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("decision time, s", fontsize=7)
    if 0 < first < len(times):
        axes.axvspan(times[0] - spacing, times[first - 1], color="#eeeeee")
    for number, window in enumerate(dialogue.windows):
        axes.axvspan(window.start, window.end, 0.0, 0.75, color=WINDOW)
        height = 1.1 - 0.5 * (number % 2)
        axes.text(window.start, height, window.answer, fontsize=7, color="#1f4e9c")
    for k, turn in enumerate(dialogue.turns):
        axes.axvline(turn.time, color="#dddddd", linewidth=0.6)
        if turn.text:
            axes.text(turn.time - spacing, 3.5, turn.text, fontsize=8, weight="bold")
        reply, colour = turn.reply, GIVEN
        if k >= first and replies is not None:
            inside = any(w.start <= turn.time <= w.end for w in dialogue.windows)
            reply, colour = replies[k - first], GOOD if inside else BAD
        if reply is not None and not is_silent(reply):
            axes.plot([turn.time], [1.7], marker="v", color=colour)
            axes.text(turn.time, 2.0 + 0.5 * (k % 3), reply, fontsize=7, color=colour, ha="right")
