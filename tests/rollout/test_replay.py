"""The replay buffer against a slow reading of the same rules, its draws against exact odds."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from decimal import ROUND_HALF_EVEN, Decimal

import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import (
    DRAWS,
    SHARES,
    TIERS,
    ReplayBuffer,
    Sample,
    tier_capacities,
    tier_counts,
    tier_of,
)

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


# --- draws ----------------------------------------------------------------------------------------


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


# --- saving, size, settings -----------------------------------------------------------------------


class Life:
    """A run in small: visits, records, draws; `step` by `step`."""

    def __init__(self, how: str, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.stats = PromptStats(window=4)
        self.buffer = ReplayBuffer(25, draw=how, minimum=5, max_age=9)

    def step(self, step: int) -> list[Sample]:
        drawn = self.buffer.draw(4, stats=self.stats, rng=self.rng, step=step)
        prompt = f"näme {self.rng.integers(9)}"
        rewards = self.rng.normal(size=4)
        self.stats.record(prompt, rewards.tolist(), [0.0] * 4, float(self.rng.random()))
        fresh = [
            make_sample(
                *(prompt, int(self.rng.integers(1, 6)), step),
                reward=float(reward),
                advantage=float(reward) / 3,
                kl=float(self.rng.normal()),
            )
            for reward in rewards
        ]
        self.buffer.add(fresh, self.stats)
        return drawn


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.parametrize("stop", [0, 1, 2, 30])
def test_a_saved_run_goes_on_as_if_nothing_had_happened(tmp_path, how, stop):
    whole = Life(how)
    for step in range(stop):
        whole.step(step)
    arrays = {**whole.buffer.state(), **{f"of {k}": v for k, v in whole.stats.state().items()}}
    np.savez(tmp_path / "state.npz", **arrays)
    again = Life(how, seed=1)
    again.rng.bit_generator.state = whole.rng.bit_generator.state
    again.step(50)  # what was there before does not matter
    again.rng.bit_generator.state = whole.rng.bit_generator.state
    with np.load(tmp_path / "state.npz") as file:
        again.buffer.load_state(file)
        again.stats.load_state({name: file[f"of {name}"] for name in whole.stats.state()})
    for step in range(stop, stop + 25):
        assert same_list(whole.step(step), again.step(step))
        assert whole.buffer.sizes() == again.buffer.sizes()
    for name, array in whole.buffer.state().items():
        np.testing.assert_array_equal(again.buffer.state()[name], array)


def test_the_state_is_flat_never_empty_and_survives_32_bit_arrays():
    life, empty = Life("priority"), Life("priority")
    for step in range(20):
        life.step(step)
    for state in (life.buffer.state(), empty.buffer.state()):
        for array in state.values():
            assert array.ndim == 1
            assert array.size > 0
            assert array.dtype.itemsize <= 4
    copy = Life("priority")
    copy.buffer.load_state({name: jnp.asarray(a) for name, a in life.buffer.state().items()})
    drawn = [
        b.draw(99, stats=life.stats, rng=np.random.default_rng(0), step=20)
        for b in (life.buffer, copy.buffer)
    ]
    assert len(drawn[0]) > 10
    assert same_list(*drawn)


def test_samples_without_a_token_survive_saving():
    buffer, copy = ReplayBuffer(10, minimum=0), ReplayBuffer(10, minimum=0)
    samples = [make_sample(length=length) for length in (0, 2, 0)]
    for some in (samples[:1], samples):
        buffer.add(some, PromptStats())
        copy.load_state(buffer.state())
        assert sum(len(s.tokens) for s in copy.draw(**everything())) == sum(
            len(s.tokens) for s in some
        )


def everything() -> dict:
    return {"count": 99, "stats": PromptStats(), "rng": np.random.default_rng(0), "step": 0}


def test_a_smaller_buffer_takes_the_newest():
    stats, samples = graded(8)
    large, small = ReplayBuffer(100, draw="fifo"), ReplayBuffer(4, draw="fifo", minimum=0)
    large.add(samples, stats)
    small.load_state(large.state())
    assert small.sizes() == {"easy": 1, "medium": 1, "hard": 2}
    drawn = small.draw(4, stats=stats, rng=np.random.default_rng(0), step=0)
    assert sorted(sample.advantage for sample in drawn) == [6.0, 7.0, 7.0, 7.0]


def test_memory_stays_bounded():
    stats, buffer = PromptStats(), ReplayBuffer(60, max_age=500)
    rng = np.random.default_rng(0)
    sizes = []
    tracemalloc.start()
    try:
        for step in range(20_000):
            prompt = str(rng.integers(40))
            reward = float(rng.integers(3))
            batch = np.zeros((4, 256), np.int32)  # a row of it must not keep the others
            row = batch[0, : rng.integers(1, 30)]
            stats.record(prompt, [reward], [reward], 0.1)
            buffer.add([Sample(prompt, row, row, row, False, reward, 1.0, 0.1, step)], stats)
            if step % 10 == 0:
                buffer.draw(4, stats=stats, rng=rng, step=step)
            if step % 2000 == 1999:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(buffer) <= 60
    assert max(sizes) < 200_000
    assert max(sizes[2:]) < 1.05 * max(sizes[:2])


def test_a_full_buffer_of_ten_thousand_stays_quick():
    """Bound far above what it takes, far below what comparing all pairs would."""
    rng = np.random.default_rng(0)
    stats = stats_of({str(number): float(rng.random()) for number in range(5000)})
    buffer = ReplayBuffer(10_000)
    buffer.add([make_sample(str(rng.integers(5000))) for _ in range(20_000)], stats)
    assert len(buffer) == 10_000
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        buffer.add([make_sample(str(number)) for number in range(8)], stats)
        buffer.draw(4, stats=stats, rng=rng, step=0)
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.3


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
