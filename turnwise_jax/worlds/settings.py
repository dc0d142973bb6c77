"""The settings of the world: its vocabulary, its handles on difficulty, and the named worlds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from turnwise_jax.errors import InputError

COLOURS = {
    "red": (225, 35, 35),
    "green": (35, 175, 60),
    "blue": (45, 75, 235),
    "yellow": (240, 220, 40),
    "purple": (175, 60, 205),
    "white": (245, 245, 245),
    "cyan": (50, 215, 225),
    "pink": (250, 150, 185),
}
SHAPES = ("square", "ring", "cross", "triangle", "circle")

QUESTIONS = {
    "appear": ("Which shapes appear?", "Tell me when a shape appears."),
    "colour": ("Which colours does it turn?", "Tell me when the colour changes."),
    "leave": ("Which shapes leave?", "Tell me when a shape leaves."),
    "all": ("What happens?", "Tell me all that happens."),
}


class Setting:
    """What the settings of all worlds share; each is a frozen dataclass of plain values."""

    colours: int
    shapes: int

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The setting of a plain mapping (a config); InputError for fields that cannot be."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise InputError(f"unknown; known are {', '.join(sorted(known))}", field=name)
        fixed = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in values.items()}
        return cls(**fixed)

    @property
    def palette(self) -> tuple[str, ...]:
        return tuple(COLOURS)[: self.colours]

    @property
    def outlines(self) -> tuple[str, ...]:
        return SHAPES[: self.shapes]


@dataclass(frozen=True)
class World(Setting):
    """One setting of the world; every field is a handle on difficulty or size.

    Times are seconds. Pairs are the ends of a uniform range. Shares and rates are probabilities.
    """

    colours: int = 6  # the first so many of COLOURS
    shapes: int = 3  # the first so many of SHAPES
    wordings: int = 1  # phrasings of each question
    questions: tuple[str, ...] = ("appear", "colour", "leave", "all")
    dialogues_per_video: int = 2  # different questions about one video
    two_questions: float = 0.25  # share of dialogues in which a second question ends the first
    history_turns: int = 3  # turns whose replies are given in RL records
    target_turns: int = 8  # turns that the policy answers in RL records
    frames_per_turn: int = 2
    frame_interval: float = 1.0
    window: tuple[float, float] = (3.5, 6.5)  # reply window after an event
    calm: tuple[float, float] = (0.5, 2.0)  # time between a window's end and the next event
    recolour: float = 0.45  # share of events that change the object's colour only
    leave: float = 0.25  # share of events that empty the picture
    late: float = 1.0  # share of the teacher's answers given at the window's last decision
    miss: float = 0.0  # share of windows that the teacher misses
    repeat: float = 0.0  # share of the teacher's answers said again at the next decision
    size: int = 112  # pixels, both sides
    fps: int = 8
    object_size: tuple[float, float] = (0.6, 0.8)  # share of the picture's side
    speed: float = 0.06  # the object's path in picture sides per second, at most
    noise: float = 3.0  # standard deviation of each frame's pixel noise, of 255
    texture: float = 8.0  # standard deviation of the background's pattern, of 255
    decoys: int = 0  # small grey marks that come and go and that no question asks about

    def __post_init__(self) -> None:
        _check(self)

    @property
    def turn_seconds(self) -> float:
        """Time from one decision to the next."""
        return self.frames_per_turn * self.frame_interval

    @property
    def turns(self) -> int:
        return self.history_turns + self.target_turns

    @property
    def target_start(self) -> float:
        """Time of the last decision of the given history."""
        return self.history_turns * self.turn_seconds

    @property
    def seconds(self) -> float:
        """Time of the last decision."""
        return self.turns * self.turn_seconds

    @property
    def decision_times(self) -> tuple[float, ...]:
        return tuple(round((k + 1) * self.turn_seconds, 6) for k in range(self.turns))


def _check(world: World) -> None:
    def need(condition: bool, field: str, message: str) -> None:
        if not condition:
            raise InputError(f"{message}, got {getattr(world, field)!r}", field=field)

    for field in dataclasses.fields(world):
        value, kind = getattr(world, field.name), type(field.default)
        fits = isinstance(value, int | float if kind is float else kind)
        need(fits and not isinstance(value, bool), field.name, f"must be a {kind.__name__}")
    need(2 <= world.colours <= len(COLOURS), "colours", f"must be 2 to {len(COLOURS)}")
    need(2 <= world.shapes <= len(SHAPES), "shapes", f"must be 2 to {len(SHAPES)}")
    need(world.wordings in (1, 2), "wordings", "must be 1 or 2")
    need(
        bool(world.questions) and set(world.questions) <= set(QUESTIONS),
        "questions",
        f"must be some of {', '.join(QUESTIONS)}",
    )
    need(
        1 <= world.dialogues_per_video <= len(world.questions),
        "dialogues_per_video",
        "must be 1 to the number of question kinds",
    )
    for name in ("history_turns", "decoys"):
        need(getattr(world, name) >= 0, name, "must not be negative")
    for name in ("target_turns", "frames_per_turn"):
        need(getattr(world, name) >= 1, name, "must be at least 1")
    need(world.frame_interval >= 0.5, "frame_interval", "must be at least 0.5 s")
    for name in ("window", "calm", "object_size"):
        pair = getattr(world, name)
        numbers = len(pair) == 2 and all(isinstance(x, int | float) for x in pair)
        need(numbers and 0 <= pair[0] <= pair[1], name, "must be a pair low <= high")
    need(
        world.window[0] >= world.turn_seconds + world.frame_interval / 2,
        "window",
        "must be long enough to hold a decision",
    )
    for name in ("two_questions", "recolour", "leave", "late", "miss", "repeat"):
        need(0 <= getattr(world, name) <= 1, name, "must be a share between 0 and 1")
    need(world.recolour + world.leave <= 1, "leave", "recolour + leave must not exceed 1")
    need(world.size >= 28 and world.size % 2 == 0, "size", "must be even and at least 28 pixels")
    need(
        world.fps * world.frame_interval >= 4,
        "fps",
        "must give at least 4 pictures a frame interval",
    )
    need(
        world.object_size[0] >= 0.2 and world.object_size[1] <= 0.8,
        "object_size",
        "must lie between 0.2 and 0.8 of the picture",
    )
    for name in ("noise", "texture", "speed"):
        need(getattr(world, name) >= 0, name, "must not be negative")


# Beside the default, settings that pull policies apart: in "redundant" the teacher repeats itself,
# so that redundancy sits next to success; in "quiet" most turns and events call for silence.
WORLDS: dict[str, World] = {
    "demo": World(),
    "redundant": World(target_turns=12, window=(5.0, 8.0), calm=(0.5, 1.0), repeat=0.6, late=0.3),
    "quiet": World(
        questions=("appear", "colour", "leave"), calm=(2.0, 6.0), miss=0.4, two_questions=0.0
    ),
}
