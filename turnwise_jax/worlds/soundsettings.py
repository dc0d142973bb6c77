"""The settings of the audio-visual world: shapes, voices, question families, the named worlds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from turnwise_jax.errors import InputError
from turnwise_jax.worlds.settings import COLOURS, SHAPES, Setting

SPOTS = {"left": (0, 1), "right": (2, 1), "top": (1, 0), "bottom": (1, 2)}  # (column, row) of 3x3
SLOT = 0.5  # s; a sound fills one slot, a turn falls on the border of two
BEEP, GAP = 0.075, 0.05  # s


class Voice(NamedTuple):
    """How a shape sounds: the pitch of its low register, Hz, and partials (multiple, strength)."""

    pitch: float
    partials: tuple[tuple[float, float], ...]


VOICES: dict[str, Voice] = {
    "square": Voice(220.0, ((1, 1.0), (3, 0.8), (5, 0.7), (7, 0.6))),  # hollow
    "ring": Voice(330.0, ((1, 1.0),)),  # pure
    "cross": Voice(262.0, ((1, 0.7), (1.6, 1.0), (2.5, 0.9), (3.6, 0.6))),  # a bell
    "triangle": Voice(294.0, ((1, 1.0), (2, 0.8), (3, 0.6), (4, 0.5), (6, 0.3))),  # bright
    "circle": Voice(247.0, ((1, 0.6), (4, 1.0))),  # a whistle over a hum
}
OCTAVES = 2  # between the low register and the high one

MODALITY = {  # question family -> what it takes
    "colour": "visual",
    "count": "visual",
    "place": "visual",
    "beeps": "sound",
    "pitch": "sound",
    "source": "audio-visual",
    "order": "audio-visual",
    "where": "audio-visual",
}
QUESTIONS = {
    "colour": ("What colour is the {}?", "Name the colour of the {}."),
    "count": ("How many shapes?", "Count the shapes."),
    "place": ("Which shape is at the {}?", "What is at the {}?"),
    "beeps": ("How many beeps?", "Count the beeps."),
    "pitch": ("Is the sound high or low?", "Does it sound high or low?"),
    "source": ("Which colour sounds?", "What colour is the shape that sounds?"),
    "order": ("Is the sound before the turn?", "Does the sound come before the turn?"),
    "where": ("Where is the shape that sounds?", "Where does the sound come from?"),
}


@dataclass(frozen=True)
class SoundWorld(Setting):
    """One setting of the world; every field is a handle on difficulty or size.

    Times are seconds. Pairs are the ends of a uniform range. Shares are probabilities.
    """

    families: tuple[str, ...] = tuple(MODALITY)  # question families, see MODALITY
    things: tuple[int, int] = (1, 3)  # shapes in a clip; one shape is what eyes learn from first
    colours: int = 4  # the first so many of COLOURS
    shapes: int = 3  # the first so many of SHAPES
    beeps: int = 4  # beeps of a sound, at most
    wordings: int = 1  # phrasings of each question
    per_clip: int = 4  # questions about a clip, at most
    turns: float = 0.4  # share of clips in which a shape turns its colour
    hinted: float = 0.2  # share of the teacher's training questions that are shown with their hint
    letters: bool = False  # the teacher answers with an option's letter, not with its text
    seconds: float = 3.0
    size: int = 84  # pixels, both sides
    fps: int = 8
    rate: int = 48000  # samples a second
    object_size: tuple[float, float] = (0.75, 0.9)  # share of a third of the picture's side
    noise: float = 3.0  # standard deviation of each picture's pixel noise, of 255
    texture: float = 6.0  # standard deviation of the background's pattern, of 255
    level: tuple[float, float] = (0.3, 0.6)  # loudness of a beep, 1: the most a file holds
    hiss: float = 0.002  # standard deviation of the noise on the sound

    def __post_init__(self) -> None:
        _check(self)

    @property
    def slots(self) -> int:
        """Places of the sound in a clip."""
        return round(self.seconds / SLOT)


def _check(world: SoundWorld) -> None:
    def need(condition: bool, field: str, message: str) -> None:
        if not condition:
            raise InputError(f"{message}, got {getattr(world, field)!r}", field=field)

    for field in dataclasses.fields(world):
        value, kind = getattr(world, field.name), type(field.default)
        fits = isinstance(value, int | float if kind is float else kind)
        whole = kind is bool or not isinstance(value, bool)
        need(fits and whole, field.name, f"must be a {kind.__name__}")
    need(
        bool(world.families) and set(world.families) <= set(MODALITY),
        "families",
        f"must be some of {', '.join(MODALITY)}",
    )
    need(4 <= world.colours <= len(COLOURS), "colours", f"must be 4 to {len(COLOURS)}")
    need(2 <= world.shapes <= len(SHAPES), "shapes", f"must be 2 to {len(SHAPES)}")
    for name in ("things", "object_size", "level"):
        pair = getattr(world, name)
        numbers = len(pair) == 2 and all(isinstance(x, int | float) for x in pair)
        need(numbers and 0 < pair[0] <= pair[1], name, "must be a pair low <= high above 0")
    low, high = world.things
    whole = isinstance(low, int) and isinstance(high, int)
    most = min(world.shapes, world.colours - 1, len(SPOTS))
    need(whole and high <= most, "things", f"must lie between 1 and {most} shapes")
    need(high >= 2, "things", "must reach 2 shapes")
    need("count" not in world.families or low < high, "things", "'count' needs a range")
    need(2 <= world.beeps <= 4, "beeps", "must be 2 to 4")
    need(world.wordings in (1, 2), "wordings", "must be 1 or 2")
    need(world.per_clip >= 1, "per_clip", "must be at least 1")
    for name in ("turns", "hinted"):
        need(0 <= getattr(world, name) <= 1, name, "must be a share between 0 and 1")
    for families, turns in ((("order",), 1.0), (("colour", "source"), 0.0)):
        met = set(families) & set(world.families) and world.turns == 1.0 - turns
        need(not met, "turns", f"leaves no clip for {' and '.join(families)}")
    need(
        world.seconds >= 2 * SLOT and (world.seconds / SLOT).is_integer(),
        "seconds",
        f"must be a multiple of {SLOT} s, at least {2 * SLOT} s",
    )
    need(world.size >= 42 and world.size % 6 == 0, "size", "must be a multiple of 6, at least 42")
    need(world.fps >= 4 and world.fps % 2 == 0, "fps", "must be even and at least 4")
    need(world.rate in (16000, 24000, 44100, 48000), "rate", "must be 16000 to 48000")
    need(
        world.object_size[0] >= 0.5 and world.object_size[1] <= 1.0,
        "object_size",
        "must lie between 0.5 and 1",
    )
    need(world.level[1] <= 0.9, "level", "must not exceed 0.9")
    for name in ("noise", "texture", "hiss"):
        need(getattr(world, name) >= 0, name, "must not be negative")


SOUNDWORLDS: dict[str, SoundWorld] = {
    "demo": SoundWorld(),
    "easy": SoundWorld(things=(1, 2), beeps=3, noise=0.0, texture=0.0, hiss=0.0),
    "hard": SoundWorld(
        things=(2, 4),
        colours=6,
        shapes=5,
        wordings=2,
        letters=True,
        size=112 - 112 % 6,
        noise=8.0,
        texture=14.0,
        level=(0.1, 0.6),
        hiss=0.01,
    ),
}
