"""What is seen and heard in a clip, what is asked about it, and the right answers.

Nothing here is drawn or played. A *scene* is a few coloured shapes at different spots, the one of
them that sounds, and maybe a turn: one shape changes its colour. All of it is drawn independently
and evenly, so that no answer can be told from what its question does not ask about:

    visual        colour, count, place   chance without the video, whatever is heard
    sound         beeps, pitch           chance without the sound, whatever is seen
    audio-visual  source, where          one in the number of shapes with only one of the two
                  order                  chance from the turn alone; from the sound alone right in
                                         ``order_by_ear`` of clips: in a clip that ends, what is
                                         heard first or last must come before or after the rest

Options of ``source``, ``place`` and ``where`` are those of the clip, in random order, so that a
policy that sees but does not hear has nothing to leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from turnwise_jax.data.records import Question
from turnwise_jax.worlds.settings import COLOURS, SHAPES
from turnwise_jax.worlds.soundsettings import MODALITY, QUESTIONS, SPOTS, SoundWorld

SYSTEM = "Look and listen. Reply with <think>reasons</think><answer>answer</answer>"
NUMBERS = ("zero", "one", "two", "three", "four")
STAGES: dict[str, tuple[str, ...]] = {  # families of each stage of RL
    "stage1": ("colour", "count", "place"),
    "stage2": ("colour", "count", "place", "beeps", "pitch", "source", "order"),
    "stage3": ("source", "where"),
}
HINTS = {
    "colour": "Find the shape that is asked about, then name how it is painted.",
    "count": "Look at every side of the picture and count what you see.",
    "place": "Look at that side of the picture, then name the shape.",
    "beeps": "Listen from begin to end and count each time it sounds.",
    "pitch": "Listen to the voice and compare it with other voices.",
    "source": "Listen whose voice it is, then look how that shape is painted.",
    "order": "Listen when it sounds, look when a shape is painted anew, then compare.",
    "where": "Listen whose voice it is, then look for that shape.",
}


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape, its colour and its spot; all three differ from those of the clip's other shapes."""

    shape: str
    colour: str
    spot: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Shape number ``thing`` takes ``colour`` at the start of slot ``slot``."""

    thing: int
    colour: str
    slot: int


@dataclass(frozen=True, slots=True)
class Scene:
    """One clip: shape number ``sounding`` gives ``beeps`` beeps in the middle of slot ``slot``."""

    things: tuple[Thing, ...]
    sounding: int
    beeps: int
    high: bool
    slot: int
    turn: Turn | None = None

    @property
    def source(self) -> Thing:
        """The shape that sounds."""
        return self.things[self.sounding]

    @property
    def sound_first(self) -> bool | None:
        """Whether the sound comes before the turn; None without a turn."""
        return None if self.turn is None else self.slot < self.turn.slot


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a clip and what the teacher replies."""

    family: str
    question: Question
    reply: str


def sample_scene(world: SoundWorld, rng: np.random.Generator) -> Scene:
    """One scene, every part of it drawn evenly and apart from the others."""
    count = int(rng.integers(world.things[0], world.things[1] + 1))
    shapes, spots = rng.permutation(world.outlines), rng.permutation(list(SPOTS))
    colours = rng.permutation(world.palette)
    things = tuple(Thing(str(shapes[i]), str(colours[i]), str(spots[i])) for i in range(count))
    sounding, beeps = int(rng.integers(count)), int(rng.integers(1, world.beeps + 1))
    high, slot = bool(rng.integers(2)), int(rng.integers(world.slots))
    turn = None
    if rng.random() < world.turns:
        turn = Turn(
            int(rng.integers(count)), str(colours[count]), int(rng.integers(1, world.slots))
        )
        slot = turn.slot - int(rng.integers(2))
    return Scene(things, sounding, beeps, high, slot, turn)


def order_by_ear(world: SoundWorld) -> float:
    """Most "order" questions that a policy can get right which hears but does not see: sounds in
    the first and the last slot give themselves away. The least that is possible."""
    return 0.5 + 0.5 / (world.slots - 1)


def ask(world: SoundWorld, scene: Scene, rng: np.random.Generator) -> tuple[Asked, ...]:
    """Up to ``per_clip`` questions of different families, "order" first if it can be asked.

    Where a shape turns, no question asks for a colour; of a lone shape none asks which one it is.
    """
    barred = {"order"} if scene.turn is None else {"colour", "source"}
    if len(scene.things) == 1:
        barred |= {"place", "source", "where"}
    families = [str(f) for f in rng.permutation(world.families) if f not in barred]
    families.sort(key=lambda family: family != "order")
    return tuple(_ask(world, scene, family, rng) for family in families[: world.per_clip])


