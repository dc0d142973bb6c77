"""Policy-gradient estimators of the exact problem: credit, normalisation, reduction, moments.

One estimate is the update direction of one group of G trajectories: minus the gradient of the
group's loss at a ratio of 1, which is what the first step after sampling takes. Its parts are

* credit ``A_it``: ``deviation`` of eq. 2 and 5 before it is divided, in float64, or the advantage
  of ``kernels.turn_advantages`` after it is divided and clipped;
* a weight for every token, read off the gradient of the real loss (``policy_gradient_terms``);
* the gradient of the token's log-probability.

Axes besides those of ``exact_problem``: M groups, Q table entries that one decision touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import REDUCTIONS, policy_gradient_terms
from turnwise_jax.algorithms.turnwise import Settings
from turnwise_jax.algorithms.types import Actions
from turnwise_jax.study.exact_policy import Tables
from turnwise_jax.study.exact_problem import Trajectories

SUM = "sum"  # no mean at all: the textbook's policy gradient
WEIGHTINGS = (SUM, *REDUCTIONS)
CRITIC = "value"  # credit against the exact value of the history, as an ideal critic would give it
_BLOCK = 4096  # groups held at once


class Estimator(NamedTuple):
    """One way of turning a group of trajectories into an update.

    ``alpha`` 0 is shared credit, 1 turn-level credit; ``None`` the ideal critic's, which looks at
    one trajectory at a time. ``normalised``: divided by the group's standard deviation and clipped.
    """

    alpha: float | None
    reduction: str
    normalised: bool = False


class Weights(NamedTuple):
    """What one trajectory's tokens add to a loss: f64[N, A], and to its denominator: f64[N]."""

    token_NA: np.ndarray
    count_N: np.ndarray


def token_weights(data: Trajectories, reduction: str) -> Weights:
    """Minus the derivative of the real loss with respect to each token's log-probability.

    Taken at advantage 1 and ratio 1, where the surrogate is linear in the advantage. ``"sum"`` has
    weight 1 everywhere.
    """
    if reduction == SUM:
        return Weights(data.mask_NA.astype(float), np.ones(len(data.mask_NA)))
    settings = Settings()
    advantage_K = jnp.ones(data.reply_NK.shape[1])

    def numerator(logp_A: jax.Array, mask_A: jax.Array, turn_A: jax.Array):
        old_A = jax.lax.stop_gradient(logp_A)
        terms = policy_gradient_terms(
            Actions(logp_A, old_A, old_A, mask_A, turn_A),
            advantage_K,
            reduction=reduction,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
        )
        return terms.total, terms.count

    slopes = jax.jit(jax.vmap(jax.grad(numerator, has_aux=True)))
    logp_NA = jnp.zeros(data.mask_NA.shape, jnp.float32)
    slope_NA, count_N = slopes(logp_NA, jnp.asarray(data.mask_NA), jnp.asarray(data.turn_NA))
    return Weights(-np.asarray(slope_NA, np.float64), np.asarray(count_N, np.float64))


def deviation(score_MGK1: np.ndarray, alpha: float) -> np.ndarray:
    """f64[M, G, K]: ``(R_i - mean R) - alpha (C_i,t-1 - mean C_t-1)``, eq. 5 before its division.

    At ``alpha`` 1 it is the centred remaining return ``F_it - mean F_t`` (eq. G.5).
    """
    reward = score_MGK1[..., -1:]
    accrued = score_MGK1[..., :-1] - score_MGK1[..., :1]
    return (reward - reward.mean(1, keepdims=True)) - alpha * (
        accrued - accrued.mean(1, keepdims=True)
    )


def advantages(score_MGK1: np.ndarray, alpha: float, *, normalised: bool) -> np.ndarray:
    """f64[M, G, K] credit of every decision; normalised is what the training uses."""
    if not normalised:
        return deviation(score_MGK1, alpha)
    return np.asarray(_turn_advantages(np.float32(score_MGK1), np.float32(alpha)), np.float64)


@jax.jit
def _turn_advantages(score_MGK1: jax.Array, alpha: jax.Array) -> jax.Array:
    settings = Settings()
    return jax.vmap(
        lambda score: kernels.turn_advantages(
            score, alpha=alpha, eps=settings.eps, clip=settings.max_advantage
        )
    )(score_MGK1)


def pair_advantages(data: Trajectories, alpha: float, *, normalised: bool) -> np.ndarray:
    """f64[N, N, K]: the credit of the first trajectory of every ordered pair, a group of two."""
    score = data.score_NK1
    num = len(score)
    found = np.empty((num, num, score.shape[1] - 1))
    for i in range(num):
        pair = np.stack([np.broadcast_to(score[i], score.shape), score], axis=1)
        found[i] = advantages(pair, alpha, normalised=normalised)[:, 0]
    return found


def values(tables: Tables, logits_S: np.ndarray) -> np.ndarray:
    """f64[N, K]: ``E[R | a_1 .. a_t-1]``, the exact value of the history before each decision."""
    data = tables.trajectories
    prob_N = tables.probabilities(logits_S)
    found = np.empty(data.reply_NK.shape)
    for k in range(found.shape[1]):
        # Trajectories that share their first k replies lie side by side.
        run = len(data.setting.replies) ** (found.shape[1] - k)
        mass = prob_N.reshape(-1, run).sum(1)
        mean = (prob_N * data.reward_N).reshape(-1, run).sum(1) / mass
        found[:, k] = np.repeat(mean, run)
    return found


