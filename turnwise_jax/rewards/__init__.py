"""Text becomes numbers: what a rollout said is judged here, and summed up by `kernels.scoring`.

``plan``           a trajectory as text; what a reward knows before a judge is asked
``quality``        judged quality of replies inside reply windows
``repetition``     replies that only say what was said before
``shared_prefix``  replies that begin like an earlier one
``trajectory``     `score_trajectories`: a batch of trajectories as the kernels' arrays
``judges``         who reads the texts: a rule, a language model, a cache before either

A new reward is one file and one line in ``REWARDS``: a function from a trajectory to a `plan.Plan`.
"""

from __future__ import annotations

from collections.abc import Callable

from turnwise_jax.rewards import quality, repetition, shared_prefix
from turnwise_jax.rewards.judges import JUDGES
from turnwise_jax.rewards.plan import Plan, Settings, Trajectory

__all__ = ["JUDGES", "REWARDS"]

REWARDS: dict[str, Callable[[Trajectory, Settings], Plan]] = {
    "quality": quality.plan,
    "repetition": repetition.plan,
    "shared_prefix": shared_prefix.plan,
}
