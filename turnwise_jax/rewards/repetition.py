"""Whether a reply only says what was said before: the numerator of D_rep.

Facts 2: over all non-silent replies of the rollout, inside windows or not, each counted once (the
paper; design 5.3). A verbatim copy of an earlier reply or of a history reply is repetitive without
asking. Any other reply is put to the judge with everything said before it, history first, joined by
one space, also the very first reply with nothing before it.
"""

from __future__ import annotations

import numpy as np

from turnwise_jax.rewards.judges.protocol import Request
from turnwise_jax.rewards.plan import Plan, Settings, Trajectory


def plan(trajectory: Trajectory, settings: Settings) -> Plan:
    """Values [K]: 1 for verbatim copies, NaN for silence and for what the judge has to say."""
    values = np.full(len(trajectory.times), np.nan, np.float32)
    asks = []
    said = trajectory.past
    for k, reply in trajectory.spoken.items():
        if reply in said:
            values[k] = 1.0
            continue
        asks.append(((k,), Request("repetition", previous=" ".join(said), reply=reply)))
        said.append(reply)
    return Plan(values, tuple(asks))
