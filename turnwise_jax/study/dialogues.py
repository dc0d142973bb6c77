"""Dialogues as people want to see them: frames over time, windows, and who said what when."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turnwise_jax.data.records import Dialogue, Frame, is_silent
from turnwise_jax.data.video import read_frames, read_image
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.scoring import judged
from turnwise_jax.rewards.judges import Judge
from turnwise_jax.study.style import FAINT, INK, LARGE, MUTED, new_figure, printable, save, wrapped


class Mark(NamedTuple):
    """How a kind of reply is drawn and named."""

    word: str
    symbol: str
    colour: str


# Symbols differ as well as colours, so that the picture reads in grey.
MARKS = {
    "right": Mark("right and in time", "o", "#009E73"),
    "wrong": Mark("in time, but not right", "^", "#E69F00"),
    "repeated": Mark("says nothing new", "s", "#CC79A7"),
    "outside": Mark("outside the windows", "X", "#D55E00"),
}
WINDOW, GIVEN, SILENT = "#dcebf7", "#f2f2f2", "#9a9a9a"
TEXT = 9.0  # points; the picture is wide and is mostly seen scaled down
WRAP = 13  # characters that fit between two decisions
ROWS = {"user": -1.3, "reference": -0.86}  # heights; policies follow at 0, 1, ...


def grade(prediction: Prediction, judge: Judge) -> list[str | None]:
    """The key in ``MARKS`` of each reply, None for silence; asks the five-level judge."""
    turns, _, _ = judged([prediction], judge)
    quality_KW, repetitive_K = np.asarray(turns.quality)[0], np.asarray(turns.repetitive)[0]
    marks: list[str | None] = []
    for k, time in enumerate(prediction.times):
        inside = [w for w, x in enumerate(prediction.windows) if x.start <= time <= x.end]
        if not prediction.replied[k]:
            marks.append(None)
        elif repetitive_K[k] == 1:
            marks.append("repeated")
        elif not inside:
            marks.append("outside")
        else:
            best = np.nan_to_num(quality_KW[k, inside], nan=0.0).max()
            marks.append("right" if best >= 4 else "wrong")
    return marks


def draw_dialogue(
    dialogue: Dialogue,
    predictions: Mapping[str, Prediction],
    path: str | os.PathLike[str],
    *,
    judge: Judge,
    root: str | os.PathLike[str] = ".",
) -> Figure:
    """One picture: the frame on screen at each decision, the user, the windows, each policy's lane.

    Everything stands at its second on one time axis. Windows are shaded through all lanes, with the
    reference answers on top; a small dot is a decision to stay silent.

    Args:
      dialogue: what was shown and asked; given replies are drawn in grey.
      predictions: lane label -> what that policy said in this dialogue.
      path: the PNG to write.
      judge: decides how replies are marked.
      root: folder that frame paths are relative to.
    """
    times = [turn.time for turn in dialogue.turns]
    step = min(np.diff(times), default=times[0] or 1.0)
    begin, end = times[0] - step, times[-1] + step / 2
    figure = new_figure(max(6.0, 1.12 * len(times) + 1.2), 2.5 + 1.0 * len(predictions))
    strip, lanes = figure.subplots(
        2, 1, sharex=True, height_ratios=[1.0, 0.75 + 0.8 * len(predictions)]
    )
    lanes.set_xlim(begin, end)
    _draw_strip(strip, dialogue, root, step)
    _draw_background(lanes, dialogue, begin, step, len(predictions))
    for row, prediction in enumerate(predictions.values()):
        _draw_lane(lanes, row, dialogue, prediction, grade(prediction, judge))
    _finish_lanes(lanes, times, list(predictions))
    _draw_key(figure, lanes)
    save(figure, path)
    return figure


def shown_frames(dialogue: Dialogue, root: str | os.PathLike[str]) -> list[np.ndarray | None]:
    """``uint8[H, W, 3]`` of the last frame of every turn, None for a turn without frames."""
    last = [turn.frames[-1] if turn.frames else None for turn in dialogue.turns]
    wanted: dict[str, list[float]] = {}
    for frame in last:
        if frame is not None and frame.time is not None:
            wanted.setdefault(frame.path, []).append(frame.time)
    seen: dict[Frame, np.ndarray] = {}
    for name, times in wanted.items():
        pictures = read_frames(os.path.join(root, name), times)
        seen |= {Frame(name, t): image for t, image in zip(times, pictures, strict=True)}
    for frame in last:
        if frame is not None and frame.time is None:
            seen[frame] = read_image(os.path.join(root, frame.path))
    return [None if frame is None else seen[frame] for frame in last]


def transcript(dialogue: Dialogue, predictions: Mapping[str, Prediction], *, judge: Judge) -> str:
    """The dialogue as text: one line per event in time order, replies with their marks."""
    events: list[tuple[float, int, str]] = []
    for turn in dialogue.turns:
        if turn.text:
            events.append((turn.time, 1, f"user: {turn.text}"))
        if turn.reply is not None and not is_silent(turn.reply):
            events.append((turn.time, 2, f"given: {printable(turn.reply)}"))
    for window in dialogue.windows:
        span = f"window {window.start:g}-{window.end:g} s: {window.answer}"
        events.append((window.start, 0, span))
    for place, (label, prediction) in enumerate(predictions.items(), start=3):
        marks = grade(prediction, judge)
        for time, reply, mark in zip(prediction.times, prediction.replies, marks, strict=True):
            if mark:
                word = MARKS[mark].word
                events.append((time, place, f"{label}: {printable(reply)}   [{word}]"))
    lines = [f"{time:7.1f} s  {text}" for time, _, text in sorted(events)]
    return "\n".join([dialogue.id, *lines]) + "\n"


def _draw_strip(axes: Axes, dialogue: Dialogue, root: str | os.PathLike[str], step: float) -> None:
    """Frames left of the decision that they lead to, all of the same width."""
    axes.set_axis_off()
    axes.set_ylim(0, 1)
    for turn, picture in zip(dialogue.turns, shown_frames(dialogue, root), strict=True):
        if picture is None:
            continue
        place = axes.inset_axes(
            (turn.time - 0.47 * step, 0.0, 0.94 * step, 1.0), transform=axes.transData
        )
        place.imshow(picture, interpolation="none")
        place.set_xticks([])
        place.set_yticks([])
        for spine in place.spines.values():
            spine.set_color(FAINT)


def _draw_background(axes: Axes, dialogue: Dialogue, begin: float, step: float, lanes: int) -> None:
    """Given past, shaded windows with their answers, and the user's words."""
    bottom = lanes - 0.45
    axes.set_ylim(bottom, -1.5)
    first = dialogue.first_open
    if 0 < first < len(dialogue.turns):
        edge = (dialogue.turns[first - 1].time + dialogue.turns[first].time) / 2
        _fill(axes, begin, edge, -1.5, bottom, GIVEN)
        axes.text(begin, bottom - 0.05, " given past", fontsize=TEXT, color=MUTED, va="bottom")
    for window in dialogue.windows:
        _fill(axes, window.start, window.end, -1.12, bottom, WINDOW)
        width = round(WRAP * (window.end - window.start) / step)
        _put(
            axes,
            (window.start + window.end) / 2,
            ROWS["reference"],
            window.answer,
            width,
            colour="#1f5a93",
            va="center",
        )
    for turn in dialogue.turns:
        if turn.text:
            axes.text(
                turn.time,
                ROWS["user"],
                turn.text,
                fontsize=LARGE,
                color=INK,
                weight="bold",
                ha="center",
                va="center",
            )


