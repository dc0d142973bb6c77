"""From logits to a token and its behaviour log-probability.

Every function is written for one row; callers ``vmap``. Randomness is a key per row, so a row's
choice never depends on which other rows share the batch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from turnwise_jax.errors import InputError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. The default samples the untouched distribution.

    Attributes:
      temperature: logits are divided by it; greater than 0.
      top_k: only the ``top_k`` most likely tokens can be drawn (ties: the lower id); 0 is no limit.
      top_p: of those, renormalised, only the smallest most likely set whose probability reaches
        ``top_p``; 1 is no limit.
      greedy: take the most likely token instead (ties: the lower id); the three above are ignored.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False

    @classmethod
    def of(cls, fields: Any) -> Sampling:
        """From ``temperature`` (0: greedy), ``top_k`` and ``top_p`` of a config or flags."""
        if fields.temperature == 0:
            return cls(greedy=True)
        return cls(temperature=fields.temperature, top_k=fields.top_k, top_p=fields.top_p)

    def __post_init__(self):
        if not 0.0 < self.temperature < float("inf"):
            raise InputError(
                f"must be a positive number, not {self.temperature}", field="temperature"
            )
        if self.top_k < 0:
            raise InputError(f"must be 0 (no limit) or positive, not {self.top_k}", field="top_k")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"must be above 0 and at most 1, not {self.top_p}", field="top_p")

    @property
    def logprob_temperature(self) -> float:
        """The temperature of the recorded log-probabilities: 1 for greedy choices."""
        return 1.0 if self.greedy else self.temperature


def choose(
    logits_V: Array, allowed_V: Array, key: Array, sampling: Sampling
) -> tuple[Array, Array]:
    """Chooses one token.

    The recorded value is ``log_softmax(logits / temperature)[token]`` over the full vocabulary:
    what a trainer recomputes from the same hidden state. The ban of ids, top-k and top-p restrict
    the draw only and leave it as it is.

    Args:
      logits_V: ``[V]`` logits, any float type; computed on in float32.
      allowed_V: ``bool[V]``, False for ids that may never be drawn. At least one is True.
      key: this row's and this token's random key.
      sampling: the rule.

    Returns:
      (token ``int32[]``, log-probability ``f32[]``).
    """
    logits_V = logits_V.astype(jnp.float32) / sampling.logprob_temperature
    open_V = jnp.where(allowed_V, logits_V, -jnp.inf)
    if sampling.greedy:
        token = _largest(open_V)
    else:
        token = _draw(open_V, key, sampling)
    logprob = logits_V[token] - jax.nn.logsumexp(logits_V)
    return token.astype(jnp.int32), logprob


def _draw(logits_V: Array, key: Array, sampling: Sampling) -> Array:
    """Draws an index by the Gumbel-max rule from the restricted distribution."""
    (size,) = logits_V.shape
    kept = min(sampling.top_k or size, size)
    if kept == size and sampling.top_p == 1.0:
        return _largest(logits_V + jax.random.gumbel(key, (size,)))
    top_J, index_J = jax.lax.top_k(logits_V, kept)
    if sampling.top_p < 1.0:
        top_J = _nucleus(top_J, sampling.top_p)
    return index_J[jnp.argmax(top_J + jax.random.gumbel(key, (kept,)))]


def _largest(scores_V: Array) -> Array:
    """``argmax``, as two reductions that a CPU vectorises; XLA's one with an index it does not."""
    (size,) = scores_V.shape
    index_V = jnp.where(scores_V == scores_V.max(), jnp.arange(size), size)
    return jnp.minimum(index_V.min(), size - 1)  # in range if the scores are not numbers


def _nucleus(sorted_J: Array, top_p: float) -> Array:
    """Bans what follows the shortest prefix of descending logits with probability >= top_p."""
    reached_J = jnp.cumsum(jax.nn.softmax(sorted_J))
    before_J = jnp.concatenate([jnp.zeros(1), reached_J[:-1]])
    return jnp.where(before_J < top_p, sorted_J, -jnp.inf)


def prompt_seed(identity: str) -> int:
    """A stable 32-bit number for a prompt's id, the same on every host and Python process."""
    return zlib.crc32(identity.encode())


def rollout_keys(
    seed: Array, step: Array, prompt_B: Array, group_size: int, *, copies: int = 1
) -> Array:
    """Keys of all rollouts, ``[B * G]`` in (b, g) order, from (seed, step, prompt, rollout).

    Turn and token are folded in later by :func:`fold_in`. With ``copies`` each prompt comes that
    often in a row, ``[B * copies]``, and each copy stands for an equal share of its rollouts.
    """
    step_key = jax.random.fold_in(jax.random.key(seed), step)
    share = group_size // copies

    def of(prompt, rollout):
        return jax.random.fold_in(jax.random.fold_in(step_key, prompt), rollout)

    first_B = share * (jnp.arange(prompt_B.shape[0]) % copies)
    rollout_BG = first_B[:, None] + jnp.arange(share)[None]
    over_group = jax.vmap(of, in_axes=(None, 0))
    return jax.vmap(over_group)(prompt_B, rollout_BG).reshape(-1)


def fold_in(keys_N: Array, number: Array) -> Array:
    """Folds a turn's or a token's index into every row's key: one for all, or one each ``[N]``."""
    return jax.vmap(jax.random.fold_in)(keys_N, jnp.broadcast_to(number, keys_N.shape))


def choose_rows(
    logits_NV: Array, allowed_V: Array, keys_N: Array, sampling: Sampling
) -> tuple[Array, Array]:
    """:func:`choose` for every row: tokens int32 ``[N]``, log-probabilities f32 ``[N]``."""
    return jax.vmap(choose, in_axes=(0, None, 0, None))(logits_NV, allowed_V, keys_N, sampling)
