"""Supervised fine-tuning: cross-entropy on the given replies, silence included.

``balance="classes"`` is StreamPro's CB-Stream loss (arXiv 2605.16381, eq. 3 and 4). The token with
which a turn decides for silence or for speech weighs more the rarer its class is in the batch, by
the effective number of samples ``E_k = (1 - beta^n_k) / (1 - beta)``; every other token weighs
``text_weight``. There silence and speech are tokens of their own; here the deciding token is the
one at ``decision_token`` in a turn, the first of "NO REPLY" or of the reply. A class that the batch
does not have is left out of the sum in eq. 3, which would else leave the other without weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from turnwise_jax import kernels
from turnwise_jax.algorithms.policy_gradient import check_reduction, reduce_tokens
from turnwise_jax.algorithms.types import Actions, Terms

BALANCES = ("none", "classes")


class Settings(NamedTuple):
    """``reduction`` as in RL; one mean over all trained tokens of the batch by default. The others
    are of the CB-Stream loss, and its paper's (section 5.1)."""

    reduction: str = "batch_token"
    balance: str = "none"  # one of BALANCES
    beta: float = 0.9999
    text_weight: float = 2.0  # lambda_text
    decision_token: int = 0  # index within a turn

    def check(self) -> None:
        check_reduction(self.reduction)
        if self.balance not in BALANCES:
            raise ValueError(f"balance is {self.balance!r}; allowed: {', '.join(BALANCES)}")
        if not 0.0 <= self.beta < 1.0:
            raise ValueError(f"beta is {self.beta}; it must be in [0, 1)")
        if not (self.text_weight >= 0.0 and self.decision_token >= 0):
            raise ValueError("text_weight and decision_token must not be negative")


def class_weights(counts: Sequence[int], beta: float) -> np.ndarray:
    """f32[C] weights of classes with so many samples in the batch (eq. 3); 0 for an absent one.

    Those of the classes that are there add up to their number.
    """
    count_C = np.asarray(counts, np.float64)
    here = count_C > 0
    effective = (1.0 - beta**count_C) / (1.0 - beta)
    inverse = np.where(here, 1.0 / np.where(here, effective, 1.0), 0.0)
    weight_C: np.ndarray = here.sum() * inverse / max(inverse.sum(), 1e-300)
    return weight_C.astype(np.float32)


def loss(actions: Actions, advantage_K: Array, settings: Settings) -> Terms:
    """Negative log-likelihood of the trained tokens of one dialogue.

    ``advantage_K`` holds the weights of the turns' decisions if classes are balanced, else nothing;
    its length says how many turns there can be.
    """
    mask_A = actions.mask_A
    nll_A = kernels.cross_entropy(actions.logp_A, mask_A)
    turn_A = jnp.where(mask_A, actions.turn_id_A, 0)
    loss_A = nll_A
    if settings.balance == "classes":
        decides_A = place_in_turn(turn_A, advantage_K.shape[0]) == settings.decision_token
        loss_A = jnp.where(decides_A, advantage_K[turn_A], settings.text_weight) * nll_A
    total, count = reduce_tokens(
        loss_A, mask_A, turn_A, num_turns=advantage_K.shape[0], reduction=settings.reduction
    )
    nll = lax.stop_gradient(nll_A.sum())
    return Terms(total, count, means={"nll": (nll, mask_A.sum(dtype=jnp.float32))}, maxima={})


def place_in_turn(turn_A: Array, num_turns: int) -> Array:
    """i32[A]: how many tokens of its turn stand before each; turns follow one another."""
    index_A = jnp.arange(turn_A.shape[0])
    first_K = jnp.full(num_turns, turn_A.shape[0]).at[turn_A].min(index_A)
    return index_A - first_K[turn_A]
