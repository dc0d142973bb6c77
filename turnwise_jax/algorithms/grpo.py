"""GRPO on streaming dialogues: one advantage per trajectory, token-mean loss (eq. 2, 6, 8).

The paper's baseline: the terminal reward of each of ``G`` rollouts, standardised within the group,
is given to every token (eq. 2); token losses are averaged within a trajectory, then over
trajectories (eq. 8). ``reduction="batch_token"`` is the form of verl and DAPO, one mean over all
tokens of the batch. ``kl`` adds a penalty for leaving the policy with which the run began.

The baselines MMDuet2, ThinkStream and StreamPro are this method with their own rewards
(``rewards.streaming``): they broadcast one advantage too.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import (
    check_clipping,
    check_kl,
    check_reduction,
    policy_gradient_terms,
)
from turnwise_jax.algorithms.types import Actions, Terms


class Settings(NamedTuple):
    """Defaults are the paper's (section 4.1)."""

    reduction: str = "trajectory_token"  # one of policy_gradient.REDUCTIONS
    eps: float = 1e-6
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    kl: float = 0.0  # beta; 0: no reference policy is kept
    kl_kind: str = "k3"  # estimator of the KL: "k2" or "k3"

    def check(self) -> None:
        check_clipping(self.clip_low, self.clip_high, self.dual_clip)
        check_reduction(self.reduction)
        if not self.eps > 0:
            raise ValueError("eps must be above 0")
        check_kl(self.kl, self.kl_kind)

    @property
    def prefix_scores(self) -> bool:
        """Only the terminal reward counts."""
        return False

    @property
    def reference(self) -> bool:
        """Whether a reference policy is needed."""
        return self.kl > 0


def schedule(settings: Settings, step: int | Array, total_steps: int) -> dict[str, Array]:
    """Nothing changes over the run."""
    return {}


def advantages(
    prefix_scores_GK1: Array,
    turn_mask_GK: Array,
    rollout_mask_G: Array,
    *,
    step: int | Array,
    total_steps: int,
    settings: Settings,
) -> Array:
    """f32[G, K]: the group-relative terminal reward R_i = U_{i,T}, the same at every turn."""
    del step, total_steps
    advantage_G = kernels.group_advantages(
        prefix_scores_GK1[:, -1], mask=rollout_mask_G, eps=settings.eps
    )
    return jnp.where(turn_mask_GK, advantage_G[:, None], 0.0)


def loss(actions: Actions, advantage_K: Array, settings: Settings) -> Terms:
    """One trajectory's share of eq. 8 and its statistics."""
    return policy_gradient_terms(
        actions,
        advantage_K,
        reduction=settings.reduction,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        kl=settings.kl,
        kl_kind=settings.kl_kind,
    )
