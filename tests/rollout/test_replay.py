"""The replay buffer against a slow reading of the same rules: tiers, and what is held."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from replay_samples import ALL_HARD, graded, make_sample, stats_of

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import (
    SHARES,
    TIERS,
    ReplayBuffer,
    Sample,
    tier_capacities,
    tier_counts,
    tier_of,
)

# --- the rules read slowly ------------------------------------------------------------------------


def nearest(value: Decimal) -> int:
    return int(value.quantize(Decimal(1), ROUND_HALF_EVEN))


def counted_tier(average: float, averages: list[float]) -> str:
    """The k-th smallest is at least `average` just if at most k values lie below."""
    below = sum(other < average for other in averages)
    for tier, percentile in (("hard", "0.40"), ("medium", "0.75")):
        if below <= nearest(Decimal(percentile) * (max(len(averages), 1) - 1)):
            return tier
    return "easy"


class SlowBuffer:
    """Keeps every sample ever added and works out from the start which are held."""

    def __init__(self, capacity: int, max_age: int):
        self.room = {
            "easy": max(1, nearest(Decimal("0.25") * capacity)),
            "medium": max(1, nearest(Decimal("0.35") * capacity)),
        }
        self.room["hard"] = capacity - sum(self.room.values())
        self.max_age = max_age
        self.held: list[tuple[Sample, str]] = []

    def add(self, samples: list[Sample], averages: dict[str, float], now: int) -> None:
        held = [sample for sample, _ in self.held]
        held += [sample for sample in samples if sample.reward == sample.reward]
        if self.max_age:
            held = [sample for sample in held if sample.step >= now - self.max_age]
        tiers = [counted_tier(averages.get(s.prompt, 0.0), list(averages.values())) for s in held]
        self.held = [
            (sample, tier)
            for place, (sample, tier) in enumerate(zip(held, tiers, strict=True))
            if tiers[place + 1 :].count(tier) < self.room[tier]
        ]

    def sizes(self) -> dict[str, int]:
        return {tier: sum(kept == tier for _, kept in self.held) for tier in TIERS}


# --- tiers ----------------------------------------------------------------------------------------


def test_tiers_equal_counted_ranks():
    rng = np.random.default_rng(0)
    for size in [*range(1, 40), 101, 102]:
        averages = rng.integers(0, size + 1, size) / 4  # with ties
        for average in (*averages, -1.0, 99.0, 0.1):
            assert tier_of(average, averages.tolist()) == counted_tier(average, averages.tolist())


def test_tiers_by_hand():
    averages = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]  # ranks 0.4 * 5 = 2 and 0.75 * 5 = 3.75, so 4
    assert [tier_of(average, averages) for average in averages] == [
        *("hard", "hard", "hard", "medium", "medium", "easy")
    ]
    assert tier_of(1.0, []) == "hard"
    assert tier_of(0.7, [0.7]) == "hard"
    assert tier_of(0.7, [0.7] * 50) == "hard"
    assert [tier_of(a, [0.0, 1.0, 2.0, 3.0], (0.5, 0.0, 0.5)) for a in (2.0, 2.5)] == [
        *("hard", "easy")
    ]


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (0, (0, 0, 0)),
        (1, (0, 0, 1)),
        (2, (0, 1, 1)),
        (3, (1, 1, 1)),
        (4, (1, 1, 2)),
        (5, (1, 2, 2)),
        (6, (2, 2, 2)),
        (7, (2, 2, 3)),
        (8, (2, 3, 3)),
        (10, (2, 4, 4)),
    ],
)
def test_draw_parts_by_hand(count, parts):
    assert tier_counts(count) == parts


def test_draw_parts_are_corrected_to_the_count():
    thirds = (1 / 3, 1 / 3, 1 / 3)
    assert tier_counts(4, thirds) == (1, 1, 2)  # 1 missing: to the hard tier
    assert tier_counts(5, thirds) == (1, 2, 2)  # 1 too many: from the easiest of the largest
    rng = np.random.default_rng(1)
    for _ in range(500):
        shares, count = rng.dirichlet([0.5, 0.5, 0.5]), int(rng.integers(60))
        parts = tier_counts(count, shares)
        assert sum(parts) == count
        assert min(parts) >= 0
        assert all(
            abs(part - share * count) <= 2 for part, share in zip(parts, shares, strict=True)
        )


@pytest.mark.parametrize(
    ("capacity", "room"),
    [(3, (1, 1, 1)), (4, (1, 1, 2)), (10, (2, 4, 4)), (10_000, (2500, 3500, 4000))],
)
def test_capacities_by_hand(capacity, room):
    assert tier_capacities(capacity) == room


def test_capacities_fill_the_buffer_with_room_in_every_tier():
    rng = np.random.default_rng(2)
    for capacity in [*range(3, 40), 999]:
        for shares in [SHARES, ALL_HARD, (1.0, 0.0, 0.0), (0.5, 0.5, 0.0), rng.dirichlet([1] * 3)]:
            room = tier_capacities(capacity, shares)
            assert sum(room) == capacity
            assert min(room) >= 1


# --- what is held ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_age", [0, 4])
def test_buffer_holds_what_the_rules_say(seed, max_age):
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(3, 30))
    buffer = ReplayBuffer(capacity, max_age=max_age, draw="fifo", minimum=0)
    slow, stats = SlowBuffer(capacity, max_age), PromptStats(window=5)
    now = 0
    for step in range(60):
        samples = []
        for prompt in rng.choice(12, int(rng.integers(0, 4)), replace=False):
            reward = float(rng.choice([-1.0, 0.0, 0.5, 1.0, math.nan]))
            if rng.random() < 0.9:  # else a prompt may have no history at all
                stats.record(str(prompt), [reward], [0.0])
            at = max(0, step - int(rng.integers(3)))
            samples += [make_sample(str(prompt), step=at, reward=reward) for _ in range(2)]
        now = max([now, *(sample.step for sample in samples)])
        buffer.add(samples, stats)
        slow.add(samples, stats.averages(), now)
        assert buffer.sizes() == slow.sizes()
        assert len(buffer) == len(slow.held) <= capacity
        assert all(size <= slow.room[tier] for tier, size in buffer.sizes().items())
        everything = buffer.draw(99, stats=stats, rng=rng, step=now)
        assert {id(sample) for sample in everything} == {id(sample) for sample, _ in slow.held}


def test_samples_follow_the_average_of_their_prompt():
    stats = stats_of({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0})
    buffer = ReplayBuffer(12, minimum=0, draw="fifo")  # 3 easy, 4 medium, 5 hard
    samples = [make_sample("a", advantage=float(number)) for number in range(6)]
    buffer.add(samples, stats)
    assert buffer.sizes() == {"easy": 0, "medium": 0, "hard": 5}
    stats.record("a", [5.0], [1.0])  # now far above the others
    buffer.add([make_sample("b")], stats)
    assert buffer.sizes() == {"easy": 3, "medium": 0, "hard": 1}
    drawn = buffer.draw(12, stats=stats, rng=np.random.default_rng(0), step=0)
    assert [sample.advantage for sample in drawn if sample.prompt == "a"] == [3.0, 4.0, 5.0]


def test_draws_use_the_averages_of_now():
    stats, samples = graded(4)
    buffer = ReplayBuffer(40, minimum=0)
    buffer.add(samples, stats)
    for _ in range(40):
        stats.record("3", [99.0], [1.0])  # was hard, is the easiest
    drawn = buffer.draw(4, stats=stats, rng=np.random.default_rng(0), step=0)
    # hard has nothing of its own any more, so its two come from anywhere
    assert drawn[0].prompt in ("3", "18")
    assert drawn[1].prompt == "10"
    assert len({id(sample) for sample in drawn}) == 4


def test_a_sample_without_reward_or_advantage_is_left_out():
    buffer = ReplayBuffer(10, minimum=0)
    bad = [make_sample(reward=math.nan), make_sample(advantage=math.nan)]
    buffer.add([*bad, make_sample(reward=1.0)], PromptStats())
    assert len(buffer) == 1


def test_nothing_added_is_nothing_held():
    buffer = ReplayBuffer(10, minimum=0)
    buffer.add([], PromptStats())
    assert len(buffer) == 0
    assert buffer.mean_age(7) == 0.0
    assert buffer.draw(3, stats=PromptStats(), rng=np.random.default_rng(0), step=0) == []


def test_mean_age():
    buffer = ReplayBuffer(10)
    buffer.add([make_sample(step=step) for step in (1, 2, 6)], PromptStats())
    assert buffer.mean_age(10) == 7.0


def test_old_samples_are_not_drawn_and_leave():
    stats, rng = PromptStats(), np.random.default_rng(0)
    buffer = ReplayBuffer(20, max_age=3, minimum=2)
    buffer.add([make_sample(step=step) for step in (0, 1, 2)], stats)
    assert {sample.step for sample in buffer.draw(9, stats=stats, rng=rng, step=3)} == {0, 1, 2}
    assert {sample.step for sample in buffer.draw(9, stats=stats, rng=rng, step=4)} == {1, 2}
    assert len(buffer) == 3
    assert buffer.draw(9, stats=stats, rng=rng, step=5) == []  # one left, two are needed
    buffer.add([], stats)
    assert len(buffer) == 1


def test_one_token_and_ragged_samples_are_kept_as_given():
    batch = np.arange(40, dtype=np.int64).reshape(4, 10)
    sample = Sample("q", batch[1, :1], batch[1, :1] / 3, batch[1, :1] / 7, True, 1.0, 0.5, 0.1, 3)
    assert (sample.tokens.dtype, sample.logp.dtype) == (np.int32, np.float32)
    assert sample.tokens.tolist() == [10]
    assert all(array.base is None for array in (sample.tokens, sample.logp, sample.ref_logp))
    batch[:] = 0
    assert sample.tokens.tolist() == [10]


@pytest.mark.parametrize("shape", [(2,), (1, 3), ()])
def test_arrays_of_one_sample_have_one_shape(shape):
    good = np.zeros(3)
    with pytest.raises(ValueError, match="shape"):
        Sample("q", good, np.zeros(shape), good, False, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity", 2),
        ("shares", (0.5, 0.5)),
        ("shares", (0.5, 0.6, -0.1)),
        ("shares", (0.3, 0.3, 0.3)),
        ("draw", "best"),
        ("temperature", 0.0),
        ("temperature", math.nan),
        ("minimum", -1),
        ("max_age", -1),
        ("kl_weight", math.inf),
    ],
)
def test_settings_out_of_range_are_named(field, value):
    with pytest.raises(InputError) as caught:
        ReplayBuffer(**{"capacity": 10, field: value})
    assert caught.value.field == field
