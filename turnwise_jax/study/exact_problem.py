"""A streaming problem small enough to enumerate: every reply, every trajectory, every score.

There is one fact for each reply window. At each of K decisions the policy is silent, tells a fact
briefly or tells it at length. Told in its own window a fact earns its judge score, in another one
nothing; told again in no more detail it is repetitive, and a long text said twice shares its
opening. So with W facts there are ``1 + 2 W`` replies and ``(1 + 2 W)^K`` trajectories, all scored
by the real kernels with eq. 1.

Axes besides those of the kernels: N trajectories, A tokens of a trajectory, S slots (entries of the
policy's tables, see ``exact_policy``).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from turnwise_jax import kernels
from turnwise_jax.errors import InputError

MAX_TRAJECTORIES = 1_500  # their products are held in memory, K N^2 numbers for each reduction
FORCED = -1  # slot of a token that leaves no choice
BRIEF, LONG = 1, 2  # levels of detail; 0 is untold
KINDS = ("silence", "brief", "long")


@dataclass(frozen=True)
class Setting:
    """The problem's fields (``config.problem``). Times are seconds, lengths are tokens."""

    times: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0)  # of the K decisions
    windows: tuple[tuple[float, float], ...] = ((2.0, 5.0), (7.0, 10.0))  # one for each fact
    brief_score: float = 2.0  # of the judge, 0 to 4
    long_score: float = 4.0
    silence_tokens: int = 3  # with the end-of-turn marker
    brief_tokens: int = 4
    long_tokens: int = 12

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Setting:
        """The setting of a plain mapping; InputError for fields that cannot be."""
        fields = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in fields:
                raise InputError(f"unknown; known are {', '.join(sorted(fields))}", field=name)
        values = dict(values)
        for name in ("times", "windows"):
            if name in values:
                values[name] = _frozen(values[name])
        setting = cls(**values)
        setting.check()
        return setting

    def check(self) -> None:
        """Raise InputError, naming the field, for what is no problem or too large a one."""
        times, windows = self.times, self.windows
        if not times or any(b <= a for a, b in itertools.pairwise(times)):
            raise InputError("must be increasing seconds, at least one", field="problem.times")
        if not windows or any(len(w) != 2 or w[1] <= w[0] for w in windows):
            raise InputError("must be [start, end] pairs of seconds", field="problem.windows")
        if self.silence_tokens < 1:
            raise InputError("must be at least 1", field="problem.silence_tokens")
        for name in ("brief_tokens", "long_tokens"):
            if getattr(self, name) < 2:
                raise InputError("must be at least 2: topic and detail", field=f"problem.{name}")
        if self.num_trajectories > MAX_TRAJECTORIES:
            raise InputError(
                f"{len(self.replies)} replies at {len(times)} decisions are more than "
                f"{MAX_TRAJECTORIES} trajectories; take fewer of either",
                field="problem.times",
            )

    @property
    def replies(self) -> tuple[Reply, ...]:
        """What can be said at a decision, silence first."""
        facts = range(len(self.windows))
        told = itertools.product(facts, (BRIEF, LONG))
        return (Reply(None, 0), *(Reply(fact, level) for fact, level in told))

    @property
    def num_trajectories(self) -> int:
        """N."""
        return len(self.replies) ** len(self.times)

    def length(self, reply: Reply) -> int:
        """Tokens of a reply, its end-of-turn marker included."""
        return (self.silence_tokens, self.brief_tokens, self.long_tokens)[reply.level]

    def score(self, reply: Reply) -> float:
        """What the judge gives a reply in its fact's own window."""
        return (0.0, self.brief_score, self.long_score)[reply.level]


class Reply(NamedTuple):
    """One thing that can be said: a fact (None: silence) at a level of detail."""

    fact: int | None
    level: int

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        return KINDS[self.level]


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Every trajectory of a problem.

    Attributes:
      reply_NK: i64, index into ``setting.replies``.
      repetitive_NK: bool, replies that only repeat.
      score_NK1: f64, prefix scores U_0 .. U_K of ``kernels.prefix_scores``; U_K is the reward.
      slot_NA: i64, slot of every token in the policy's tables, ``FORCED`` without a choice.
      turn_NA: i64, decision of every token.
      mask_NA: bool, real tokens.
      states: (decision, memory) of each state that can be met, memory being the level to which each
        fact has been told; they number the states in ``state_NK``.
    """

    setting: Setting
    reply_NK: np.ndarray
    repetitive_NK: np.ndarray
    score_NK1: np.ndarray
    slot_NA: np.ndarray
    turn_NA: np.ndarray
    mask_NA: np.ndarray
    state_NK: np.ndarray
    states: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def reward_N(self) -> np.ndarray:
        """f64[N], R of eq. 1."""
        return self.score_NK1[:, -1]

    @property
    def length_NK(self) -> np.ndarray:
        """i64[N, K], tokens of every reply."""
        lengths = [self.setting.length(reply) for reply in self.setting.replies]
        return np.array(lengths)[self.reply_NK]

    @property
    def level_NK(self) -> np.ndarray:
        """i64[N, K], 0 for silence, ``BRIEF`` or ``LONG``."""
        return np.array([reply.level for reply in self.setting.replies])[self.reply_NK]


def enumerate_trajectories(setting: Setting) -> Trajectories:
    """Build and score all trajectories, the last decision varying fastest.

    Raises:
      InputError: the setting is none, or has too many trajectories.
    """
    setting.check()
    num_turns = len(setting.times)
    numbers = range(len(setting.replies))
    reply_NK = np.array(list(itertools.product(numbers, repeat=num_turns)))
    memory_NKF = _memories(setting, reply_NK)
    states, state_NK = _number_states(memory_NKF)
    repetitive_NK, opening_NK = _repeats(setting, reply_NK, memory_NKF)
    turns, windows = _scored(setting, reply_NK, repetitive_NK, opening_NK)
    score_NK1 = jax.jit(jax.vmap(kernels.prefix_scores, (0, None)))(turns, windows)
    return Trajectories(
        setting,
        reply_NK,
        repetitive_NK,
        np.asarray(score_NK1, np.float64),
        *_tokens(setting, reply_NK, state_NK),
        state_NK,
        states,
    )


def slots_per_state(num_facts: int) -> int:
    """One choice between silence and the facts, and one of detail for each fact."""
    return 1 + num_facts + 2 * num_facts


def choice_slots(reply: Reply, num_facts: int) -> tuple[int, ...]:
    """Slots within a state that a reply's first tokens take: topic, then detail."""
    if reply.fact is None:
        return (0,)
    return (1 + reply.fact, 1 + num_facts + 2 * reply.fact + (reply.level == LONG))


