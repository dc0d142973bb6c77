"""Dialogues as plain records: frames, decision turns, annotated reply windows, or a question.

Times are seconds (float). Nothing here touches a file; ``data.sources`` fills these records and
``data.example`` turns them into pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from turnwise_jax.errors import InputError

SILENCE = "NO REPLY"


def is_silent(text: str) -> bool:
    """Whether a reply is silence: exactly ``NO REPLY`` once blanks around it are stripped."""
    return text.strip() == SILENCE


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture.

    ``time`` None: the image file at ``path``. Otherwise: what the video at ``path`` shows ``time``
    seconds after its first frame. ``shown``: of an image file that was taken from a video, the
    second of it, where that is known.
    """

    path: str
    time: float | None = None
    shown: float | None = None

    @property
    def second(self) -> float | None:
        """Its second in its video; None for an image file that does not say."""
        return self.shown if self.time is None else self.time


@dataclass(frozen=True, slots=True)
class Sound:
    """What the media file at ``path`` plays from ``start`` to ``end``, seconds.

    Of a video file the seconds are those of its frames: 0 is the first one. Otherwise 0 is the
    first sample.
    """

    path: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Window:
    """An annotated span, both ends included, in which ``answer`` is the right reply.

    ``event_end`` is the end of the event itself where the annotation tells it apart from the reply
    window (the benchmark's ``related_timespan``).
    """

    start: float
    end: float
    question: str
    answer: str
    event_end: float | None = None


QUESTION_KINDS = ("multiple_choice", "numeric", "ocr", "free_form", "exact")


@dataclass(frozen=True, slots=True)
class Question:
    """What a question-answering record asks, and what an answer is measured against.

    ``text`` is the question alone, as a judge or a teacher is shown it; the turn's text may hold
    more. ``answer`` is the truth, of ``multiple_choice`` the letter of one of ``options`` (which
    hold no letters). ``sound`` is a caption of what is heard. ``hint`` may be shown to a policy
    that is stuck while it trains, and never in evaluation.
    """

    text: str
    answer: str
    kind: str = "exact"  # one of QUESTION_KINDS
    options: tuple[str, ...] = ()
    category: str = ""
    sound: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What a benchmark's own rule needs to know of a dialogue beside its windows and question.

    ``subset`` is what the benchmark averages within ("TV", "CRR", a task type). ``item`` names the
    annotation that the dialogue belongs to where one annotation makes several dialogues. ``times``
    are the seconds at which a reply is due, ``text`` what it has to say.
    """

    subset: str = ""
    item: str = ""
    times: tuple[float, ...] = ()
    text: str = ""


class ClipSpec(NamedTuple):
    """How records that name a whole video show it.

    One question about a clip: ``frames`` spread evenly over it as one video. A video that streams:
    a frame every ``interval`` seconds, ``turn_frames`` of them a turn (MMDuet2: 2 and 2). Either
    with its audio track if ``sound`` and there is one. A question asked in mid-video that looks
    back sees the ``context`` seconds before it; 0: all.
    """

    frames: int = 32
    sound: bool = True
    interval: float = 2.0
    turn_frames: int = 2
    context: float = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One user turn and the decision that follows it.

    ``time`` is how many seconds of video have been shown when the policy decides. ``reply`` None
    means that the policy decides; otherwise the reply is given. ``video`` True makes the frames of
    this turn one video tensor (time-aware positions) instead of separate images. ``audio`` is what
    is heard meanwhile: part of the video if there is one, else it follows the frames.
    """

    frames: tuple[Frame, ...]
    text: str
    time: float
    reply: str | None = None
    video: bool = False
    audio: Sound | None = None


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A streaming dialogue: given turns first, then the open ones.

    ``history`` holds the non-silent replies of the given past that later replies may not repeat
    (more than the turns show where a source cuts the past off). ``question`` is that of the one
    turn of a question-answering record, ``target`` a benchmark's annotation. ``file`` is where the
    record was read from, for messages only; it takes no part in comparisons.

    Raises:
      InputError: a turn with a reply follows one without.
    """

    id: str
    turns: tuple[Turn, ...]
    windows: tuple[Window, ...] = ()
    system: str | None = None
    history: tuple[str, ...] = ()
    file: str = field(default="", compare=False)
    question: Question | None = None
    target: Target | None = None

    def __post_init__(self) -> None:
        for index, turn in enumerate(self.turns[self.first_open :], self.first_open):
            if turn.reply is not None:
                raise InputError(
                    "a turn with a given reply follows one that is left to the policy",
                    file=self.file,
                    record=self.id,
                    field=f"turns[{index}].reply",
                )

    @property
    def first_open(self) -> int:
        """Index of the first turn without a reply; the number of turns if all have one."""
        for index, turn in enumerate(self.turns):
            if turn.reply is None:
                return index
        return len(self.turns)

    @property
    def open_turns(self) -> tuple[Turn, ...]:
        """The turns that the policy decides, in order."""
        return self.turns[self.first_open :]

    def reopened(self) -> Dialogue:
        """The same dialogue with no reply given and no history: the policy runs it freely."""
        turns = tuple(replace(turn, reply=None) for turn in self.turns)
        return replace(self, turns=turns, history=())


def media_groups(dialogue: Dialogue) -> list[tuple[int, tuple[Frame, ...], bool]]:
    """The dialogue's vision inputs in order, one entry per grid: (turn index, frames, is video).

    Images give one entry each, a video turn one entry for all of its frames. This is the order of
    ``grids`` and ``patches`` everywhere in the package.
    """
    groups: list[tuple[int, tuple[Frame, ...], bool]] = []
    for index, turn in enumerate(dialogue.turns):
        if turn.video and turn.frames:
            groups.append((index, turn.frames, True))
        else:
            groups.extend((index, (frame,), False) for frame in turn.frames)
    return groups
