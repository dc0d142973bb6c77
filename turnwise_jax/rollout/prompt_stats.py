"""What a run knows of each prompt: its newest rewards, and how long it has earned nothing."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise_jax.data.hints import is_hinted, plain_id
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.flat_state import (
    Arrays,
    pack_floats,
    pack_ints,
    pack_text,
    unpack_floats,
    unpack_ints,
    unpack_text,
)


@dataclass(eq=False)
class _History:
    """``rewards``: the newest of the window, oldest first; ``average``: theirs, None without."""

    rewards: deque[float]
    average: float | None = None
    seen: int = 0
    streak: int = 0
    kl: float = 0.0
    plain_next: bool = False


class PromptStats:
    """Per prompt: moving average of the total reward, rollouts seen, zero streak, newest KL.

    The moving average is AVATAR's R-bar(q). A hinted prompt has its own id and so its own
    statistics; that a hint helped is noted with the plain prompt (`plain_next`).

    Args:
      window: newest total rewards that the average covers.
    """

    def __init__(self, window: int = 20):
        if window < 1:
            raise InputError(f"must be at least 1, got {window}", field="window")
        self.window = window
        self._histories: dict[str, _History] = {}

    def record(
        self, prompt: str, rewards: Sequence[float], accuracies: Sequence[float], kl: float = 0.0
    ) -> None:
        """Add one visit.

        Args:
          prompt: id; of a hinted visit the hinted id.
          rewards: ``[G]``, total reward of each rollout. What is not finite (the judge failed) is
            left out of average and count.
          accuracies: ``[G]``, the accuracy term alone; NaN neither ends nor lengthens a streak.
          kl: of the visit, nats per token, 0 without a reference; NaN leaves the last one.

        Raises:
          ValueError: not one accuracy per reward.
        """
        if len(rewards) != len(accuracies):
            raise ValueError(f"{len(rewards)} rewards but {len(accuracies)} accuracies")
        history = self._history(prompt)
        known = [float(reward) for reward in rewards if math.isfinite(reward)]
        history.rewards.extend(known)
        history.seen += len(known)
        for accuracy in accuracies:
            if not math.isnan(accuracy):
                history.streak = history.streak + 1 if accuracy <= 0 else 0
        if not math.isnan(kl):
            history.kl = float(kl)
        if is_hinted(prompt):
            plain = self._history(plain_id(prompt))
            plain.plain_next = any(accuracy > 0 for accuracy in accuracies)
        else:
            history.plain_next = False
        _average(history)

    def average(self, prompt: str) -> float:
        """Mean of the newest rewards, 0 if there are none."""
        return self._read(prompt).average or 0.0

    def averages(self) -> dict[str, float]:
        """The mean of every prompt that has one."""
        return {
            prompt: history.average
            for prompt, history in self._histories.items()
            if history.average is not None
        }

    def seen(self, prompt: str) -> int:
        """Rollouts with a known reward so far, also those that left the window."""
        return self._read(prompt).seen

    def streak(self, prompt: str) -> int:
        """How many of the newest rollouts in a row earned no accuracy."""
        return self._read(prompt).streak

    def kl(self, prompt: str) -> float:
        """KL of the newest visit, nats per token; 0 if there is none."""
        return self._read(prompt).kl

    def plain_next(self, prompt: str) -> bool:
        """Whether the last hinted visit earned accuracy and the plain one has not come since."""
        return self._read(prompt).plain_next

    def state(self) -> Arrays:
        """Everything, as flat arrays."""
        histories = self._histories.values()
        return {
            "size": pack_ints([len(histories)]),
            "prompts": pack_text(self._histories),
            "lengths": pack_ints(len(history.rewards) for history in histories),
            "rewards": pack_floats(reward for history in histories for reward in history.rewards),
            "seen": pack_ints(history.seen for history in histories),
            "streak": pack_ints(history.streak for history in histories),
            "kl": pack_floats(history.kl for history in histories),
            "plain_next": pack_ints(history.plain_next for history in histories),
        }

    def load_state(self, arrays: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave; a shorter window keeps the newest rewards."""
        (size,) = unpack_ints(arrays["size"], 1)
        lengths = unpack_ints(arrays["lengths"], size)
        rewards = iter(unpack_floats(arrays["rewards"], sum(lengths)))
        self._histories = {}
        for prompt, length, seen, streak, kl, plain_next in zip(
            unpack_text(arrays["prompts"]),
            lengths,
            unpack_ints(arrays["seen"], size),
            unpack_ints(arrays["streak"], size),
            unpack_floats(arrays["kl"], size),
            unpack_ints(arrays["plain_next"], size),
            strict=True,
        ):
            newest = deque(_take(rewards, length), self.window)
            history = _History(newest, None, seen, streak, kl, bool(plain_next))
            _average(history)
            self._histories[prompt] = history

    def _history(self, prompt: str) -> _History:
        if prompt not in self._histories:
            self._histories[prompt] = _History(deque(maxlen=self.window))
        return self._histories[prompt]

    def _read(self, prompt: str) -> _History:
        return self._histories.get(prompt) or _History(deque())


def _average(history: _History) -> None:
    # `statistics.mean` rounds the exact mean: prompts of equal rewards tie, however many each has,
    # and rounding errors do not part them into tiers
    if history.rewards:
        history.average = statistics.mean(history.rewards)


def _take(values: Iterator[float], count: int) -> list[float]:
    return [next(values) for _ in range(count)]
