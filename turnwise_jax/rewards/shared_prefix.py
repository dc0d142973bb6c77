"""The long-shared-prefix rule: the numerator of D_prefix.

Facts 2: a reply hits if it has at least ``prefix_chars`` leading characters (not tokens;
case-sensitive) in common with any earlier reply of the rollout or any history reply. At most one
hit a turn; silence neither hits nor is hit. A verbatim copy of a long reply hits too.
"""

from __future__ import annotations

import numpy as np

from turnwise_jax.rewards.plan import Plan, Settings, Trajectory


def plan(trajectory: Trajectory, settings: Settings) -> Plan:
    """Values [K]: 1 for a hit, else 0. No judge is needed."""
    values = np.zeros(len(trajectory.times), np.float32)
    length = settings.prefix_chars
    seen = {text[:length] for text in trajectory.past if len(text) >= length}
    for k, reply in trajectory.spoken.items():
        if len(reply) >= length:
            values[k] = reply[:length] in seen
            seen.add(reply[:length])
    return Plan(values)
