"""Draws from the replay buffer: every tier's part, and the exact odds within it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from replay_samples import ALL_HARD, graded, make_sample

from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import DRAWS, ReplayBuffer


@pytest.mark.parametrize("how", DRAWS)
def test_each_tier_gives_its_part_once(how):
    stats, samples = graded(8)
    buffer = ReplayBuffer(40, draw=how)
    buffer.add(samples, stats)
    drawn = buffer.draw(10, stats=stats, rng=np.random.default_rng(0), step=0)
    assert [sample.prompt for sample in drawn] == ["18"] * 2 + ["10"] * 4 + ["3"] * 4
    assert len({id(sample) for sample in drawn}) == 10


@pytest.mark.parametrize("how", DRAWS)
def test_what_a_tier_lacks_comes_from_the_others(how):
    stats, samples = graded(6)
    buffer = ReplayBuffer(40, draw=how)
    kept = [sample for sample in samples if sample.prompt != "3"]  # the hard tier is empty
    buffer.add(kept, stats)
    for seed in range(20):
        drawn = buffer.draw(10, stats=stats, rng=np.random.default_rng(seed), step=0)
        prompts = [sample.prompt for sample in drawn]
        assert prompts[:6] == ["18"] * 2 + ["10"] * 4
        assert len({id(sample) for sample in drawn}) == 10
    everything = buffer.draw(50, stats=stats, rng=np.random.default_rng(0), step=0)
    assert {id(sample) for sample in everything} == {id(sample) for sample in kept}


@pytest.mark.parametrize("how", DRAWS)
def test_no_draw_below_the_minimum(how):
    stats, rng = PromptStats(), np.random.default_rng(0)
    buffer = ReplayBuffer(40, minimum=10, draw=how)
    buffer.add([make_sample() for _ in range(9)], stats)
    assert buffer.draw(4, stats=stats, rng=rng, step=0) == []
    buffer.add([make_sample()], stats)
    assert len(buffer.draw(4, stats=stats, rng=rng, step=0)) == 4
    assert buffer.draw(0, stats=stats, rng=rng, step=0) == []
    assert len(buffer) == 10


def test_fifo_draws_the_oldest():
    stats, samples = graded(5)
    buffer = ReplayBuffer(40, draw="fifo")
    buffer.add(samples, stats)
    drawn = buffer.draw(4, stats=stats, rng=np.random.default_rng(0), step=0)
    assert [(s.prompt, s.advantage) for s in drawn] == [
        *(("18", 0.0), ("10", 0.0), ("3", 0.0), ("3", 1.0))
    ]


def frequencies(buffer: ReplayBuffer, count: int, draws: int, key) -> dict[tuple, float]:
    stats, rng = PromptStats(), np.random.default_rng(3)
    found: dict[tuple, float] = {}
    for _ in range(draws):
        drawn = buffer.draw(count, stats=stats, rng=rng, step=0)
        outcome = tuple(key(sample) for sample in drawn)
        found[outcome] = found.get(outcome, 0.0) + 1 / draws
    return found


def assert_odds(found: dict[tuple, float], odds: dict[tuple, float], draws: int) -> None:
    assert math.isclose(sum(odds.values()), 1.0)
    assert set(found) <= {outcome for outcome, chance in odds.items() if chance > 0}
    for outcome, chance in odds.items():
        spread = math.sqrt(chance * (1 - chance) / draws)
        assert abs(found.get(outcome, 0.0) - chance) <= 4.5 * spread + 1e-12


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_priority_draws_by_the_exact_odds(temperature):
    numbers = [(0.9, 0.0), (0.1, 2.0), (-0.4, -1.0), (0.3, 0.5)]  # advantage, kl
    buffer = ReplayBuffer(10, shares=ALL_HARD, minimum=1, temperature=temperature, kl_weight=0.25)
    buffer.add([make_sample(advantage=a, kl=kl) for a, kl in numbers], PromptStats())
    scores = [a - 0.25 * kl for a, kl in numbers]
    weights = [math.exp((score - max(scores)) / temperature) for score in scores]
    odds = {
        (numbers[i][0], numbers[j][0]): weights[i]
        / sum(weights)
        * weights[j]
        / (sum(weights) - weights[i])
        for i, j in itertools.permutations(range(4), 2)
    }
    found = frequencies(buffer, 2, 20_000, lambda sample: sample.advantage)
    assert_odds(found, odds, 20_000)


def test_uniform_draws_by_the_exact_odds():
    buffer = ReplayBuffer(10, shares=ALL_HARD, minimum=1, draw="uniform")
    buffer.add([make_sample(advantage=float(number)) for number in range(4)], PromptStats())
    odds = {pair: 1 / 12 for pair in itertools.permutations((0.0, 1.0, 2.0, 3.0), 2)}
    found = frequencies(buffer, 2, 12_000, lambda sample: sample.advantage)
    assert_odds(found, odds, 12_000)


def test_shortage_is_filled_uniformly():
    """Everything is hard: two of four by priority, the easy and medium ones' parts by chance."""
    buffer = ReplayBuffer(20, minimum=1, temperature=1e-3)
    buffer.add([make_sample(advantage=float(number)) for number in range(6)], PromptStats())
    found = frequencies(buffer, 4, 12_000, lambda sample: sample.advantage)
    odds = {(5.0, 4.0, *pair): 1 / 12 for pair in itertools.permutations((0.0, 1.0, 2.0, 3.0), 2)}
    assert_odds(found, odds, 12_000)


def test_scores_far_apart_are_drawn_in_their_order():
    buffer = ReplayBuffer(30, shares=ALL_HARD, minimum=1)
    values = [-1e6, 3e5, -2e5, 0.0, 1e6]
    extremes = [make_sample(advantage=0.5, kl=math.inf), make_sample(advantage=0.25, kl=math.nan)]
    buffer.add([make_sample(advantage=value) for value in values] + extremes, PromptStats())
    drawn = buffer.draw(9, stats=PromptStats(), rng=np.random.default_rng(0), step=0)
    assert [s.advantage for s in drawn] == [*sorted(values, reverse=True), 0.5, 0.25]


def test_the_same_random_state_draws_the_same():
    stats, samples = graded(8)
    for how in DRAWS:
        buffer = ReplayBuffer(40, draw=how)
        buffer.add(samples, stats)
        one, other = (
            buffer.draw(10, stats=stats, rng=np.random.default_rng(9), step=0) for _ in range(2)
        )
        assert list(map(id, one)) == list(map(id, other))
