"""Samples for the tests of the replay buffer."""

from __future__ import annotations

import numpy as np

from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import TIERS, Sample

ALL_HARD = (0.0, 0.0, 1.0)


def make_sample(prompt="p", length=3, step=0, **values) -> Sample:
    """``values``: reward, advantage, kl; the tokens are 0, 1, ..."""
    numbers = {"reward": 0.0, "advantage": 0.0, "kl": 0.0, **values}
    tokens = np.arange(length)
    return Sample(prompt, tokens, -0.5 * tokens, -0.25 * tokens, length > 3, step=step, **numbers)


def stats_of(averages: dict[str, float]) -> PromptStats:
    stats = PromptStats()
    for prompt, average in averages.items():
        stats.record(prompt, [average], [1.0])
    return stats


def graded(per_tier: int) -> tuple[PromptStats, list[Sample]]:
    """Prompts 0..19, their averages as high as their number, ``per_tier`` samples of each tier."""
    stats = stats_of({str(number): float(number) for number in range(20)})
    prompts = {"hard": "3", "medium": "10", "easy": "18"}
    return stats, [
        make_sample(prompts[tier], advantage=float(number))
        for tier in TIERS
        for number in range(per_tier)
    ]


def same(one: Sample, other: Sample) -> bool:
    for name, value in vars(one).items():
        if isinstance(value, np.ndarray):
            given = getattr(other, name)
            if value.dtype != given.dtype or not np.array_equal(value, given):
                return False
        elif type(value) is not type(getattr(other, name)) or value != getattr(other, name):
            return False
    return True


def same_list(some: list[Sample], others: list[Sample]) -> bool:
    return len(some) == len(others) and all(map(same, some, others))


def everything() -> dict:
    return {"count": 99, "stats": PromptStats(), "rng": np.random.default_rng(0), "step": 0}
