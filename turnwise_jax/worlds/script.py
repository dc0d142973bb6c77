"""What happens in a video, what is asked about it, and the right replies with their windows.

Everything here is plain arithmetic on seconds; nothing is drawn. A *script* is a list of events
that happen to the one object in the picture. A *question* names the kinds of events that it wants
reported; each such event opens a reply window with one reference answer.

Answer vocabulary (``C`` one of ``COLOURS``, ``S`` one of ``SHAPES``)::

    A C S appears.      an object comes into the picture (or takes another's place)
    The S turns C.      the object changes its colour
    The C S leaves.     the object goes (or another takes its place)
    A C S is here.      the immediate summary that a question asked in mid-video gets
    NO REPLY            nothing to report
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turnwise_jax.worlds.settings import COLOURS, QUESTIONS, SHAPES, World

REPORTED = {
    "appear": ("appear", "swap"),
    "colour": ("colour",),
    "leave": ("leave", "swap"),
    "all": ("appear", "colour", "leave", "swap"),
}
SYSTEM = "Frames arrive one after another. Reply only with new information, else say NO REPLY."


@dataclass(frozen=True, slots=True)
class Event:
    """At `time` the picture goes from `before` to `after`, both (colour, shape) or None = empty.

    `kind` is "appear", "colour", "leave" or "swap"; `end` closes the reply window.
    """

    kind: str
    time: float
    end: float
    before: tuple[str, str] | None
    after: tuple[str, str] | None

    def report(self, question: str) -> str:
        """The reference answer of this event to a question of kind `question`."""
        if question == "leave" or self.kind == "leave":
            return f"The {self.before[0]} {self.before[1]} leaves."
        if self.kind == "colour":
            return f"The {self.after[1]} turns {self.after[0]}."
        return f"A {self.after[0]} {self.after[1]} appears."


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply window and its reference answer; `event_end` ends the event that it reports."""

    start: float
    end: float
    event_end: float
    question: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A question put in turn `turn`."""

    turn: int
    kind: str
    text: str


def summary(state: tuple[str, str]) -> str:
    """The immediate answer to a question asked while `state` = (colour, shape) is shown."""
    return f"A {state[0]} {state[1]} is here."


def corpus(world: World | None = None) -> list[str]:
    """Every sentence of this world's dialogues, and the role names of the chat format.

    What a tokenizer of the world has to know. Without a world: all words that any world uses.
    """
    world = world or World(colours=len(COLOURS), shapes=len(SHAPES), wordings=2)
    sentences = [SYSTEM, "NO REPLY", *(f"{role}\n" for role in ("system", "user", "assistant"))]
    for kind in QUESTIONS:
        sentences += QUESTIONS[kind][: world.wordings]
    for shape in world.outlines:
        for colour in world.palette:
            sentences += [
                f"A {colour} {shape} appears.",
                f"The {shape} turns {colour}.",
                f"The {colour} {shape} leaves.",
                summary((colour, shape)),
            ]
    return sentences


def sample_events(world: World, rng: np.random.Generator) -> tuple[Event, ...]:
    """The events of one video.

    No window reaches over the next event or over the border of history and target segment, every
    window holds a decision, and no event coincides with a frame.
    """
    events: list[Event] = []
    now = rng.uniform(0.0, world.window[1] + world.calm[1])  # no phase of the cycle is favoured
    state: tuple[str, str] | None = None
    used: list[str] = []
    while (start := _off_frames(world, now)) + world.turn_seconds <= world.seconds:
        free = _off_frames(world, start + rng.uniform(*world.window))
        border = world.target_start if start < world.target_start else world.seconds
        event = _next_event(world, rng, state, used, start, min(free, border))
        events.append(event)
        state = event.after
        if state is not None:
            used.append(state[0])
        now = free + rng.uniform(*world.calm)
    return tuple(events)


def answers(world: World, events: tuple[Event, ...], asked: tuple[Asked, ...]) -> list[Answer]:
    """The reply windows of a dialogue: each question's own events while it is the latest one.

    A second question cuts the windows of the first before its own decision and, if something is in
    the picture when it is asked, opens a window for the summary at once (MMDuet2, facts 4.2).
    """
    out: list[Answer] = []
    times = world.decision_times
    for question, following in zip(asked, [*asked[1:], None], strict=True):
        opens = times[question.turn] if question.turn else 0.0
        closes = math.inf if following is None else times[following.turn] - world.turn_seconds / 4
        if question.turn:
            out += _summary(world, events, question, opens)
        for event in events:
            if event.kind not in REPORTED[question.kind] or event.time < opens:
                continue
            end = min(event.end, closes)
            if decisions_inside(world, event.time, end):
                text = event.report(question.kind)
                out.append(_answer(event.time, end, question.text, text))
    return out


def decisions_inside(world: World, start: float, end: float) -> list[int]:
    """Turns whose decision lies in [start, end]."""
    return [k for k, time in enumerate(world.decision_times) if start <= time <= end]


def teacher(
    world: World, windows: list[Answer], rng: np.random.Generator
) -> tuple[str | None, ...]:
    """One reply per turn (None = silence) in the style of the SFT data.

    The answer comes at the end of its window (facts 4.2), or at any decision in it, is sometimes
    missed and sometimes said again, as `World` says. Summaries come at once.
    """
    replies: list[str | None] = [None] * world.turns
    for window in windows:
        inside = decisions_inside(world, window.start, window.end)
        if window.start in world.decision_times:
            turn = inside[0]
        elif rng.random() < world.miss:
            continue
        else:
            turn = inside[-1] if rng.random() < world.late else int(rng.choice(inside))
        replies[turn] = window.text
        if rng.random() < world.repeat and turn + 1 < world.turns and replies[turn + 1] is None:
            replies[turn + 1] = window.text
    return tuple(replies)


def state_at(events: tuple[Event, ...], time: float) -> tuple[str, str] | None:
    """(colour, shape) in the picture at `time`, None if it is empty."""
    past = [event for event in events if event.time <= time]
    return past[-1].after if past else None


def _summary(world: World, events: tuple[Event, ...], question: Asked, opens: float):
    state = state_at(events, opens)
    if state is None or question.kind == "leave":
        return []
    upcoming = [event.time - world.frame_interval / 8 for event in events if event.time > opens]
    end = min([_off_frames(world, opens + world.window[0]), world.seconds, *upcoming])
    return [_answer(opens, round(end, 6), question.text, summary(state))]


def _answer(start: float, end: float, question: str, text: str) -> Answer:
    """The window runs one second past the event where there is room (facts 4.3: c = b + 1)."""
    return Answer(start, end, max(start, round(end - 1.0, 6)), question, text)


def _next_event(world, rng, state, used, start, end) -> Event:
    if state is None:
        return Event("appear", start, end, None, _new_object(world, rng, state, used))
    draw = rng.random()
    if draw < world.recolour:
        after = (_new_colour(world, rng, state, used), state[1])
        return Event("colour", start, end, state, after)
    if draw < world.recolour + world.leave:
        return Event("leave", start, end, state, None)
    return Event("swap", start, end, state, _new_object(world, rng, state, used))


def _new_object(world, rng, state, used) -> tuple[str, str]:
    """Another shape in another colour, so that a swap is no change of colour."""
    shapes = [shape for shape in world.outlines if state is None or shape != state[1]]
    return _new_colour(world, rng, state, used), str(rng.choice(shapes))


def _new_colour(world, rng, state, used) -> str:
    """A colour not seen yet, so that no right reply repeats an earlier one; else another."""
    fresh = [colour for colour in world.palette if colour not in used]
    if not fresh:
        fresh = [colour for colour in world.palette if state is None or colour != state[0]]
    return str(rng.choice(fresh))


def _off_frames(world: World, time: float) -> float:
    """`time` moved into the middle half of its frame interval, so that no frame is in doubt."""
    whole, part = divmod(time, world.frame_interval)
    return round(whole * world.frame_interval + (0.25 * world.frame_interval + 0.5 * part), 3)
