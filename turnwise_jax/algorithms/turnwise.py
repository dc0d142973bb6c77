"""TurnWise: turn-level credit and turn-mean loss (arXiv 2611.06728, Algorithm 1).

For every streaming instance of a batch:

1. sample ``G`` aligned trajectories from the old policy (``rollout/``), lines 8-9;
2. score each with eq. 1 and scan its silence-completed prefix scores ``U_t`` (``rewards/`` and
   ``kernels.prefix_scores``), lines 10-11;
3. :func:`advantages`: group-relative remaining return, eq. 5, lines 12-22;
4. :func:`loss`: dual-clipped surrogate per token (eq. 6, H.1), then the mean within each turn and
   over the turns of a trajectory (eq. 7), lines 24-28; the step averages over trajectories.

``credit`` and ``reduction`` switch each of the two ideas off, which gives the paper's ablations
(Table 2): shared + trajectory_token is GRPO, shared + turn is "+ Turn Mean", turn +
trajectory_token is "+ Credit".
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import (
    check_clipping,
    check_reduction,
    policy_gradient_terms,
)
from turnwise_jax.algorithms.types import Actions, Terms

CREDITS = ("turn", "shared")


class Settings(NamedTuple):
    """Defaults are the paper's (section 4.1)."""

    credit: str = "turn"  # "turn": eq. 5; "shared": eq. 2 broadcast to every turn
    reduction: str = "turn"  # one of policy_gradient.REDUCTIONS
    alpha: float = 1.0  # strength of the accrued-reward correction after warm-up
    alpha_warmup: float = 0.1  # share of the updates over which it grows from 0
    max_advantage: float = 5.0
    eps: float = 1e-6
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0

    def check(self) -> None:
        check_clipping(self.clip_low, self.clip_high, self.dual_clip)
        if self.credit not in CREDITS:
            raise ValueError(f"credit is {self.credit!r}; allowed: {', '.join(CREDITS)}")
        check_reduction(self.reduction)
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha is {self.alpha}; it must be in [0, 1]")
        if not 0.0 <= self.alpha_warmup <= 1.0:
            raise ValueError(f"alpha_warmup is {self.alpha_warmup}; it must be in [0, 1]")
        if not (self.max_advantage > 0 and self.eps > 0):
            raise ValueError("max_advantage and eps must be above 0")

    @property
    def prefix_scores(self) -> bool:
        """Whether advantages are made of more than the terminal reward."""
        return self.credit == "turn"


def alpha(settings: Settings, step: int | Array, total_steps: int) -> Array:
    """alpha(s) of eq. G.8, scaled to ``settings.alpha``; 0 for shared credit.

    Args:
      step: completed optimizer updates s.
      total_steps: scheduled updates S.
    """
    if settings.credit == "shared":
        return jnp.zeros((), jnp.float32)
    warm = kernels.alpha_warmup(step, total_steps, fraction=settings.alpha_warmup)
    return settings.alpha * warm


def schedule(settings: Settings, step: int | Array, total_steps: int) -> dict[str, Array]:
    """What changes over the run, for the logs; arguments as in :func:`alpha`."""
    return {"alpha": alpha(settings, step, total_steps)}


def advantages(
    prefix_scores_GK1: Array,
    turn_mask_GK: Array,
    rollout_mask_G: Array,
    *,
    step: int | Array,
    total_steps: int,
    settings: Settings,
) -> Array:
    """f32[G, K] advantage of every decision turn of one group (eq. 5)."""
    return kernels.turn_advantages(
        prefix_scores_GK1,
        turn_mask=turn_mask_GK,
        rollout_mask=rollout_mask_G,
        alpha=alpha(settings, step, total_steps),
        eps=settings.eps,
        clip=settings.max_advantage,
    )


def loss(actions: Actions, advantage_K: Array, settings: Settings) -> Terms:
    """L_i of eq. 7 and its statistics for one trajectory."""
    return policy_gradient_terms(
        actions,
        advantage_K,
        reduction=settings.reduction,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
    )
