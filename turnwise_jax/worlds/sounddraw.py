"""A contact sheet of one question: the frames, the sound as a wave, question, options, reply."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from turnwise_jax.data.audio import read_audio
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.video import read_frames

TRUTH, SAID, WAVE = "#1f4e9c", "#1a7f37", "#555555"
FRAMES = 8
_RATE = 16000


def draw_sheets(
    records: str | os.PathLike[str], folder: str | os.PathLike[str], count: int
) -> None:
    """Sheets of the first ``count`` records of a question file, each called by its id."""
    Path(folder).mkdir(exist_ok=True)
    for dialogue in load_dialogues("qa", records, clip=ClipSpec(FRAMES))[0][:count]:
        question_sheet(dialogue, Path(folder) / f"{dialogue.id}.png")


def question_sheet(
    dialogue: Dialogue, path: str | os.PathLike[str], *, reply: str | None = None
) -> None:
    """Draws the frames of a question's clip over the wave of its sound, with all texts, as PNG.

    Args:
      dialogue: one turn with a question, shown as frames of a video, with or without a sound.
      path: the picture to write.
      reply: what a policy said; the record's own reply if None.
    """
    turn, question = dialogue.turns[0], dialogue.question
    times = [frame.time or 0.0 for frame in turn.frames]
    figure = Figure(figsize=(1.2 * max(4, len(times)) + 0.4, 4.0))
    FigureCanvasAgg(figure)
    strip, line, words = figure.subplots(3, 1, height_ratios=[1.3, 0.9, 1.5])
    width = turn.time / max(1, len(times))
    pictures = read_frames(turn.frames[0].path, times) if times else []
    for time, picture in zip(times, pictures, strict=True):
        strip.imshow(picture, extent=(time - 0.48 * width, time + 0.48 * width, 0.0, 1.0))
    strip.set(xlim=(0.0, turn.time), ylim=(0.0, 1.0), aspect="auto")
    strip.set_axis_off()
    if turn.audio is not None:
        wave = read_audio(turn.audio.path, turn.audio.start, turn.audio.end, rate=_RATE)
        seconds = turn.audio.start + np.arange(len(wave)) / _RATE
        line.plot(seconds, wave, color=WAVE, linewidth=0.4)
    line.set(xlim=(0.0, turn.time), ylim=(-1.0, 1.0), yticks=[])
    line.tick_params(labelsize=7)
    words.set_axis_off()
    options = "   ".join(f"{chr(65 + n)}. {text}" for n, text in enumerate(question.options))
    said = turn.reply if reply is None else reply
    lines = (
        (f"{question.text}   {options}", "black"),
        (f"answer: {question.answer}   heard: {question.sound}", TRUTH),
        (f"hint: {question.hint}", WAVE),
        (said or "", SAID),
    )
    for number, (text, colour) in enumerate(lines):
        words.text(0.0, 0.8 - 0.25 * number, text, fontsize=8, color=colour)
    figure.suptitle(f"{dialogue.id}: {question.category}", fontsize=9)
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.92, 0.0, 0.25)
    figure.savefig(path, dpi=110)
