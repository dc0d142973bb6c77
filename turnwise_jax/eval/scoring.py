"""Eq. 1, prefix scores and credit of finished dialogues (`turnwise score`, and part of reports).

Judgements that a dialogue carries (``quality`` and ``repetitive``, as training logs them) are used
as they are; the judge is asked only about dialogues without. A judgement that such a dialogue lacks
failed when it was made: it is dropped, and counted as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.kernels import (
    RewardWeights,
    ScoredTurns,
    ScoreTerms,
    Windows,
    prefix_scores,
    score_trajectory,
    turn_advantages,
)
from turnwise_jax.rewards.judges import Counts, Judge, JudgeStats, Request
from turnwise_jax.rewards.quality import unanswered
from turnwise_jax.rewards.trajectory import score_trajectories

Stacked = tuple[ScoredTurns, Windows]


def judged(
    predictions: Sequence[Prediction], judge: Judge, *, prefix_chars: int = 50
) -> tuple[ScoredTurns, Windows, JudgeStats]:
    """Every dialogue's judgements, padded and stacked: ``[N, K, ...]`` and ``[N, W]``.

    Args:
      predictions: N dialogues.
      judge: asked for the five-level quality and the repetition of what is not judged yet.
      prefix_chars: shortest common beginning that counts as a long shared prefix.
    """
    num_turns = max((len(p.times) for p in predictions), default=0) or 1
    num_windows = max((len(p.windows) for p in predictions), default=0) or 1

    def score(chosen: list[int], asked: Judge) -> tuple[ScoredTurns, Windows, JudgeStats]:
        return score_trajectories(
            [predictions[n].trajectory() for n in chosen],
            asked,
            num_turns=num_turns,
            num_windows=num_windows,
            prefix_chars=prefix_chars,
        )

    known = [n for n, p in enumerate(predictions) if _is_judged(p)]
    fresh = [n for n, p in enumerate(predictions) if not _is_judged(p)]
    if not known:
        return score(fresh, judge)
    old_turns, old_windows, _ = score(known, _Nobody())
    old_turns = _with_judgements(old_turns, [predictions[n] for n in known])
    lacking = _lacking(old_turns, [predictions[n] for n in known])
    if not fresh:
        return old_turns, old_windows, lacking
    turns, windows, stats = score(fresh, judge)
    order = np.argsort(np.asarray(known + fresh), kind="stable")

    def join(a: Any, b: Any) -> Any:
        return np.concatenate([np.asarray(a), np.asarray(b)])[order]

    return (
        jax.tree.map(join, old_turns, turns),
        jax.tree.map(join, old_windows, windows),
        stats + lacking,
    )


@dataclass(frozen=True)
class Credit:
    """What one dialogue earned and how the credit falls on its K decisions.

    ``prefix_scores`` are U_0..U_K (paper eq. 3), ``increments`` their differences. The advantages
    are None for a dialogue that belongs to no group: ``shared`` is the clipped GRPO advantage that
    all turns get at alpha = 0 (eq. 2), ``turn`` the corrected one of each turn (eq. 5).
    """

    terms: dict[str, float]
    prefix_scores: tuple[float, ...]
    increments: tuple[float, ...]
    shared: float | None
    turn: tuple[float, ...] | None

    def to_json(self) -> dict[str, Any]:
        return {
            **self.terms,
            "prefix_scores": list(self.prefix_scores),
            "increments": list(self.increments),
            "shared_advantage": self.shared,
            "turn_advantages": None if self.turn is None else list(self.turn),
        }


def assign_credit(
    predictions: Sequence[Prediction],
    judge: Judge,
    *,
    weights: RewardWeights | None = None,
    omega: float = 0.5,
    prefix_chars: int = 50,
    alpha: float = 1.0,
    eps: float = 1e-6,
    clip: float = 5.0,
    file: str | None = None,
) -> tuple[list[Credit], JudgeStats]:
    """Reward terms, prefix scores and advantages of every dialogue, in order.

    Dialogues with the same ``group`` (and training ``step``, if they have one) are the rollouts of
    one prompt, wherever they stand in the list; groups may have any sizes.

    Args:
      alpha, eps, clip: eq. 5's interpolation, the divisor's epsilon, the bound on advantages.
      file: where the dialogues were read, for errors.

    Raises:
      InputError: rollouts of one group that decide at different times, turn by turn; one that ends
        before the others keeps its last score.
    """
    if not predictions:
        return [], JudgeStats()
    groups = _groups(predictions)
    for members in groups:
        _check_times([predictions[n] for n in members], file)
    weights = weights or RewardWeights()
    turns, windows, stats = judged(predictions, judge, prefix_chars=prefix_chars)
    terms = reward_terms(turns, windows, weights, omega=omega)
    scores_NK1 = np.asarray(_prefix_scores(turns, windows, weights, omega=omega))
    shared_N, turn_NK = _advantages(groups, scores_NK1, np.asarray(turns.mask), eps, clip, alpha)
    return [
        _credit(prediction, n, terms, scores_NK1[n], shared_N[n], turn_NK[n])
        for n, prediction in enumerate(predictions)
    ], stats


def reward_terms(
    turns: ScoredTurns, windows: Windows, weights: RewardWeights, *, omega: float = 0.5
) -> ScoreTerms:
    """Eq. 1 of stacked trajectories; every leaf is a NumPy ``f32[N]``."""
    return jax.tree.map(np.asarray, _reward_terms(turns, windows, weights, omega=omega))


@partial(jax.jit, static_argnames="omega")
def _reward_terms(
    turns: ScoredTurns, windows: Windows, weights: RewardWeights, *, omega: float
) -> ScoreTerms:
    return jax.vmap(lambda t, w: score_trajectory(t, w, weights, omega=omega))(turns, windows)


@partial(jax.jit, static_argnames="omega")
def _prefix_scores(
    turns: ScoredTurns, windows: Windows, weights: RewardWeights, *, omega: float
) -> jax.Array:
    return jax.vmap(lambda t, w: prefix_scores(t, w, weights, omega=omega))(turns, windows)


def _groups(predictions: Sequence[Prediction]) -> list[list[int]]:
    """The numbers of the rollouts of each prompt."""
    members: dict[tuple[int | None, str | int], list[int]] = {}
    for n, prediction in enumerate(predictions):
        if prediction.group is not None:
            members.setdefault((prediction.step, prediction.group), []).append(n)
    return list(members.values())


def _check_times(group: Sequence[Prediction], file: str | None) -> None:
    longest = max(group, key=lambda prediction: len(prediction.times))
    for own in group:
        for k, (mine, theirs) in enumerate(zip(own.times, longest.times, strict=False)):
            if mine != theirs:
                raise InputError(
                    f"decides at {mine:g} s where {longest.id} of the same group {own.group!r} "
                    f"does at {theirs:g} s: a group's rollouts must have the same decision times",
                    file=file,
                    record=own.id,
                    field=f"times[{k}]",
                )


def _advantages(
    groups: Sequence[Sequence[int]],
    scores_NK1: np.ndarray,
    mask_NK: np.ndarray,
    eps: float,
    clip: float,
    alpha: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Shared ``[N]`` and turn-level ``[N, K]`` advantages; NaN for dialogues without a group."""
    shared_N = np.full(len(mask_NK), np.nan)
    turn_NK = np.full(mask_NK.shape, np.nan)
    if not groups:
        return shared_N, turn_NK
    size = max(map(len, groups))
    index_BG = np.array([[*rows, *rows[:1] * (size - len(rows))] for rows in groups])
    real_BG = np.array([[g < len(rows) for g in range(size)] for rows in groups])
    rows = index_BG[real_BG]
    group = scores_NK1[index_BG], mask_NK[index_BG], real_BG
    shared_BGK = np.asarray(_group_credit(*group, alpha=0.0, eps=eps, clip=clip))
    turn_BGK = np.asarray(_group_credit(*group, alpha=alpha, eps=eps, clip=clip))
    shared_N[rows] = shared_BGK[real_BG][:, 0]
    turn_NK[rows] = turn_BGK[real_BG]
    return shared_N, turn_NK


