"""A trajectory as text, and what a reward makes of it before any judge is asked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turnwise_jax.rewards.judges.protocol import Request

SILENCE = "NO REPLY"


def is_silent(text: str) -> bool:
    """Silence is ``NO REPLY`` after stripping blanks; an empty reply is a reply (facts 2)."""
    return text.strip() == SILENCE


class ReplyWindow(NamedTuple):
    """An annotated window (seconds, ends inclusive), its question and its reference answer."""

    start: float
    end: float
    question: str
    answer: str


class TurnForm(NamedTuple):
    """How a turn was written: in the form that its style asks for, and the tokens of its think
    block, tags included; None without one."""

    well_formed: bool = True
    thought_tokens: int | None = None


class Trajectory(NamedTuple):
    """One rollout as text: K decision times (seconds, non-decreasing) and the K replies at them.

    ``history`` holds the assistant's non-silent replies of the given past, oldest first. Replies
    are what the user sees, or ``NO REPLY``; ``forms`` says how they were written, one per turn, or
    is empty where every turn is plain. ``raw`` holds what was sampled where that is not the reply.
    """

    id: str
    times: tuple[float, ...]
    replies: tuple[str, ...]
    windows: tuple[ReplyWindow, ...] = ()
    history: tuple[str, ...] = ()
    forms: tuple[TurnForm, ...] = ()
    raw: tuple[str, ...] = ()

    @property
    def spoken(self) -> dict[int, str]:
        """Turn index -> stripped text of each non-silent reply, in order."""
        return {k: text.strip() for k, text in enumerate(self.replies) if not is_silent(text)}

    @property
    def past(self) -> list[str]:
        """Stripped non-silent replies of the history."""
        return [text.strip() for text in self.history if not is_silent(text)]

    @property
    def counted(self) -> list[ReplyWindow]:
        """The windows that start by the last decision, in the order given."""
        return [window for window in self.windows if window.start <= self.horizon]

    @property
    def well_formed(self) -> float:
        """Share of well-formed turns; 0 without a turn."""
        if not self.times:
            return 0.0
        return sum(form.well_formed for form in self.forms or (TurnForm(),)) / (
            len(self.forms) or 1
        )

    @property
    def horizon(self) -> float:
        """Time of the last decision; windows that start later are skipped."""
        return self.times[-1] if self.times else -np.inf


class Settings(NamedTuple):
    """What rewards may need beside the trajectory. ``prefix_chars``: see `shared_prefix`."""

    prefix_chars: int = 50


class Plan(NamedTuple):
    """Values of one reward for one trajectory, [K] or [K, W], and what is still to be asked.

    ``values`` holds what is known without a judge, NaN elsewhere; ``asks`` are the positions that a
    judge fills and the requests that do it. A failed request leaves its NaN.
    """

    values: np.ndarray
    asks: tuple[tuple[tuple[int, ...], Request], ...] = ()
