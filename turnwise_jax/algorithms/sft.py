"""Supervised fine-tuning: cross-entropy on the given replies, silence included."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import check_reduction, reduce_tokens
from turnwise_jax.algorithms.types import Actions, Terms


class Settings(NamedTuple):
    """``reduction`` as in RL; one mean over all trained tokens of the batch by default."""

    reduction: str = "batch_token"

    def check(self) -> None:
        check_reduction(self.reduction)


def loss(actions: Actions, advantage_K: Array, settings: Settings) -> Terms:
    """Negative log-likelihood of the trained tokens of one dialogue.

    ``advantage_K`` is not used; its length says how many turns there can be.
    """
    mask_A = actions.mask_A
    nll_A = kernels.cross_entropy(actions.logp_A, mask_A)
    turn_A = jnp.where(mask_A, actions.turn_id_A, 0)
    total, count = reduce_tokens(
        nll_A, mask_A, turn_A, num_turns=advantage_K.shape[0], reduction=settings.reduction
    )
    nll = lax.stop_gradient(nll_A.sum())
    return Terms(total, count, means={"nll": (nll, mask_A.sum(dtype=jnp.float32))}, maxima={})
