"""The papers' formulas in plain float64 loops, to check the kernels against.

Written from the papers and `window_value`'s definition of the curve alone: silence-completed
trajectories are built and scored one by one, means and deviations are taken literally. Nothing here
knows how the kernels work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Decision:
    """One real decision turn; `scores[w]` is the judge's score for window w, None for none."""

    time: float
    replied: bool
    scores: tuple[float | None, ...]
    repetitive: bool | None
    shares_prefix: bool


@dataclass(frozen=True)
class Setting:
    omega: float = 0.5
    start_score: float = 0.5
    top_score: float = 4.0
    weights: dict[str, float] = field(
        default_factory=lambda: {"quality": 3.0, "rep": 2.0, "out": 0.5, "prefix": 2.0}
    )


def silence(decision: Decision) -> Decision:
    return replace(
        decision,
        replied=False,
        scores=(None,) * len(decision.scores),
        repetitive=None,
        shares_prefix=False,
    )


def window_value(points: list[tuple[float, float]], start: float, end: float, s: Setting) -> float:
    """Area under the step curve through (time, score) points inside [start, end]."""
    points = [(time, score) for time, score in points if start <= time <= end]
    if not points:
        return s.start_score / s.top_score
    length = end - start
    if length == 0:
        return points[-1][1] / s.top_score
    shrunk = [((1 - s.omega) * (time - start), score) for time, score in points]
    area = s.start_score * shrunk[0][0]
    for (here, score), (there, _) in zip(shrunk, [*shrunk[1:], (length, 0.0)], strict=True):
        area += score * (there - here)
    return area / (length * s.top_score)


def terms(decisions: list[Decision], windows: list[tuple[int, float, float]], s: Setting) -> dict:
    """The four terms of eq. 1; a window is (column of the scores, start, end)."""
    last = max((d.time for d in decisions), default=-math.inf)
    windows = [w for w in windows if w[1] <= last]
    replies = [d for d in decisions if d.replied]
    values = []
    for column, start, end in windows:
        points = [(d.time, d.scores[column]) for d in replies if d.scores[column] is not None]
        values.append(window_value(points, start, end, s))
    judged = [d for d in replies if d.repetitive is not None]
    outside = [d for d in decisions if not any(a <= d.time <= b for _, a, b in windows)]

    def share(hits: int, among: int) -> float:
        return hits / among if among else 0.0

    return {
        "quality": sum(values) / len(values) if values else 0.0,
        "rep": share(sum(bool(d.repetitive) for d in judged), len(judged)),
        "out": share(sum(d.replied for d in outside), len(outside)),
        "prefix": share(sum(d.shares_prefix for d in replies), len(decisions)),
    }


def reward(decisions: list[Decision], windows: list[tuple[int, float, float]], s: Setting) -> float:
    t, w = terms(decisions, windows, s), s.weights
    return (
        w["quality"] * t["quality"]
        - w["rep"] * t["rep"]
        - w["out"] * t["out"]
        - w["prefix"] * t["prefix"]
    )


def prefix_scores(
    decisions: list[Decision], windows: list[tuple[int, float, float]], s: Setting
) -> list[float]:
    """U_0 .. U_T: every silence-completed prefix scored from nothing."""
    return [
        reward([*decisions[:t], *(silence(d) for d in decisions[t:])], windows, s)
        for t in range(len(decisions) + 1)
    ]


def group_advantages(rewards: list[float], eps: float, ddof: int = 1) -> list[float]:
    mean = sum(rewards) / len(rewards)
    variance = sum((r - mean) ** 2 for r in rewards) / (len(rewards) - ddof)
    return [(r - mean) / (math.sqrt(variance) + eps) for r in rewards]


def turn_advantages(scores: np.ndarray, alpha: float, eps: float, clip: float) -> np.ndarray:
    """Eq. 5 entry by entry; `scores` is [G, K+1]."""
    num_rollouts, num_turns = scores.shape[0], scores.shape[1] - 1
    rewards = [scores[i, -1] for i in range(num_rollouts)]
    shared = group_advantages(rewards, eps)
    sigma = float(np.std(rewards, ddof=1))
    result = np.zeros((num_rollouts, num_turns))
    for t in range(1, num_turns + 1):
        accrued = [scores[i, t - 1] - scores[i, 0] for i in range(num_rollouts)]
        mean = sum(accrued) / num_rollouts
        for i in range(num_rollouts):
            value = shared[i] - alpha * (accrued[i] - mean) / (sigma + eps)
            result[i, t - 1] = min(clip, max(-clip, value))
    return result


def remaining_return_advantages(scores: np.ndarray, eps: float, clip: float) -> np.ndarray:
    """Eq. 4, first form: centred remaining returns."""
    remaining = scores[:, -1:] - scores[:, :-1]
    sigma = np.std(scores[:, -1], ddof=1)
    return np.clip((remaining - remaining.mean(0)) / (sigma + eps), -clip, clip)


def surrogate(ratio: float, advantage: float, low: float, high: float, c: float | None) -> float:
    """Eq. 6 and H.1."""
    clipped = min(max(ratio, 1 - low), 1 + high)
    loss = -min(ratio * advantage, clipped * advantage)
    return min(loss, -c * advantage) if c is not None and advantage < 0 else loss


def turn_mean(values: list[float], turns: list[int | None]) -> float:
    """Eq. 7; turn None is a token that is not trained."""
    by_turn: dict[int, list[float]] = {}
    for value, turn in zip(values, turns, strict=True):
        if turn is not None:
            by_turn.setdefault(turn, []).append(value)
    means = [sum(tokens) / len(tokens) for tokens in by_turn.values()]
    return sum(means) / len(means) if means else 0.0


def softmax_logprobs(hidden: np.ndarray, head: np.ndarray, temperature: float) -> np.ndarray:
    logits = hidden.astype(np.float64) @ head.astype(np.float64) / temperature
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