def caption(scene: Scene) -> str:
    """What is heard, in words."""
    return f"{_heard(scene)} from the {scene.source.shape}."


def corpus(world: SoundWorld | None = None) -> list[str]:
    """Every sentence of this world's records, and the role names of the chat format.

    What a tokenizer of the world has to know. Without a world: all words that any world uses.
    """
    world = world or SoundWorld(colours=len(COLOURS), shapes=len(SHAPES), wordings=2)
    fillers = {"colour": world.outlines, "place": tuple(SPOTS)}
    names = (*world.palette, *world.outlines, *SPOTS, "yes", "no", "high", "low", *"1234")
    sentences = [SYSTEM, *(f"{role}\n" for role in ("system", "user", "assistant"))]
    for family, wordings in QUESTIONS.items():
        for wording in wordings[: world.wordings]:
            sentences += [wording.format(filler) for filler in fillers.get(family, ("",))]
        sentences.append(f"\nHint: {HINTS[family]}")
    sentences += [f"\n{letter}. {name}" for name in names for letter in "ABCD"]
    sentences += [f"<think></think><answer>{name}</answer>" for name in (*names, *"ABCD")]
    sentences += [_think(scene) for scene in _cases(world)]
    return sentences


def _ask(world: SoundWorld, scene: Scene, family: str, rng: np.random.Generator) -> Asked:
    asked = scene.things[int(rng.integers(len(scene.things)))]
    truth, options = _truth(world, scene, family, asked, rng)
    wording = QUESTIONS[family][int(rng.integers(world.wordings))]
    answer = "ABCD"[options.index(truth)] if options else truth
    question = Question(
        wording.format({"colour": asked.shape, "place": asked.spot}.get(family, "")),
        answer,
        "multiple_choice" if options else "numeric",
        options,
        f"{MODALITY[family]}/{family}",
        caption(scene),
        HINTS[family],
    )
    said = answer if world.letters else truth
    reply = f"<think>{_think(scene)}</think><answer>{said}</answer>"
    return Asked(family, question, reply)


def _truth(
    world: SoundWorld, scene: Scene, family: str, asked: Thing, rng: np.random.Generator
) -> tuple[str, tuple[str, ...]]:
    """The right answer in words and the options, none where the answer is a number."""
    if family == "count":
        return str(len(scene.things)), ()
    if family == "beeps":
        return str(scene.beeps), ()
    things = scene.things
    truth, others = {
        "colour": (asked.colour, [c for c in world.palette if c != asked.colour]),
        "place": (asked.shape, [t.shape for t in things if t != asked]),
        "pitch": _either(scene.high, "high", "low"),
        "source": (scene.source.colour, [t.colour for t in things if t != scene.source]),
        "order": _either(bool(scene.sound_first), "yes", "no"),
        "where": (scene.source.spot, [t.spot for t in things if t != scene.source]),
    }[family]
    wrong = [str(other) for other in rng.permutation(others)][:3]
    return truth, tuple(str(option) for option in rng.permutation([truth, *wrong]))


def _either(first: bool, one: str, other: str) -> tuple[str, list[str]]:
    return (one, [other]) if first else (other, [one])


def _think(scene: Scene) -> str:
    """The teacher's notes, the same for every question: all that is seen, all that is heard, and in
    the order of time if a shape turns."""
    seen = ", ".join(f"{t.spot} {t.shape} {t.colour}" for t in _listed(scene))
    heard = f"I hear {scene.source.shape}, {_heard(scene)}."
    if scene.turn is None:
        return f"I see {seen}. {heard}"
    turning = f"{scene.things[scene.turn.thing].spot} turns."
    later = [heard, turning] if scene.sound_first else [turning, heard]
    return f"I see {seen}. {later[0]} Then {later[1]}"


def _listed(scene: Scene) -> list[Thing]:
    """The shapes in the order of ``SPOTS``."""
    spots = tuple(SPOTS)
    return sorted(scene.things, key=lambda thing: spots.index(thing.spot))


def _heard(scene: Scene) -> str:
    register = "high" if scene.high else "low"
    return f"{NUMBERS[scene.beeps]} {register} {'beep' if scene.beeps == 1 else 'beeps'}"


def _cases(world: SoundWorld) -> Iterator[Scene]:
    """Scenes that between them bring out everything that is said about a shape or a sound."""
    for shape, spot, colour in product(world.outlines, SPOTS, world.palette):
        things = (Thing(shape, colour, spot), Thing("ring", "blue", "left"))
        for beeps, high in product(range(1, world.beeps + 1), (False, True)):
            slot = (beeps + high) % 2
            yield Scene(things, 0, beeps, high, slot, Turn(0, "blue", 1))
