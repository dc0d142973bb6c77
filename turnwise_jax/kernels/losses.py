"""Losses per token: importance ratio, clipped surrogate, KL estimates, cross-entropy.

Each takes and returns one value per token. Which mean is taken over them is `reduce`'s business.
Losses are minimised.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from turnwise_jax.kernels._arrays import as_bool, as_float, check_axes, check_static, hide
from turnwise_jax.kernels.reduce import trajectory_mean

# Beyond exp(20) = 4.9e8 a ratio says nothing but "far away"; keeping it there makes the gradient 0
# where exp would overflow to inf and its gradient to NaN.
MAX_LOG_RATIO = 20.0
_MAX_RATIO = math.exp(MAX_LOG_RATIO)


def importance_ratio(
    logp_T: ArrayLike,
    old_logp_T: ArrayLike,
    mask_T: ArrayLike,
    *,
    truncate: ArrayLike | None = None,
    level: str = "token",
) -> Array:
    """Probability ratio `exp(logp - old_logp)` of current to behaviour policy, token by token.

    TurnWise's rho (eq. 6), AVATAR's r (eq. 4). For replayed tokens `old_logp_T` is what was stored
    when they were sampled. Log-ratios beyond 20 in magnitude are held there and get no gradient, so
    the result is always finite.

    `level="sequence"` gives every token the ratio of the whole sequence, the product over its
    tokens, and the gradient `ratio * grad logp` of its own log-probability. Without clipping, the
    expected gradient over samples of the old policy is then exactly that over samples of the
    current one, whatever mean over tokens follows; token ratios leave out what earlier and later
    tokens have drifted, for less variance.

    Args:
        logp_T: f32[T] log-probabilities under the current policy.
        old_logp_T: f32[T] the same tokens under the policy that sampled them.
        mask_T: bool[T] tokens that count.
        truncate: upper bound on the ratio (truncated importance sampling), without gradient above;
            None for none.
        level: "token" or "sequence".

    Returns:
        f32[T]; 1 outside the mask.

    Raises:
        ValueError: wrong ranks or lengths, `truncate` not positive, unknown `level`.
    """
    if level not in ("token", "sequence"):
        raise ValueError(f"level should be 'token' or 'sequence', got {level!r}")
    logp, old, mask = as_float(logp_T), as_float(old_logp_T), as_bool(mask_T)
    check_axes(logp_T=(logp, "T"), old_logp_T=(old, "T"), mask_T=(mask, "T"))
    check_static(truncate, lambda value: value > 0, "truncate must be positive")
    log_ratio = jnp.clip(hide(logp - old, mask), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    if level == "sequence":
        others = lax.stop_gradient(jnp.sum(log_ratio) - log_ratio)
        log_ratio = jnp.clip(log_ratio + hide(others, mask), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    return ratio if truncate is None else jnp.minimum(ratio, as_float(truncate))


def clipped_surrogate(
    ratio: ArrayLike,
    advantage: ArrayLike,
    *,
    clip_low: ArrayLike = 0.2,
    clip_high: ArrayLike = 0.2,
    dual_clip: ArrayLike | None = 3.0,
) -> Array:
    """Clipped policy-gradient loss with dual clip (eq. 6 and H.1), per token.

    `-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)`, and for `A < 0` no more than
    `-dual_clip A`.

    Args:
        ratio: f32[T] from `importance_ratio`, or a scalar.
        advantage: f32[T] each token's advantage, or one scalar for all.
        clip_low, clip_high: how far the ratio may fall below or rise above 1.
        dual_clip: c of eq. H.1, above 1; None for no dual clip.

    Returns:
        f32[T] losses; 0 where the advantage is 0, whatever the ratio.

    Raises:
        ValueError: shapes that differ, a clip range that is negative or reversed, `dual_clip` not
            above 1.

    Example:
        >>> [float(clipped_surrogate(r, -1.0)) for r in (0.5, 2.0, 9.0)]
        [0.800000011920929, 2.0, 3.0]
    """
    ratio, advantage = _surrogate_inputs(ratio, advantage, clip_low, clip_high, dual_clip)
    clipped = jnp.clip(ratio, 1 - as_float(clip_low), 1 + as_float(clip_high))
    loss = -jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is None:
        return loss
    bounded = jnp.minimum(loss, -as_float(dual_clip) * advantage)
    return jnp.where(advantage < 0, bounded, loss)


def clipped_tokens(
    ratio: ArrayLike,
    advantage: ArrayLike,
    *,
    clip_low: ArrayLike = 0.2,
    clip_high: ArrayLike = 0.2,
    dual_clip: ArrayLike | None = 3.0,
) -> Array:
    """Where `clipped_surrogate`, given the same arguments, leaves no gradient: clip statistics.

    Returns:
        bool[T]; its `token_mean` is the clip fraction.

    Raises:
        ValueError: as `clipped_surrogate`.
    """
    ratio, advantage = _surrogate_inputs(ratio, advantage, clip_low, clip_high, dual_clip)
    too_high = (advantage > 0) & (ratio > 1 + as_float(clip_high))
    too_low = (advantage < 0) & (ratio < 1 - as_float(clip_low))
    if dual_clip is None:
        return too_high | too_low
    return too_high | too_low | ((advantage < 0) & (ratio > as_float(dual_clip)))


def _surrogate_inputs(
    ratio: ArrayLike,
    advantage: ArrayLike,
    clip_low: ArrayLike,
    clip_high: ArrayLike,
    dual_clip: ArrayLike | None,
) -> tuple[Array, Array]:
    ratio, advantage = as_float(ratio), as_float(advantage)
    named = {"ratio": (ratio, "T"), "advantage": (advantage, "T")}
    check_axes(**{name: pair for name, pair in named.items() if pair[0].ndim})
    check_static(clip_low, lambda value: 0 <= value <= 1, "clip_low must be between 0 and 1")
    check_static(clip_high, lambda value: value >= 0, "clip_high must not be negative")
    check_static(dual_clip, lambda value: value > 1, "dual_clip must be above 1")
    # A ratio made elsewhere may be inf, and inf times an advantage of 0 would be NaN.
    return jnp.minimum(ratio, _MAX_RATIO), advantage


def kl_estimate(
    logp_T: ArrayLike, ref_logp_T: ArrayLike, *, kind: str = "k3", mask_T: ArrayLike | None = None
) -> Array:
    """Estimates of KL(policy || reference) from sampled tokens, per token.

    With `d = ref_logp - logp` and tokens sampled from the policy:

    * `"k1"`: `-d`. Mean: the KL. Mean gradient: 0, so it measures but cannot train.
    * `"k2"`: `d^2 / 2`. Mean: half the mean squared log-ratio, `E[log(policy / reference)^2] / 2`,
      close to the KL when it is small. Mean gradient: that of the KL.
    * `"k3"`: `exp(d) - 1 - d`, never negative. Mean: the KL. Mean gradient: that of
      KL(reference || policy). AVATAR's code uses this one.

    Nothing here weighs tokens that another policy sampled (replayed, or of an earlier inner epoch):
    their means are under that policy, and are no KL.

    Args:
        logp_T: f32[T] log-probabilities under the policy.
        ref_logp_T: f32[T] the same tokens under the reference.
        kind: "k1", "k2" or "k3".
        mask_T: bool[T] tokens that count, all by default.

    Returns:
        f32[T]; 0 outside the mask. In k3 a `d` above 20 is held there and gets no gradient.

    Raises:
        ValueError: unknown `kind`, wrong ranks or lengths.
    """
    logp, ref = as_float(logp_T), as_float(ref_logp_T)
    mask = jnp.ones(logp.shape, jnp.bool_) if mask_T is None else as_bool(mask_T)
    check_axes(logp_T=(logp, "T"), ref_logp_T=(ref, "T"), mask_T=(mask, "T"))
    difference = hide(ref - logp, mask)
    if kind == "k1":
        return -difference
    if kind == "k2":
        return difference**2 / 2
    if kind == "k3":
        difference = jnp.minimum(difference, MAX_LOG_RATIO)
        return jnp.expm1(difference) - difference
    raise ValueError(f"kind should be 'k1', 'k2' or 'k3', got {kind!r}")


def cross_entropy(logp_T: ArrayLike, mask_T: ArrayLike) -> Array:
    """Negative log-likelihood of given tokens: the loss of supervised fine-tuning, per token.

    Args:
        logp_T: f32[T] log-probabilities of the target tokens, from `token_logprobs`.
        mask_T: bool[T] trained tokens.

    Returns:
        f32[T]; 0 outside the mask.

    Raises:
        ValueError: wrong ranks or lengths.
    """
    logp, mask = as_float(logp_T), as_bool(mask_T)
    check_axes(logp_T=(logp, "T"), mask_T=(mask, "T"))
    return -hide(logp, mask)


def replay_mean(
    loss_N: ArrayLike, mask_N: ArrayLike, replayed_N: ArrayLike, *, weight: ArrayLike = 1.0
) -> Array:
    """On-policy and replayed losses joined: `J_on + weight J_off` (AVATAR eq. 3).

    Each part is the mean over its own samples, so the weight does not depend on how many of either
    kind a batch holds. To split a batch, keep `trajectory_mean_terms` of the two parts.

    Args:
        loss_N: f32[N] loss of each sample, its own KL included.
        mask_N: bool[N] samples that take part.
        replayed_N: bool[N] True for samples from the replay buffer.
        weight: AVATAR's alpha.

    Returns:
        f32[]; a part without samples adds 0.

    Raises:
        ValueError: wrong ranks or lengths.
    """
    loss, mask, replayed = as_float(loss_N), as_bool(mask_N), as_bool(replayed_N)
    check_axes(loss_N=(loss, "N"), mask_N=(mask, "N"), replayed_N=(replayed, "N"))
    fresh_part = trajectory_mean(loss, mask & ~replayed)
    return fresh_part + as_float(weight) * trajectory_mean(loss, mask & replayed)
