"""How fast an evaluation runs: videos per minute, decisions per second.

What a report holds must come out the same when its predictions are scored again, so speed is not
part of it: it goes into a file of its own, ``throughput.json``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise_jax.data.decoder import cores
from turnwise_jax.data.records import Dialogue
from turnwise_jax.eval.controls import video_of


@dataclass
class Meter:
    """Counts what a run gets done, batch by batch, on a clock that starts with :meth:`start`.

    Dialogues that were found finished are not part of it. The first batch is told apart because
    compilation falls into it.

    Attributes:
      dialogues, decisions: run so far, over all runs of a group.
      videos: those that they show.
      seconds: from the start to the end of the last batch; decoding of media included.
      batches: how many.
    """

    dialogues: int = 0
    decisions: int = 0
    videos: set[str] = field(default_factory=set)
    seconds: float = 0.0
    batches: int = 0
    _began: float = 0.0
    _first: tuple[int, int, set[str], float] = (0, 0, set(), 0.0)

    def start(self) -> None:
        self._began = time.monotonic() - self.seconds

    def add(self, dialogues: Sequence[Dialogue], decisions: int) -> None:
        """A batch is done."""
        self.dialogues += len(dialogues)
        self.decisions += decisions
        self.videos |= {video_of(dialogue) or dialogue.id for dialogue in dialogues}
        self.seconds = time.monotonic() - self._began
        self.batches += 1
        if self.batches == 1:
            self._first = self.dialogues, self.decisions, set(self.videos), self.seconds

    def to_json(self) -> dict[str, Any]:
        """Counts and rates; ``after_first_batch`` only where there is something after it."""
        found: dict[str, Any] = {
            "dialogues": self.dialogues,
            "videos": len(self.videos),
            "decisions": self.decisions,
            "batches": self.batches,
            "cores": cores(),
            **_rates(self.dialogues, len(self.videos), self.decisions, self.seconds),
        }
        if self.batches > 1:
            dialogues, decisions, videos, seconds = self._first
            found["after_first_batch"] = _rates(
                self.dialogues - dialogues,
                len(self.videos) - len(videos),
                self.decisions - decisions,
                self.seconds - seconds,
            )
        return found

    def line(self) -> str:
        """The rates in words."""
        rates = self.to_json()
        text = (
            f"{rates['videos']} videos, {rates['decisions']} decisions in {rates['seconds']:.1f} s:"
            f" {_words(rates)}"
        )
        if "after_first_batch" in rates:
            text += f"; after the first batch: {_words(rates['after_first_batch'])}"
        return text


def _rates(dialogues: int, videos: int, decisions: int, seconds: float) -> dict[str, float]:
    seconds = max(seconds, 1e-9)
    return {
        "seconds": seconds,
        "dialogues_per_minute": 60.0 * dialogues / seconds,
        "videos_per_minute": 60.0 * videos / seconds,
        "decisions_per_second": decisions / seconds,
    }


def _words(rates: dict[str, Any]) -> str:
    return (
        f"{rates['videos_per_minute']:.1f} videos/min, "
        f"{rates['decisions_per_second']:.1f} decisions/s"
    )
