"""Choices of buckets for one field of a config, and what each pads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.rollout.buckets import Choice, best_choices, enough, range_costs

MOST_BUCKETS = 6
WORTH = 0.01  # one more bucket must save this share of the slots to be advised


class Lengths(NamedTuple):
    """A histogram's values: ``what`` they count, in tokens."""

    name: str
    what: str
    values: np.ndarray


class Option(NamedTuple):
    """Some buckets.

    ``lengths``: as the config names them; () for halvings. ``rooms``: each bucket's, as text.
    ``shares``: of batches that run in each. ``padding``: share of token slots that hold nothing,
    over all batches.
    """

    lengths: tuple[int, ...]
    rooms: tuple[str, ...]
    shares: tuple[float, ...]
    padding: float


class Advice(NamedTuple):
    """What to do with a field of the config.

    ``now``: the buckets that the config makes. ``options``: the best one, two, ... buckets, as long
    as one more pads less. ``advised``: the one after which more buckets save little.
    """

    field: str
    title: str
    now: Option
    options: tuple[Option, ...]
    advised: Option


def advise(
    field: str,
    title: str,
    below_MM: np.ndarray,
    option: Callable[[Sequence[int]], Option],
    now: Option,
) -> Advice:
    """The best buckets among candidates.

    Args:
      field, title: of the config, and what its buckets are for.
      below_MM: expected slots as in ``rollout.buckets.range_costs``.
      option: what the buckets of these candidates are.
      now: what the config has.
    """
    choices = best_choices(range_costs(below_MM), MOST_BUCKETS)
    made: dict[Choice, Option] = {choice: option(choice.cuts) for choice in choices}
    return Advice(field, title, now, tuple(made.values()), made[enough(choices, WORTH)])


def override(field: str, lengths: Sequence[int]) -> str:
    """The flag that sets a field to these lengths."""
    return f"--config.{field}={','.join(map(str, lengths))}"
