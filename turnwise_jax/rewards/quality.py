"""Judged quality of each reply inside each reply window: the heights of the PAUC curve.

Facts 1.1 and 1.2, RL column: a reply lies in a window if start <= time <= end; it is judged on its
own against that window's question and answer; a text said again in the same window is judged and
plotted once, at its first time. Scores belong to a (reply, window) pair, so that a reply on the
border of two windows has two (the reference code keys by time and would share the later one).
A score that the judge failed to give stays NaN, and the curve goes on without it; whether such a
rollout may be compared with others is asked by `unanswered`.
"""

from __future__ import annotations

import numpy as np

from turnwise_jax.rewards.judges.protocol import Request
from turnwise_jax.rewards.plan import Plan, Settings, Trajectory


def plan(trajectory: Trajectory, settings: Settings) -> Plan:
    """Values [K, W], NaN until judged; windows that start after the last decision are skipped."""
    shape = (len(trajectory.times), len(trajectory.windows))
    asks = []
    for w, window in enumerate(trajectory.windows):
        if window.start > trajectory.horizon:
            continue
        said: set[str] = set()
        for k, reply in trajectory.spoken.items():
            if window.start <= trajectory.times[k] <= window.end and reply not in said:
                said.add(reply)
                request = Request("quality", window.question, window.answer, reply=reply)
                asks.append(((k, w), request))
    return Plan(np.full(shape, np.nan, np.float32), tuple(asks))


def unanswered(trajectory: Trajectory, quality_KW: np.ndarray) -> set[Request]:
    """What a judge should have graded of a trajectory and what has no score in ``[K, W]``."""
    asks = plan(trajectory, Settings()).asks
    return {request for at, request in asks if not np.isfinite(quality_KW[at])}
