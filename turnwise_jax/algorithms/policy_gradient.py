"""The clipped policy-gradient surrogate of one trajectory, reduced in any of three ways."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from turnwise_jax import kernels
from turnwise_jax.algorithms.types import Actions, Terms

REDUCTIONS = ("turn", "trajectory_token", "batch_token")
KL_KINDS = ("k1", "k2", "k3")


def check_clipping(clip_low: float, clip_high: float, dual_clip: float) -> None:
    """Raise ValueError for clip ranges that are not ranges and dual-clip constants c <= 1."""
    if not (0.0 <= clip_low < 1.0 and clip_high >= 0.0):
        raise ValueError(
            f"clip range 1 - {clip_low} .. 1 + {clip_high} is not one: "
            "clip_low must be in [0, 1) and clip_high at least 0"
        )
    if not dual_clip > 1.0:
        raise ValueError(f"dual_clip is {dual_clip}; eq. H.1 needs c > 1")


def check_reduction(reduction: str) -> None:
    """Raise ValueError for a name that is not in ``REDUCTIONS``."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}")


def check_kl(kl: float, kl_kind: str) -> None:
    """Raise ValueError for a KL term that cannot be, or that would train something else."""
    if not kl >= 0.0:
        raise ValueError("kl must not be negative")
    if kl_kind not in KL_KINDS:
        raise ValueError(f"kl_kind is {kl_kind!r}; allowed: {', '.join(KL_KINDS)}")
    if kl and kl_kind == "k1":
        raise ValueError(
            "kl_kind is 'k1', whose gradient does not depend on the reference policy (its mean is "
            "0): use k2 or k3, or kl=0"
        )


def policy_gradient_terms(
    actions: Actions,
    advantage_K: Array,
    *,
    reduction: str,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    kl: float = 0.0,
    kl_kind: str = "k3",
) -> Terms:
    """Dual-clipped surrogate of every token (eq. 6, H.1), reduced over the trajectory.

    Args:
      actions: the trajectory's tokens.
      advantage_K: advantage of each decision turn.
      reduction: ``"turn"``: mean within turns, then over turns (eq. 7); ``"trajectory_token"``:
        mean over the trajectory's tokens (eq. 8); ``"batch_token"``: tokens of the whole batch.
      kl, kl_kind: factor and estimator of a KL term per token against ``actions.mixture``'s
        reference, within the same mean; 0: none.
    """
    mask_A = actions.mask_A
    turn_A = jnp.where(mask_A, actions.turn_id_A, 0)
    advantage_A = jnp.where(mask_A, advantage_K[turn_A], 0.0)
    ratio_A = kernels.importance_ratio(actions.logp_A, actions.old_logp_A, mask_A)
    loss_A = kernels.clipped_surrogate(
        ratio_A, advantage_A, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    kl_A = None
    if kl and actions.mixture is not None:
        kl_A = kernels.kl_estimate(
            actions.logp_A, actions.mixture.ref_logp_A, kind=kl_kind, mask_T=mask_A
        )
        loss_A += kl * kl_A
    total, count = reduce_tokens(
        loss_A, mask_A, turn_A, num_turns=advantage_K.shape[0], reduction=reduction
    )
    clipped_A = kernels.clipped_tokens(
        ratio_A, advantage_A, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    means, maxima = statistics(actions, ratio_A, clipped_A)
    if kl_A is not None:
        means["kl"] = kernels.token_mean_terms(kl_A, mask_A)
    return Terms(total, count, means, maxima)


def reduce_tokens(
    value_A: Array, mask_A: Array, turn_id_A: Array, *, num_turns: int, reduction: str
) -> tuple[Array, Array]:
    """(numerator, denominator) that one trajectory adds to the batch's loss.

    A trajectory without trained tokens adds nothing to either.
    """
    check_reduction(reduction)
    if reduction == "batch_token":
        return kernels.token_mean_terms(value_A, mask_A)
    if reduction == "trajectory_token":
        mean = kernels.token_mean(value_A, mask_A)
    else:
        mean = kernels.turn_mean(value_A, mask_A, turn_id_A, num_turns)
    return mean, mask_A.any().astype(jnp.float32)


def statistics(
    actions: Actions, ratio_A: Array, clipped_A: Array
) -> tuple[dict[str, tuple[Array, Array]], dict[str, Array]]:
    """What to watch beside a loss that is zero by construction: ratios, clipping, log-probs.

    Returns:
      (means as (sum, count), maxima).
    """
    mask_A = actions.mask_A

    def total(value_A: Array) -> Array:
        return lax.stop_gradient(jnp.where(mask_A, value_A, 0.0).sum())

    tokens = mask_A.sum(dtype=jnp.float32)
    off_A = lax.stop_gradient(jnp.where(mask_A, jnp.abs(ratio_A - 1.0), 0.0))
    gap_A = lax.stop_gradient(
        jnp.where(mask_A, jnp.abs(actions.old_logp_A - actions.sampler_logp_A), 0.0)
    )
    means = {
        "ratio": (total(ratio_A), tokens),
        "clip_fraction": (total(clipped_A.astype(jnp.float32)), tokens),
        "logp": (total(actions.logp_A), tokens),
        "sampler_gap": (gap_A.sum(), tokens),  # trainer against sampler, same tokens
    }
    return means, {"ratio_off_one_max": off_A.max(), "sampler_gap_max": gap_A.max()}
