"""Clips, questions and answers agree: a rule that decodes the files gets full marks.

The oracle shares no code with the world: it names shapes and colours in the four corners of a cross
from pixels (``looking``) and voices from samples (``hearing``), then answers by the question's
words and options alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hearing import RATE, Heard, listen
from looking import look

from turnwise_jax.data.audio import read_audio
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import Dialogue, Question
from turnwise_jax.data.video import probe, read_frames
from turnwise_jax.worlds.soundsettings import MODALITY, SOUNDWORLDS
from turnwise_jax.worlds.soundworld import generate

CORNERS = {"left": (0, 1), "right": (2, 1), "top": (1, 0), "bottom": (1, 2)}
LOOKS = 4


class Clip(NamedTuple):
    """``seen``: spot -> (colour, shape), ``LOOKS`` times a second."""

    seen: dict[str, list[tuple[str, str]]]
    heard: Heard

    @property
    def spot(self) -> str:
        """Where the shape is whose voice is heard."""
        return next(spot for spot, names in self.seen.items() if names[0][1] == self.heard.shape)

    @property
    def turn(self) -> float:
        """When a shape changes its colour, seconds."""
        for names in self.seen.values():
            for n, (before, after) in enumerate(pairwise(names), 1):
                if before[0] != after[0]:
                    return n / LOOKS
        raise AssertionError("no shape turns")


def perceive(path: str) -> Clip:
    info = probe(path)
    times = (np.arange(round(info.duration * LOOKS)) + 0.5) / LOOKS
    pictures = read_frames(path, times.tolist())
    side = pictures.shape[1] // 3
    seen = {}
    for spot, (column, row) in CORNERS.items():
        cells = pictures[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
        names = [look(cell) for cell in cells]
        if names[0] is not None:
            shape = Counter(name[1] for name in names).most_common(1)[0][0]
            seen[spot] = [(name[0], shape) for name in names]
    return Clip(seen, listen(read_audio(path, 0.0, info.duration, rate=RATE)))


def answer(clip: Clip, text: str) -> str:
    """In words."""
    words = text.lower().rstrip("?.").split()
    named = {shape: colour for names in clip.seen.values() for colour, shape in names[:1]}
    if "turn" in words:
        return "yes" if clip.heard.times[-1] < clip.turn else "no"
    if "beeps" in words:
        return str(len(clip.heard.times))
    if "high" in words:
        return "high" if clip.heard.high else "low"
    if "where" in words:
        return clip.spot
    if "sounds" in words:
        return named[clip.heard.shape]
    if "shapes" in words:
        return str(len(clip.seen))
    if "at" in words:
        return clip.seen[words[-1]][0][1]
    return named[words[-1]]


def is_right(question: Question, said: str) -> bool:
    if question.options:
        return said == question.options["ABCD".index(question.answer)]
    return said == question.answer


class Set(NamedTuple):
    dialogues: list[Dialogue]
    clips: dict[str, Clip]  # by path

    def clip(self, dialogue: Dialogue) -> Clip:
        return self.clips[dialogue.turns[0].frames[0].path]


@pytest.fixture(scope="module", params=["demo", "hard"])
def made(request, tmp_path_factory) -> Set:
    world = replace(SOUNDWORLDS[request.param], per_clip=7)
    folder = tmp_path_factory.mktemp(request.param) / "set"
    files = generate(folder, world, train=1, test=40, seed=4, progress=False)
    dialogues = load_dialogues("qa", files.qa_test)[0]
    paths = {d.turns[0].frames[0].path for d in dialogues}
    return Set(dialogues, {path: perceive(path) for path in paths})


def test_the_oracle_answers_every_question(made):
    asked: Counter[str] = Counter()
    wrong = []
    for dialogue in made.dialogues:
        said = answer(made.clip(dialogue), dialogue.question.text)
        asked[dialogue.question.category] += 1
        if not is_right(dialogue.question, said):
            wrong.append((dialogue.id, dialogue.question.text, said))
    assert not wrong
    assert set(asked) == {f"{kind}/{family}" for family, kind in MODALITY.items()}
    assert min(asked.values()) >= 8


def test_captions_say_what_is_heard(made):
    numbers = ("", "one", "two", "three", "four")
    for dialogue in made.dialogues:
        heard = made.clip(dialogue).heard
        words = dialogue.question.sound.rstrip(".").split()
        register = "high" if heard.high else "low"
        assert words[:2] == [numbers[len(heard.times)], register]
        assert words[-1] == heard.shape


def test_the_sound_lies_in_one_slot_and_the_turn_between_two(made):
    for dialogue in made.dialogues:
        clip = made.clip(dialogue)
        first, *_, last = (*clip.heard.times, clip.heard.times[-1])
        assert last - first < 0.45
        assert (first + last) / 2 % 0.5 == pytest.approx(0.25, abs=0.02)
        if dialogue.id.endswith("order"):
            assert clip.turn % 0.5 == pytest.approx(0.0, abs=1e-6)
            assert abs((first + last) / 2 - clip.turn) < 0.3
