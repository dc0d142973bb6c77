"""A batch of trajectories as text becomes the arrays that the scoring kernels take.

All that needs a judge is collected over the whole batch first, equal requests are asked once, and
the answers are then put in their places; nothing depends on what shares the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.kernels import ScoredTurns, Windows
from turnwise_jax.rewards import REWARDS
from turnwise_jax.rewards.asking import fill
from turnwise_jax.rewards.judges.protocol import Judge, JudgeStats
from turnwise_jax.rewards.plan import SILENCE, Plan, ReplyWindow, Settings, Trajectory, is_silent

__all__ = [
    "SILENCE",
    "ReplyWindow",
    "Scores",
    "Trajectory",
    "is_silent",
    "score_trajectories",
    "unjudged",
]


class Scores(NamedTuple):
    """What a kind of reward (`rewards.streaming`) makes of N trajectories.

    ``turns`` ``[N, K]``, ``windows`` ``[N, W]``: of a kind with prefix scores all that the kernels
    need; of another who spoke when. ``terms``: of a kind without prefix scores a NamedTuple of f32
    ``[N]``, ``reward`` first; None where the kernels make them. A reward that cannot be known is
    NaN. ``known``: bool ``[N]``, whose reward the kernels may make; None: everyone's.
    """

    turns: ScoredTurns
    windows: Windows
    terms: Any
    stats: JudgeStats
    known: np.ndarray | None = None


def score_trajectories(
    trajs: Sequence[Trajectory],
    judge: Judge,
    *,
    num_turns: int | None = None,
    num_windows: int | None = None,
    prefix_chars: int = 50,
) -> tuple[ScoredTurns, Windows, JudgeStats]:
    """Judge `trajs` and stack them for ``vmap(score_trajectory)`` and ``vmap(prefix_scores)``.

    Args:
      trajs: N trajectories; ragged K and W.
      judge: answers the requests of the whole batch in one call.
      num_turns, num_windows: K and W to pad to; by default the batch's largest, at least 1.
      prefix_chars: least length of a shared prefix, in characters.

    Returns:
      ``ScoredTurns`` of NumPy arrays [N, K] and [N, K, W] (float32 and bool), ``Windows`` [N, W]
      and the batch's `JudgeStats`. A failed request is NaN at its own place and nowhere else.
      Windows that start after the trajectory's last decision are masked. Padded turns repeat the
      last time, so that times stay non-decreasing.

    Raises:
      InputError: times and replies of different length, times that fall or are not finite, a window
        that ends before it starts, or more turns or windows than there is room for.
    """
    if prefix_chars < 1:
        raise InputError(f"must be at least 1, got {prefix_chars}", field="prefix_chars")
    turns, windows = _rooms(trajs, num_turns, num_windows)
    plans = [
        {name: reward(trajectory, Settings(prefix_chars)) for name, reward in REWARDS.items()}
        for trajectory in trajs
    ]
    stats = fill([plan for row in plans for plan in row.values()], judge)
    return _turns(trajs, plans, turns, windows), _windows(trajs, windows), stats


def unjudged(
    trajs: Sequence[Trajectory], *, num_turns: int | None = None, num_windows: int | None = None
) -> tuple[ScoredTurns, Windows]:
    """The arrays of `score_trajectories` before any judge is asked: every judgement is NaN.

    Raises:
      InputError: as `score_trajectories`.
    """
    turns, windows = _rooms(trajs, num_turns, num_windows)
    plans = []
    for trajectory in trajs:
        shape = len(trajectory.times), len(trajectory.windows)
        unknown = np.full(shape, np.nan, np.float32)
        none = np.zeros(shape[0], np.float32)
        repetition = np.full(shape[0], np.nan, np.float32)
        values = {"quality": unknown, "repetition": repetition, "shared_prefix": none}
        plans.append({name: Plan(value) for name, value in values.items()})
    return _turns(trajs, plans, turns, windows), _windows(trajs, windows)


def _turns(
    trajs: Sequence[Trajectory], plans: Sequence[dict[str, Plan]], num_turns: int, num_windows: int
) -> ScoredTurns:
    shape = (len(trajs), num_turns)
    time_NK = np.zeros(shape, np.float32)
    replied_NK = np.zeros(shape, bool)
    quality_NKW = np.full((*shape, num_windows), np.nan, np.float32)
    repetitive_NK = np.full(shape, np.nan, np.float32)
    shares_prefix_NK = np.zeros(shape, bool)
    mask_NK = np.zeros(shape, bool)
    for n, (trajectory, plan) in enumerate(zip(trajs, plans, strict=True)):
        k, w = plan["quality"].values.shape
        time_NK[n, :k] = trajectory.times
        time_NK[n, k:] = trajectory.times[-1] if k else 0.0
        replied_NK[n, list(trajectory.spoken)] = True
        quality_NKW[n, :k, :w] = plan["quality"].values
        repetitive_NK[n, :k] = plan["repetition"].values
        shares_prefix_NK[n, :k] = plan["shared_prefix"].values
        mask_NK[n, :k] = True
    return ScoredTurns(
        time=time_NK,
        replied=replied_NK,
        quality=quality_NKW,
        repetitive=repetitive_NK,
        shares_prefix=shares_prefix_NK,
        mask=mask_NK,
    )


def _windows(trajs: Sequence[Trajectory], num_windows: int) -> Windows:
    ends_NW2 = np.zeros((len(trajs), num_windows, 2), np.float32)
    mask_NW = np.zeros((len(trajs), num_windows), bool)
    for n, trajectory in enumerate(trajs):
        for w, window in enumerate(trajectory.windows):
            ends_NW2[n, w] = window.start, window.end
            mask_NW[n, w] = window.start <= trajectory.horizon
    return Windows(start=ends_NW2[..., 0], end=ends_NW2[..., 1], mask=mask_NW)


def _rooms(
    trajs: Sequence[Trajectory], num_turns: int | None, num_windows: int | None
) -> tuple[int, int]:
    """K and W of the arrays of checked trajectories."""
    for trajectory in trajs:
        _check(trajectory)
    return _room(trajs, "times", num_turns), _room(trajs, "windows", num_windows)


def _room(trajs: Sequence[Trajectory], field: str, room: int | None) -> int:
    """The size to pad `field` to; InputError naming the record that does not fit."""
    longest = max(trajs, key=lambda t: len(getattr(t, field)), default=None)
    needed = 0 if longest is None else len(getattr(longest, field))
    if room is None:
        return max(1, needed)
    if needed > room:
        raise InputError(f"{needed} where there is room for {room}", record=longest.id, field=field)
    return room


def _check(trajectory: Trajectory) -> None:
    times = np.asarray(trajectory.times, np.float64)
    if len(times) != len(trajectory.replies):
        message = f"{len(trajectory.replies)} replies at {len(times)} decision times"
        raise InputError(message, record=trajectory.id, field="replies")
    if trajectory.forms and len(times) != len(trajectory.forms):
        message = f"{len(trajectory.forms)} forms of {len(times)} turns"
        raise InputError(message, record=trajectory.id, field="forms")
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        message = "decision times must be finite and must not fall"
        raise InputError(message, record=trajectory.id, field="times")
    for window in trajectory.windows:
        if not -np.inf < window.start <= window.end < np.inf:
            message = f"window [{window.start}, {window.end}] must end at or after its start"
            raise InputError(message, record=trajectory.id, field="windows")
