"""How much of a run's time went into waiting for input, from its own log."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from turnwise_jax.train.metrics import TIMING, read_jsonl


class Starvation(NamedTuple):
    """Seconds of all steps, of all processes that made the run, and seconds waited for input.

    Input is read once examples are decoded and laid out in arrays. What a step does with them, and
    what is done before the first step, is not counted.
    """

    steps: int
    seconds: float
    waited: float

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.waited / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        return (
            f"input: waited {self.waited:.1f} s of the {self.seconds:.1f} s of {self.steps} steps "
            f"({100 * self.share:.1f} %)"
        )


def starvation(directory: Path) -> Starvation:
    """Of all steps in a run's directory; an interrupted run's so far."""
    steps = read_jsonl(directory / TIMING)
    return Starvation(
        len(steps),
        sum(step["seconds"] for step in steps),
        sum(step.get("data_wait", 0.0) for step in steps),
    )
