"""Statistics per prompt against a list of everything that was recorded."""

from __future__ import annotations

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import tier_of


def mean(values: list[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values)) if values else 0.0


@pytest.mark.parametrize("window", [1, 3, 20])
def test_random_visits_equal_their_whole_record(window):
    rng = np.random.default_rng(window)
    stats = PromptStats(window)
    rewards: dict[str, list[float]] = {}
    accuracies: dict[str, list[float]] = {}
    kls: dict[str, float] = {}
    for _ in range(300):
        prompt = f"p{rng.integers(10)}"
        group = int(rng.integers(1, 6))
        reward = rng.choice([-1.0, 0.1, 0.7, 2.0, math.nan, math.inf], group).tolist()
        accuracy = rng.choice([0.0, 0.0, 0.0, 0.4, math.nan], group).tolist()
        kl = float(rng.choice([0.1, 0.2, math.nan]))
        stats.record(prompt, reward, accuracy, kl)
        rewards.setdefault(prompt, []).extend(r for r in reward if math.isfinite(r))
        accuracies.setdefault(prompt, []).extend(a for a in accuracy if a == a)
        kls[prompt] = kl if kl == kl else kls.get(prompt, 0.0)
        assert stats.average(prompt) == mean(rewards[prompt][-window:])
        assert stats.seen(prompt) == len(rewards[prompt])
        assert stats.kl(prompt) == kls[prompt]
        earned = [place for place, a in enumerate(accuracies[prompt]) if a > 0]
        assert stats.streak(prompt) == len(accuracies[prompt]) - 1 - max(earned, default=-1)
    assert stats.averages() == {p: mean(r[-window:]) for p, r in rewards.items() if r}


def test_a_prompt_with_no_history():
    stats = PromptStats()
    assert (stats.average("new"), stats.seen("new"), stats.streak("new")) == (0.0, 0, 0)
    assert (stats.kl("new"), stats.plain_next("new")) == (0.0, False)
    assert stats.averages() == {}
    stats.record("judge failed", [math.nan], [math.nan], math.nan)
    assert stats.averages() == {}  # no rank among those that have an average


def test_equal_rewards_tie_whatever_their_number():
    stats = PromptStats()
    for count in range(1, 20):
        stats.record(f"p{count}", [0.1] * count, [0.0] * count)
    assert set(stats.averages().values()) == {0.1}
    assert {tier_of(a, stats.averages().values()) for a in stats.averages().values()} == {"hard"}


def test_averages_are_a_copy():
    stats = PromptStats()
    stats.record("p", [1.0], [1.0])
    stats.averages()["p"] = 9.0
    assert stats.average("p") == 1.0


def test_hinted_and_plain_visits_are_kept_apart():
    stats = PromptStats()
    stats.record("p", [0.0, 0.0], [0.0, 0.0], 0.2)
    stats.record("p+hint", [1.0, 2.0], [1.0, 0.0], 0.3)
    assert (stats.average("p"), stats.average("p+hint")) == (0.0, 1.5)
    assert (stats.streak("p"), stats.streak("p+hint")) == (2, 1)
    assert (stats.kl("p"), stats.kl("p+hint")) == (0.2, 0.3)


def fill(stats: PromptStats) -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        prompt = f"prömpt {rng.integers(7)}" + "+hint" * int(rng.integers(2))
        accuracy = rng.integers(0, 2, 3).astype(float).tolist()
        stats.record(prompt, rng.normal(size=3).tolist(), accuracy, float(rng.random()))
    stats.record("no reward", [math.nan], [0.0], 0.5)


@pytest.mark.parametrize("full", [False, True])
def test_saving_is_exact(full):
    stats, copy = PromptStats(5), PromptStats(5)
    copy.record("goes away", [1.0], [1.0])
    if full:
        fill(stats)
    state = stats.state()
    for array in state.values():
        assert array.ndim == 1
        assert array.size > 0
        assert array.dtype.itemsize <= 4
    copy.load_state({name: jnp.asarray(array) for name, array in state.items()})
    for _ in range(2):
        assert copy.averages() == stats.averages()
        assert list(copy.averages()) == list(stats.averages())
        for name, array in stats.state().items():
            np.testing.assert_array_equal(copy.state()[name], array)
        fill(stats)
        fill(copy)


def test_a_shorter_window_keeps_the_newest():
    stats, short = PromptStats(5), PromptStats(2)
    stats.record("p", [9.0, 9.0, 9.0, 1.0, 2.0], [1.0] * 5)
    short.load_state(stats.state())
    assert short.average("p") == 1.5
    assert short.seen("p") == 5


def test_bad_arguments():
    with pytest.raises(InputError, match="window"):
        PromptStats(0)
    with pytest.raises(ValueError, match="2 rewards but 1"):
        PromptStats().record("p", [1.0, 1.0], [1.0])
