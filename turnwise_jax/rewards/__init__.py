"""Text becomes numbers: what a rollout said is judged here.

Streaming replies, summed up by `kernels.scoring`:

``plan``           a trajectory as text; what a reward knows before a judge is asked
``quality``        judged quality of replies inside reply windows
``repetition``     replies that only say what was said before
``shared_prefix``  replies that begin like an earlier one
``trajectory``     `score_trajectories`: a batch of trajectories as the kernels' arrays

Answers to questions:

``answers``           the reasoning and the final answer of a reply
``answer_format``     whether a reply keeps to the form of both
``accuracy``          what a final answer is worth; by way of ``choices``, ``numbers``, ``overlap``
``self_consistency``  agreement with the majority of a prompt's answers
``stepwise``          what a judge of the reasoning is asked
``qa``                `score_answers`: a batch of rollouts as terms, and their weighted total

``hint_teacher``, ``hint_leaks``  who writes hints for questions, and what such a hint may not say

``asking``  a batch's questions to a judge, in one call
``judges``  who reads the texts: a rule, a language model, a cache before either

A new reward of trajectories is one file and one line in ``REWARDS``: a function from a trajectory
to a `plan.Plan`.
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
