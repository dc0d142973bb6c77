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

import itertools
from collections.abc import Iterable
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
_NOTHING = 1e-18  # squared length below which an estimate is rounding


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


def all_pairs(pairs_NNK: np.ndarray, prob_N: np.ndarray) -> Groups:
    """Every unordered pair with its probability."""
    first, second = np.triu_indices(len(prob_N))
    credit = np.stack([pairs_NNK[first, second], pairs_NNK[second, first]], axis=1)
    twice = np.where(first == second, 1.0, 2.0)
    return Groups(np.stack([first, second], axis=1), credit, twice * prob_N[first] * prob_N[second])


class Slopes:
    """Weighted gradients of the log-probability of every decision, ``X_nk``, and their products.

    Decisions of different turns never share a table, so only products within a turn are needed.

    Attributes:
      count_N: what a trajectory adds to the loss's denominator.
      along_NK: ``X_nk`` times the true gradient.
      product_KNN: ``X_nk`` times ``X_mk``.
    """

    def __init__(self, tables: Tables, logits_S: np.ndarray, weights: Weights, true_S: np.ndarray):
        self.count_N, self.true_S = weights.count_N, true_S
        self.entry_NKQ, self.value_NKQ = tables.scores(weights.token_NA, logits_S)
        self.along_NK = (self.value_NKQ * true_S[self.entry_NKQ]).sum(axis=2)
        num_trajectories, num_turns = self.along_NK.shape
        self.product_KNN = np.empty((num_turns, num_trajectories, num_trajectories))
        rows = np.arange(num_trajectories)[:, None]
        for k in range(num_turns):
            dense_NS = np.zeros((num_trajectories, tables.size))
            np.add.at(dense_NS, (rows, self.entry_NKQ[:, k]), self.value_NKQ[:, k])
            used = np.flatnonzero(dense_NS.any(axis=0))
            self.product_KNN[k] = dense_NS[:, used] @ dense_NS[:, used].T

    def combined(self, credit_NK: np.ndarray) -> np.ndarray:
        """f64[S]: the sum over trajectories and decisions of credit times ``X_nk``."""
        weighted = credit_NK[:, :, None] * self.value_NKQ
        return np.bincount(self.entry_NKQ.ravel(), weighted.ravel(), minlength=len(self.true_S))


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
    def of(cls, groups: Groups, slopes: Slopes) -> Moments:
        """Of the update directions of these groups, which are never built."""
        index, mass_M = groups.index_MG, groups.mass_M
        count_M = slopes.count_N[index].sum(axis=1)
        credit = groups.credit_MGK / count_M[:, None, None]
        along_M = (credit * slopes.along_NK[index]).sum(axis=(1, 2))
        square_M = np.zeros(len(index))
        for one, other in itertools.product(range(index.shape[1]), repeat=2):
            product_KM = slopes.product_KNN[:, index[:, one], index[:, other]]
            square_M += (credit[:, one] * credit[:, other] * product_KM.T).sum(axis=1)
        moved = square_M > _NOTHING
        lengths_M = np.sqrt(np.where(moved, square_M, 1.0) * (slopes.true_S @ slopes.true_S))
        num_turns = credit.shape[2]
        place = index[:, :, None] * num_turns + np.arange(num_turns)
        weighted = mass_M[:, None, None] * credit
        credit_NK = np.bincount(
            place.ravel(), weighted.ravel(), minlength=slopes.along_NK.size
        ).reshape(slopes.along_NK.shape)
        return cls(
            mass=mass_M.sum(),
            mean_S=slopes.combined(credit_NK),
            square=mass_M @ square_M,
            cosine=mass_M @ np.where(moved, along_M / lengths_M, 0.0),
            uphill=mass_M @ (moved & (along_M > 0)),
            still=mass_M @ ~moved,
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
