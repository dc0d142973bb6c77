"""Stratified replay: finished rollouts kept on the host in tiers by the difficulty of their prompt.

AVATAR, section "Replay Buffer": tiers Easy (25 %), Medium (35 %) and Hard (40 %) by the moving
average reward of the prompt, each of a fixed capacity, so that easy samples turn over quickly and
hard ones stay. A sample holds what the policy sampled; what the prompt shows belongs to the prompt
and is not kept here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.flat_state import (
    Arrays,
    pack_floats,
    pack_ints,
    pack_ragged,
    pack_text,
    unpack_floats,
    unpack_ints,
    unpack_ragged,
    unpack_text,
)
from turnwise_jax.rollout.prompt_stats import PromptStats

TIERS = ("easy", "medium", "hard")
SHARES = (0.25, 0.35, 0.40)  # of the capacity and of each draw, in the order of TIERS
DRAWS = ("priority", "fifo", "uniform")

_HARD = TIERS.index("hard")


@dataclass(frozen=True, eq=False)
class Sample:
    """One finished rollout of a prompt.

    ``tokens``: int32 ``[L]``, sampled ids, end marker included. ``logp``: f32 ``[L]``, log-prob of
    each under the policy that sampled it, ``ref_logp``: f32 ``[L]``, under the reference.
    ``truncated``: the end marker was not reached. ``reward``: total. ``advantage``: when it was
    generated. ``kl``: mean over the tokens of ``logp - ref_logp``, nats. ``step``: update at which
    it was generated. Arrays are copied, so that a row does not keep its whole batch in memory.

    Raises:
      ValueError: arrays of different shapes, or not one axis.
    """

    prompt: str
    tokens: np.ndarray
    logp: np.ndarray
    ref_logp: np.ndarray
    truncated: bool
    reward: float
    advantage: float
    kl: float
    step: int

    def __post_init__(self):
        for name, dtype in (("tokens", np.int32), ("logp", np.float32), ("ref_logp", np.float32)):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype))
        shapes = {self.tokens.shape, self.logp.shape, self.ref_logp.shape}
        if len(shapes) > 1 or self.tokens.ndim != 1:
            raise ValueError(f"tokens and log-probs of one shape [L] expected, got {shapes}")


def tier_of(
    average: float, all_averages: Collection[float], shares: Sequence[float] = SHARES
) -> str:
    """Tier of a prompt by the rank of its moving average among those of all prompts.

    Up to the 40th percentile hard, up to the 75th medium, above easy. Percentiles are nearest
    ranks: place ``round(q (n - 1))`` of the sorted values, halves to even. Without any average
    everything is hard. ``shares``: of (easy, medium, hard), which set the percentiles.
    """
    return TIERS[_tier(average, _limits(all_averages, shares))]


def tier_counts(count: int, shares: Sequence[float] = SHARES) -> tuple[int, ...]:
    """``count`` divided by the shares, as draws are.

    Each share is rounded; what is too much goes from the largest (the easiest of equal ones), what
    is missing goes to the hard tier. 4 gives 1, 1, 2.
    """
    parts = [round(share * count) for share in shares]
    while sum(parts) > count:
        parts[parts.index(max(parts))] -= 1
    parts[_HARD] += count - sum(parts)
    return tuple(parts)


def tier_capacities(capacity: int, shares: Sequence[float] = SHARES) -> tuple[int, ...]:
    """Room of each tier: rounded shares, the hard tier has the rest, none less than 1."""
    parts = [max(1, round(share * capacity)) for share in shares[:_HARD]]
    while sum(parts) > capacity - 1:
        parts[parts.index(max(parts))] -= 1
    return (*parts, capacity - sum(parts))


class ReplayBuffer:
    """At most ``capacity`` samples in three tiers.

    Args:
      capacity: samples in all, at least 3.
      shares: of (easy, medium, hard), of sum 1.
      draw: inside a tier, ``priority``: by weight ``exp((score - max) / temperature)`` with
        ``score = advantage - kl_weight * kl``; ``fifo``: the oldest; ``uniform``.
      temperature: of ``priority``.
      minimum: fewest samples fit to be drawn before anything is.
      max_age: updates after which a sample is never drawn and leaves with the next `add`; 0: never.
      kl_weight: see ``draw``.

    Raises:
      InputError: a value out of its range; names it.
    """

    def __init__(
        self,
        capacity: int,
        *,
        shares: Sequence[float] = SHARES,
        draw: str = "priority",
        temperature: float = 1.0,
        minimum: int = 10,
        max_age: int = 0,
        kl_weight: float = 0.1,
    ):
        _check(capacity, shares, draw, temperature, minimum, max_age, kl_weight)
        self.capacity = capacity
        self.shares = tuple(shares)
        self.capacities = tier_capacities(capacity, shares)
        self.minimum = minimum
        self.max_age = max_age
        self.kl_weight = kl_weight
        self.temperature = temperature
        self._how = draw
        self._samples: list[Sample] = []  # oldest first
        self._tiers: list[int] = []  # of each sample, as of the last `add`
        self._step = 0  # the newest that `add` or `draw` was told of

    def __len__(self) -> int:
        return len(self._samples)

    def sizes(self) -> dict[str, int]:
        """Samples in each tier, as of the last `add`."""
        return {name: self._tiers.count(tier) for tier, name in enumerate(TIERS)}

    def mean_age(self, step: int) -> float:
        """Mean over the samples of the updates since each was generated; 0 without any."""
        if not self._samples:
            return 0.0
        return step - sum(sample.step for sample in self._samples) / len(self._samples)

    def add(self, samples: Sequence[Sample], stats: PromptStats) -> None:
        """Insert, tier every sample anew by its prompt's average, evict the oldest of full tiers.

        Record the samples' rewards in ``stats`` first. Samples whose reward or advantage is NaN
        are left out: without a judge's answer they teach nothing.
        """
        self._step = max([self._step, *(sample.step for sample in samples)])
        good = (s for s in samples if not (math.isnan(s.reward) or math.isnan(s.advantage)))
        self._samples = [s for s in (*self._samples, *good) if self._fresh(s, self._step)]
        self._tiers = self._place(self._samples, stats)
        self._evict()

    def draw(
        self, count: int, *, stats: PromptStats, rng: np.random.Generator, step: int
    ) -> list[Sample]:
        """Up to ``count`` different samples, the easy ones first; none below the minimum.

        Each tier gives its part (`tier_counts`) by the present averages. What a tier lacks is made
        up uniformly from all that is left. Samples stay in the buffer.

        Args:
          rng: with the same state, the same samples are drawn.
          step: the update that will train on them.
        """
        self._step = max(self._step, step)
        samples = [sample for sample in self._samples if self._fresh(sample, step)]
        if len(samples) < self.minimum:
            return []
        tiers = np.array(self._place(samples, stats))
        chosen: list[int] = []
        for tier, part in enumerate(tier_counts(count, self.shares)):
            members = np.flatnonzero(tiers == tier)
            chosen += members[self._order(samples, members, rng)[:part]].tolist()
        left = np.setdiff1d(np.arange(len(samples)), chosen)
        chosen += rng.permutation(left)[: count - len(chosen)].tolist()
        return [samples[index] for index in chosen]

    def state(self) -> Arrays:
        """Everything, in order, as flat arrays."""
        samples = self._samples
        index = {prompt: place for place, prompt in enumerate(_prompts(samples))}
        return {
            "size": pack_ints([len(samples)]),
            "step": pack_ints([self._step]),
            "prompts": pack_text(index),
            "prompt": pack_ints(index[sample.prompt] for sample in samples),
            "lengths": pack_ints(len(sample.tokens) for sample in samples),
            "tokens": pack_ragged([sample.tokens for sample in samples], np.int32),
            "logp": pack_ragged([sample.logp for sample in samples], np.float32),
            "ref_logp": pack_ragged([sample.ref_logp for sample in samples], np.float32),
            "truncated": pack_ints(sample.truncated for sample in samples),
            "reward": pack_floats(sample.reward for sample in samples),
            "advantage": pack_floats(sample.advantage for sample in samples),
            "kl": pack_floats(sample.kl for sample in samples),
            "steps": pack_ints(sample.step for sample in samples),
            "tiers": pack_ints(self._tiers),
        }

    def load_state(self, arrays: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave; a smaller buffer keeps the newest of each tier."""
        (size,) = unpack_ints(arrays["size"], 1)
        (self._step,) = unpack_ints(arrays["step"], 1)
        lengths = unpack_ints(arrays["lengths"], size)
        prompts = unpack_text(arrays["prompts"])
        columns = zip(
            (prompts[place] for place in unpack_ints(arrays["prompt"], size)),
            *(unpack_ragged(arrays[name], lengths) for name in ("tokens", "logp", "ref_logp")),
            map(bool, unpack_ints(arrays["truncated"], size)),
            *(unpack_floats(arrays[name], size) for name in ("reward", "advantage", "kl")),
            unpack_ints(arrays["steps"], size),
            strict=True,
        )
        self._samples = [Sample(*values) for values in columns]
        self._tiers = unpack_ints(arrays["tiers"], size)
        self._evict()

    def _fresh(self, sample: Sample, step: int) -> bool:
        return self.max_age == 0 or step - sample.step <= self.max_age

    def _place(self, samples: Sequence[Sample], stats: PromptStats) -> list[int]:
        averages = stats.averages()
        limits = _limits(averages.values(), self.shares)
        tiers = {prompt: _tier(averages.get(prompt, 0.0), limits) for prompt in _prompts(samples)}
        return [tiers[sample.prompt] for sample in samples]

    def _evict(self) -> None:
        room = list(self.capacities)
        kept = []
        for place in reversed(range(len(self._samples))):
            if room[self._tiers[place]]:
                room[self._tiers[place]] -= 1
                kept.append(place)
        kept.reverse()
        self._samples = [self._samples[place] for place in kept]
        self._tiers = [self._tiers[place] for place in kept]

    def _order(
        self, samples: Sequence[Sample], members: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Places in ``members`` in the order in which they are drawn."""
        if self._how == "fifo":
            return np.arange(len(members))
        if self._how == "uniform":
            return rng.permutation(len(members))
        score = [samples[m].advantage - self.kl_weight * samples[m].kl for m in members]
        # Gumbel noise on the log-weights, sorted: one draw after the other without replacement, and
        # no weight is rounded to 0 however low its score is
        keys = np.array(score) / self.temperature + rng.gumbel(size=len(members))
        return np.argsort(-np.where(np.isnan(keys), -np.inf, keys), kind="stable")


def _prompts(samples: Sequence[Sample]) -> list[str]:
    """Each once, in order of first appearance."""
    return list(dict.fromkeys(sample.prompt for sample in samples))


def _limits(averages: Collection[float], shares: Sequence[float]) -> tuple[float, float]:
    """Highest average of the hard and of the medium tier."""
    if not averages:
        return math.inf, math.inf
    ordered = sorted(averages)
    easy, _, hard = shares
    low, high = (ordered[round(q * (len(ordered) - 1))] for q in (hard, 1 - easy))
    return low, high


def _tier(average: float, limits: tuple[float, float]) -> int:
    return 2 if average <= limits[0] else 1 if average <= limits[1] else 0


def _check(capacity, shares, draw, temperature, minimum, max_age, kl_weight) -> None:
    if len(shares) != len(TIERS) or min(shares) < 0 or not math.isclose(sum(shares), 1):
        raise InputError(
            f"give three shares (easy, medium, hard) of sum 1, got {tuple(shares)}", field="shares"
        )
    if draw not in DRAWS:
        raise InputError(f"must be one of {', '.join(DRAWS)}, got {draw!r}", field="draw")
    for field, value, least in (
        ("capacity", capacity, len(TIERS)),
        ("minimum", minimum, 0),
        ("max_age", max_age, 0),
    ):
        if value < least:
            raise InputError(f"must be at least {least}, got {value}", field=field)
    if not temperature > 0:
        raise InputError(f"must be above 0, got {temperature}", field="temperature")
    if not math.isfinite(kl_weight):
        raise InputError(f"must be a finite number, got {kl_weight}", field="kl_weight")