def _fill(axes: Axes, left: float, right: float, top: float, bottom: float, colour: str) -> None:
    axes.fill_between([left, right], top, bottom, color=colour, linewidth=0, zorder=0)


def _draw_lane(
    axes: Axes,
    row: int,
    dialogue: Dialogue,
    prediction: Prediction,
    marks: Sequence[str | None],
) -> None:
    axes.axhline(row - 0.3, color=FAINT, linewidth=0.7, zorder=1)
    for turn in dialogue.turns[: dialogue.first_open]:
        if turn.reply is not None and not is_silent(turn.reply):
            axes.plot([turn.time], [row - 0.3], "o", color="#b5b5b5", markersize=5)
            _put(axes, turn.time, row - 0.17, turn.reply, WRAP, colour=MUTED)
    for time, reply, mark in zip(prediction.times, prediction.replies, marks, strict=True):
        if mark is None:
            axes.plot([time], [row - 0.3], ".", color=SILENT, markersize=4)
            continue
        style = MARKS[mark]
        axes.plot([time], [row - 0.3], style.symbol, color=style.colour, markersize=7, zorder=3)
        _put(axes, time, row - 0.17, reply.strip() or "(empty)", WRAP, colour=INK)


def _put(
    axes: Axes, x: float, y: float, text: str, width: int, *, colour: str, va: str = "top"
) -> None:
    text = wrapped(text, width, lines=3)
    axes.text(x, y, text, fontsize=TEXT, color=colour, ha="center", va=va)


def _finish_lanes(axes: Axes, times: Sequence[float], labels: Sequence[str]) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    rows = [*ROWS.values(), *(row - 0.3 for row in range(len(labels)))]
    axes.set_yticks(rows, [*ROWS, *labels], fontsize=LARGE, color=INK)
    axes.set_xticks(times, [f"{time:g}" for time in times], fontsize=TEXT)
    axes.tick_params(length=0, color=FAINT, labelcolor=INK)
    axes.set_xlabel("seconds of video shown at the decision", fontsize=TEXT, color=MUTED)


def _draw_key(figure: Figure, axes: Axes) -> None:
    handles = [
        axes.plot([], [], mark.symbol, color=mark.colour, linestyle="none", markersize=6)[0]
        for mark in MARKS.values()
    ]
    handles.append(axes.plot([], [], ".", color=SILENT, linestyle="none", markersize=4)[0])
    names = [mark.word for mark in MARKS.values()] + ["silent"]
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=len(names),
        frameon=False,
        fontsize=TEXT,
        handletextpad=0.1,
        columnspacing=1.4,
    )