@partial(jax.jit, static_argnames=("alpha", "eps", "clip"))
def _group_credit(
    scores_BGK1: np.ndarray,
    mask_BGK: np.ndarray,
    real_BG: np.ndarray,
    *,
    alpha: float,
    eps: float,
    clip: float,
) -> jax.Array:
    def group(scores: jax.Array, mask: jax.Array, real: jax.Array) -> jax.Array:
        return turn_advantages(
            scores, turn_mask=mask, rollout_mask=real, alpha=alpha, eps=eps, clip=clip
        )

    return jax.vmap(group)(scores_BGK1, mask_BGK, real_BG)


def _credit(
    prediction: Prediction,
    n: int,
    terms: ScoreTerms,
    scores_K1: np.ndarray,
    shared: float,
    turn_K: np.ndarray,
) -> Credit:
    length = len(prediction.times)
    scores = scores_K1[: length + 1].astype(float)
    grouped = prediction.group is not None
    return Credit(
        terms={name: float(value[n]) for name, value in terms._asdict().items()},
        prefix_scores=tuple(scores.tolist()),
        increments=tuple(np.diff(scores).tolist()),
        shared=float(shared) if grouped else None,
        turn=tuple(turn_K[:length].tolist()) if grouped else None,
    )


def _is_judged(prediction: Prediction) -> bool:
    return prediction.quality is not None and prediction.repetitive is not None


def _with_judgements(turns: ScoredTurns, predictions: Sequence[Prediction]) -> ScoredTurns:
    quality = np.full(np.shape(turns.quality), np.nan, np.float32)
    repetitive = np.full(np.shape(turns.repetitive), np.nan, np.float32)
    for n, p in enumerate(predictions):
        for k, row in enumerate(p.quality or ()):
            quality[n, k, : len(row)] = [np.nan if score is None else score for score in row]
        known = [np.nan if score is None else score for score in p.repetitive or ()]
        repetitive[n, : len(known)] = known
    return turns._replace(quality=quality, repetitive=repetitive)


def _lacking(turns: ScoredTurns, predictions: Sequence[Prediction]) -> JudgeStats:
    """What was asked about these dialogues when they were judged, and was not answered."""
    quality: set[Request] = set()
    for p, scores_KW in zip(predictions, turns.quality, strict=True):
        quality |= unanswered(p.trajectory(), scores_KW)
    repetition = sum(p.missing_verdicts for p in predictions)
    return JudgeStats(quality=Counts(failed=len(quality)), repetition=Counts(failed=repetition))


class _Nobody:
    """A judge that answers nothing, for dialogues whose judgements are already known."""

    def ask(self, requests: Sequence[Request]) -> list[float | None]:
        return [None] * len(requests)