def _memories(setting: Setting, reply_NK: np.ndarray) -> np.ndarray:
    """i64[N, K, F]: the level to which each fact was told before each decision."""
    facts = np.array([-1 if r.fact is None else r.fact for r in setting.replies])[reply_NK]
    levels = np.array([r.level for r in setting.replies])[reply_NK]
    told_NKF = np.where(facts[:, :, None] == np.arange(len(setting.windows)), levels[:, :, None], 0)
    after = np.maximum.accumulate(told_NKF, axis=1)
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-1]], axis=1)


def _number_states(
    memory_NKF: np.ndarray,
) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], np.ndarray]:
    num_turns = memory_NKF.shape[1]
    turn_NK1 = np.broadcast_to(np.arange(num_turns)[None, :, None], (*memory_NKF.shape[:2], 1))
    keys = np.concatenate([turn_NK1, memory_NKF], axis=2)
    unique, number = np.unique(keys.reshape(-1, keys.shape[2]), axis=0, return_inverse=True)
    states = tuple((int(key[0]), tuple(int(level) for level in key[1:])) for key in unique)
    return states, number.reshape(memory_NKF.shape[:2])


def _repeats(
    setting: Setting, reply_NK: np.ndarray, memory_NKF: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(bool[N, K] says nothing new, bool[N, K] opens like an earlier long reply)."""
    level_NK = np.array([r.level for r in setting.replies])[reply_NK]
    fact_NK = np.array([r.fact or 0 for r in setting.replies])[reply_NK]
    before_NK = np.take_along_axis(memory_NKF, fact_NK[:, :, None], axis=2)[:, :, 0]
    repetitive = (level_NK > 0) & (before_NK >= level_NK)
    return repetitive, repetitive & (level_NK == LONG)


def _scored(
    setting: Setting, reply_NK: np.ndarray, repetitive_NK: np.ndarray, opening_NK: np.ndarray
) -> tuple[kernels.ScoredTurns, kernels.Windows]:
    """All trajectories as the kernels take them."""
    num_facts, replies = len(setting.windows), setting.replies
    quality_RW = np.full((len(replies), num_facts), np.nan, np.float32)
    for number, reply in enumerate(replies):
        if reply.fact is not None:
            quality_RW[number] = 0.0
            quality_RW[number, reply.fact] = setting.score(reply)
    replied_NK = reply_NK > 0
    start, end = np.array(setting.windows, np.float32).T
    turns = kernels.ScoredTurns(
        time=np.broadcast_to(np.array(setting.times, np.float32), reply_NK.shape),
        replied=replied_NK,
        quality=quality_RW[reply_NK],
        repetitive=np.where(replied_NK, repetitive_NK, np.nan).astype(np.float32),
        shares_prefix=opening_NK,
        mask=np.ones_like(replied_NK),
    )
    return turns, kernels.Windows(start, end, np.ones(num_facts, bool))


def _tokens(
    setting: Setting, reply_NK: np.ndarray, state_NK: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(slot_NA, turn_NA, mask_NA): the token strings, padded to the longest."""
    num_facts, replies = len(setting.windows), setting.replies
    lengths = [setting.length(reply) for reply in replies]
    per_state = slots_per_state(num_facts)
    widest = max(sum(lengths[r] for r in row) for row in reply_NK.tolist())
    slot = np.full((len(reply_NK), widest), FORCED)
    turn = np.zeros_like(slot)
    mask = np.zeros(slot.shape, bool)
    for n, (row, states) in enumerate(zip(reply_NK.tolist(), state_NK.tolist(), strict=True)):
        at = 0
        for k, (reply, state) in enumerate(zip(row, states, strict=True)):
            chosen = choice_slots(replies[reply], num_facts)
            slot[n, at : at + len(chosen)] = [state * per_state + c for c in chosen]
            turn[n, at : at + lengths[reply]] = k
            mask[n, at : at + lengths[reply]] = True
            at += lengths[reply]
    return slot, turn, mask


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value