class Groups(NamedTuple):
    """A block of groups: i64[M, G] trajectories, f64[M, G, K] credit, f64[M] probability."""

    index_MG: np.ndarray
    credit_MGK: np.ndarray
    mass_M: np.ndarray


def all_pairs(pairs_NNK: np.ndarray, prob_N: np.ndarray) -> Iterator[Groups]:
    """Every ordered pair with its probability, in blocks."""
    num = len(prob_N)
    rows = max(1, _BLOCK // num)
    for start in range(0, num, rows):
        first, second = np.meshgrid(
            np.arange(start, min(start + rows, num)), np.arange(num), indexing="ij"
        )
        first, second = first.ravel(), second.ravel()
        credit = np.stack([pairs_NNK[first, second], pairs_NNK[second, first]], axis=1)
        yield Groups(np.stack([first, second], axis=1), credit, prob_N[first] * prob_N[second])


def singles(credit_NK: np.ndarray, prob_N: np.ndarray) -> Iterator[Groups]:
    """Every trajectory as a group of its own, with credit that needs no group."""
    yield Groups(np.arange(len(prob_N))[:, None], credit_NK[:, None, :], prob_N)


def estimates(
    groups: Groups, weights: Weights, entry_NKQ: np.ndarray, value_NKQ: np.ndarray, size: int
) -> np.ndarray:
    """f64[M, S]: one update direction for each group."""
    index = groups.index_MG
    count_M = weights.count_N[index].sum(axis=1)
    weighted = groups.credit_MGK[..., None] * value_NKQ[index]
    place = entry_NKQ[index] + size * np.arange(len(index))[:, None, None, None]
    flat = np.bincount(place.ravel(), weighted.ravel(), minlength=len(index) * size)
    return flat.reshape(len(index), size) / count_M[:, None]


class Moments(NamedTuple):
    """Sums over groups, each weighted by its probability; add them field by field.

    Attributes:
      mass: of the groups.
      mean_S: of the estimates.
      square: of their squared lengths.
      cosine: of their cosines with the true gradient, 0 for an estimate of length 0.
      uphill: of the estimates that point up the true gradient.
      still: of the estimates of length 0.
    """

    mass: float
    mean_S: np.ndarray
    square: float
    cosine: float
    uphill: float
    still: float

    @classmethod
    def of(cls, estimate_MS: np.ndarray, mass_M: np.ndarray, true_S: np.ndarray) -> Moments:
        square_M = np.einsum("ms,ms->m", estimate_MS, estimate_MS)
        along_M = estimate_MS @ true_S
        lengths_M = np.sqrt(square_M * (true_S @ true_S))
        cosine_M = np.divide(along_M, lengths_M, out=np.zeros_like(along_M), where=lengths_M > 0)
        return cls(
            mass=mass_M.sum(),
            mean_S=mass_M @ estimate_MS,
            square=mass_M @ square_M,
            cosine=mass_M @ cosine_M,
            uphill=mass_M @ (along_M > 0),
            still=mass_M @ (square_M == 0),
        )

    def __add__(self, other: Moments) -> Moments:  # type: ignore[override]
        return Moments(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __sub__(self, other: Moments) -> Moments:
        return Moments(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def total(parts: Iterable[Moments]) -> Moments:
    """The sum of at least one."""
    parts = iter(parts)
    found = next(parts)
    for part in parts:
        found = found + part
    return found


class Quality(NamedTuple):
    """What an estimator is worth at one policy.

    Attributes:
      alignment: cosine of the expected estimate and the true gradient; 1 is without bias but for
        its length.
      scale: the part of the true gradient that the expected estimate holds: its projection on the
        true gradient over the true gradient's length.
      noise: total variance of an estimate over the squared length of the expected one.
      cosine: expected cosine of one estimate and the true gradient.
      uphill: share of estimates that point up the true gradient.
      still: share of groups without any update.
    """

    alignment: float
    scale: float
    noise: float
    cosine: float
    uphill: float
    still: float

    @classmethod
    def of(cls, moments: Moments, true_S: np.ndarray) -> Quality:
        mean_S = moments.mean_S / moments.mass
        length, true_length = np.linalg.norm(mean_S), np.linalg.norm(true_S)
        along = float(mean_S @ true_S)
        return cls(
            alignment=along / (length * true_length),
            scale=along / true_length**2,
            noise=(moments.square / moments.mass) / length**2 - 1.0,
            cosine=moments.cosine / moments.mass,
            uphill=moments.uphill / moments.mass,
            still=moments.still / moments.mass,
        )


def jackknife(parts: list[Moments], true_S: np.ndarray) -> tuple[Quality, Quality]:
    """(quality, its standard errors) from blocks of sampled groups.

    The first-order bias that an average over finitely many groups has is taken out.
    """
    whole, number = total(parts), len(parts)
    plain = np.array(Quality.of(whole, true_S))
    left_out = np.array([Quality.of(whole - part, true_S) for part in parts])
    mean = left_out.mean(axis=0)
    error = np.sqrt((number - 1) / number * ((left_out - mean) ** 2).sum(axis=0))
    return Quality(*(number * plain - (number - 1) * mean)), Quality(*error)
