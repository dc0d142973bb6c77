"""Judged quality of each reply inside each reply window: the heights of the PAUC curve.

Facts 1.1 and 1.2, RL column: a reply lies in a window if start <= time <= end; it is judged on its
own against that window's question and answer; a text said again in the same window is judged and
plotted once, at its first time. Scores belong to a (reply, window) pair, so that a reply on the
border of two windows has two (the reference code keys by time and would share the later one).
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
