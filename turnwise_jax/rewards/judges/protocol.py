"""What a judge is asked, what it answers, and how its work is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

Kind = Literal["quality", "repetition", "stepwise"]
KINDS: tuple[Kind, ...] = ("quality", "repetition", "stepwise")


class Request(NamedTuple):
    """One question to a judge; equal requests have equal answers.

    ``kind="quality"``: how well does ``reply`` answer ``question``, given the reference ``answer``?
    ``kind="repetition"``: does ``previous`` already hold *all* information of ``reply``?
    ``kind="stepwise"``: how well is ``reasoning``, which led to the final answer ``reply``,
    grounded in what is heard (``sound``, a caption) and seen (``frames``), given the true
    ``answer``? A frame is ``path#t=seconds`` of a video, or the path of an image.
    Fields that the kind does not use are empty.
    """

    kind: Kind
    question: str = ""
    answer: str = ""
    previous: str = ""
    reply: str = ""
    sound: str = ""
    reasoning: str = ""
    frames: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The fields by name, those of the stepwise kind only for it: keys and lines of caches that
        are older than it stay as they were."""
        count = len(self) if self.kind == "stepwise" else self._fields.index("sound")
        return dict(list(self._asdict().items())[:count])


OnAnswer = Callable[[int, float | None], None]


class Judge(Protocol):
    """Turns requests into numbers.

    A judge may also have ``counters``, a running ``Counter`` over (kind, "cached" | "retried"),
    from which `JudgeStats` is completed. Those of this package are closed by ``with`` or `close`.
    """

    def ask(self, requests: Sequence[Request]) -> list[float | None]:
        """One answer per request, in order.

        Quality: 0 to ``levels - 1``; repetition: 1 yes, 0 no; stepwise: 0 to 1; None: the judge
        failed.
        """
        ...


class Closing:
    """``with`` for judges: leaving the block calls ``close()``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the judge holds; by default nothing."""


class CacheableJudge(Protocol):
    """A judge whose answers can be kept: it says what it sees and reports answers as they come."""

    name: str

    def seen(self, request: Request) -> Mapping[str, Any]:
        """Everything that decides the answer, as plain JSON data."""
        ...

    def ask(
        self, requests: Sequence[Request], on_answer: OnAnswer | None = None
    ) -> list[float | None]:
        """As `Judge.ask`; ``on_answer(i, answer)`` is called in this thread after each answer."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct requests of one kind: put to the judge; of these answered by the cache; failed.
    ``retried`` counts repeated calls, so one request may add several."""

    asked: int = 0
    cached: int = 0
    failed: int = 0
    retried: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.asked + other.asked,
            self.cached + other.cached,
            self.failed + other.failed,
            self.retried + other.retried,
        )


@dataclass(frozen=True, slots=True)
class JudgeStats:
    """Counts by kind and the seconds spent waiting for the judge; stats of several batches add."""

    quality: Counts = field(default_factory=Counts)
    repetition: Counts = field(default_factory=Counts)
    stepwise: Counts = field(default_factory=Counts)
    seconds: float = 0.0

    @property
    def total(self) -> Counts:
        return self.quality + self.repetition + self.stepwise

    def __add__(self, other: JudgeStats) -> JudgeStats:
        return JudgeStats(
            self.quality + other.quality,
            self.repetition + other.repetition,
            self.stepwise + other.stepwise,
            self.seconds + other.seconds,
        )


def counters_of(judge: object) -> Counter[tuple[str, str]]:
    """A snapshot of the judge's own counters; empty for a judge that keeps none."""
    return Counter(getattr(judge, "counters", {}))
