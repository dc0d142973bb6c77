"""Advantages: group-relative, turn-level by remaining return, and for replayed samples.

One group at a time (`[G]` rewards or `[G, K+1]` prefix scores); `jax.vmap` for many, so a group is
what you pass and never a guess from a batch size. A ragged group is padded and masked, and gives
what the smaller group alone would give.

A group has signal when at least two valid rewards are left and they differ by more than 1e-6 times
`max(1, largest magnitude)`. Without signal every advantage is exactly 0: the formulas would divide
rounding errors by epsilon. A reward that is not finite masks its own rollout only.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from turnwise_jax.kernels._arrays import (
    as_bool,
    as_float,
    check_axes,
    check_static,
    hide,
    ratio,
)

_MIN_SPREAD = 1e-6
_MAX_DENOMINATOR = 10_000


class _Group(NamedTuple):
    """Statistics of the valid rewards of one group."""

    deviation: Array  # f32[G] reward - mean, 0 at invalid rollouts and without signal
    sigma: Array  # f32[] standard deviation, 1 without signal
    signal: Array  # bool[]


def _valid(reward: Array, mask: ArrayLike | None, axes: str) -> Array:
    """Finite and not masked."""
    if mask is None:
        return jnp.isfinite(reward)
    mask = as_bool(mask)
    check_axes(reward=(reward, axes), mask=(mask, axes))
    return mask & jnp.isfinite(reward)


def _differ(reward: Array, valid: Array) -> Array:
    """bool[]: whether the valid rewards spread beyond rounding; False for none or one."""
    highest = jnp.max(jnp.where(valid, reward, -jnp.inf), initial=-jnp.inf)
    lowest = jnp.min(jnp.where(valid, reward, jnp.inf), initial=jnp.inf)
    magnitude = jnp.max(jnp.abs(hide(reward, valid)), initial=1.0)
    return highest - lowest > _MIN_SPREAD * magnitude


def _group(reward: Array, valid: Array, ddof: int) -> _Group:
    count = jnp.sum(valid)
    signal = _differ(reward, valid) & (count > ddof)
    # Measured from the lowest reward, differences are exact however far rewards are from 0.
    lowest = jnp.min(jnp.where(valid, reward, jnp.inf), initial=jnp.inf)
    above = reward - jax.lax.stop_gradient(lowest)
    mean = ratio(jnp.sum(hide(above, valid)), count)
    deviation = hide(above - mean, valid & signal)
    variance = jnp.sum(deviation**2) / jnp.maximum(count - ddof, 1)
    return _Group(deviation, jnp.sqrt(jnp.where(signal, variance, 1)), signal)


def _check_scale(eps: ArrayLike, ddof: int) -> None:
    check_static(eps, lambda value: value >= 0, "eps must not be negative")
    check_static(ddof, lambda value: value >= 0, "ddof must not be negative")


def has_signal(reward_G: ArrayLike, *, mask: ArrayLike | None = None) -> Array:
    """Whether the rewards of one group differ enough to teach anything.

    The mean over groups is the share of groups with signal. Applied to one turn's column of turn
    advantages it tells the same for that turn.

    Args:
        reward_G: f32[G].
        mask: bool[G] rollouts that take part, all by default.

    Returns:
        bool[].

    Raises:
        ValueError: wrong ranks or lengths.
    """
    reward = as_float(reward_G)
    check_axes(reward_G=(reward, "G"))
    return _differ(reward, _valid(reward, mask, "G"))


def group_advantages(
    reward_G: ArrayLike, *, mask: ArrayLike | None = None, eps: ArrayLike = 1e-6, ddof: int = 1
) -> Array:
    """Group-relative advantages `A_i = (R_i - mean R) / (sigma_R + eps)` (eq. 2), not clipped.

    Args:
        reward_G: f32[G] one group's rewards; a non-finite one counts as masked.
        mask: bool[G] rollouts that take part, all by default.
        eps: added to the standard deviation (TurnWise 1e-6, AVATAR 1e-4).
        ddof: 1 for the sample standard deviation (TurnWise), 0 for the population's.

    Returns:
        f32[G]; 0 for masked rollouts, and for all in a group without signal (one rollout included).

    Raises:
        ValueError: wrong ranks or lengths, negative `eps` or `ddof`.

    Example:
        >>> [round(float(a), 3) for a in group_advantages([1.0, 2.0, 3.0])]
        [-1.0, 0.0, 1.0]
    """
    reward = as_float(reward_G)
    check_axes(reward_G=(reward, "G"))
    _check_scale(eps, ddof)
    group = _group(reward, _valid(reward, mask, "G"), ddof)
    return group.deviation / (group.sigma + as_float(eps))


def turn_advantages(
    prefix_scores_GK1: ArrayLike,
    *,
    turn_mask: ArrayLike | None = None,
    rollout_mask: ArrayLike | None = None,
    alpha: ArrayLike = 1.0,
    eps: ArrayLike = 1e-6,
    clip: ArrayLike | None = 5.0,
) -> Array:
    """Turn-level advantages from remaining returns (eq. 5; eq. 4 at `alpha` = 1).

    `A_it = clip(A_i - alpha (C_i,t-1 - mean C_t-1) / (sigma_R + eps))`, where `A_i` is the shared
    advantage of eq. 2 and `C_i,t-1 = U_i,t-1 - U_i,0` the reward accrued before the decision.
    `alpha` = 0 is clipped GRPO.

    A rollout that ends before the others keeps its last score: it stays in the group's means with
    a remaining return of 0, and its own missing turns get 0.

    Args:
        prefix_scores_GK1: f32[G, K+1] from `prefix_scores`, one group on one observation plan. A
            rollout with a non-finite score counts as masked.
        turn_mask: bool[K] or bool[G, K] turns that exist, all by default. Scores after a missing
            turn are not read: the last real one is held.
        rollout_mask: bool[G] rollouts that take part, all by default.
        alpha: f32[] in [0, 1], how much of the accrued reward is removed; see `alpha_warmup`.
        eps: added to the sample standard deviation of the terminal rewards.
        clip: bound on the result's magnitude, None for none.

    Returns:
        f32[G, K]; 0 at masked turns and rollouts, and everywhere in a group without signal.

    Raises:
        ValueError: wrong ranks or lengths, `alpha` outside [0, 1], negative `eps`, `clip` not
            positive.
    """
    score = as_float(prefix_scores_GK1)
    check_axes(prefix_scores_GK1=(score, "GK"))
    num_rollouts, num_turns = score.shape[0], score.shape[1] - 1
    if num_turns < 0:
        raise ValueError(f"prefix_scores_GK1 needs at least U_0, got shape {score.shape}")
    check_static(alpha, lambda value: 0 <= value <= 1, "alpha must be between 0 and 1")
    check_static(clip, lambda value: value > 0, "clip must be positive")
    _check_scale(eps, 1)

    turns = _turn_mask(turn_mask, num_rollouts, num_turns)
    score = _hold_last(score, turns)
    rollouts = jnp.ones(num_rollouts, jnp.bool_) if rollout_mask is None else as_bool(rollout_mask)
    check_axes(prefix_scores_GK1=(score, "GK"), rollout_mask=(rollouts, "G"))
    valid = rollouts & jnp.all(jnp.isfinite(score), axis=1)
    score = hide(score, valid[:, None])

    group = _group(score[:, -1], valid, 1)
    accrued = score[:, :-1] - score[:, :1]
    mean_K = jnp.sum(accrued, axis=0) / jnp.maximum(jnp.sum(valid), 1)
    credit = group.deviation[:, None] - as_float(alpha) * (accrued - mean_K[None, :])
    advantage = credit / (group.sigma + as_float(eps))
    if clip is not None:
        advantage = jnp.clip(advantage, -as_float(clip), as_float(clip))
    return hide(advantage, turns & valid[:, None] & group.signal)


def _turn_mask(turn_mask: ArrayLike | None, num_rollouts: int, num_turns: int) -> Array:
    shape = (num_rollouts, num_turns)
    if turn_mask is None:
        return jnp.ones(shape, jnp.bool_)
    mask = as_bool(turn_mask)
    if mask.shape not in (shape, shape[1:]):
        raise ValueError(
            f"turn_mask should be [K] or [G, K], here {shape[1:]} or {shape}, got shape "
            f"{mask.shape}; kernels take one group, use jax.vmap for many"
        )
    return mask if mask.ndim == 2 else jnp.broadcast_to(mask[None, :], shape)


def _hold_last(score_GK1: Array, turns_GK: Array) -> Array:
    """Replace the score after every missing turn by the last real one before it."""
    ordinal = jnp.arange(1, score_GK1.shape[1], dtype=jnp.int32)
    latest = jax.lax.cummax(jnp.where(turns_GK, ordinal[None, :], 0), axis=1)
    held = jnp.take_along_axis(score_GK1, latest, axis=1)
    return jnp.concatenate([score_GK1[:, :1], held], axis=1)


def alpha_warmup(
    step: ArrayLike, total_steps: ArrayLike, *, fraction: float | Fraction = 0.1
) -> Array:
    """Credit warm-up `alpha(s) = min(1, s / ceil(fraction S))` (eq. G.8).

    The ceiling is taken on integers: 0.1 of 497 updates is 50, 0.1 of 30 is 3 and not 4.

    Args:
        step: i32[] completed optimizer updates.
        total_steps: i32[] scheduled updates.
        fraction: share of the schedule that warms up, read as the nearest ratio of integers with a
            denominator of at most 10,000; 0 means no warm-up.

    Returns:
        f32[] in [0, 1].

    Raises:
        ValueError: `fraction` outside [0, 1], a negative number of steps, a step that is no scalar.

    Example:
        >>> float(alpha_warmup(25, 497))
        0.5
    """
    check_static(fraction, lambda value: 0 <= value <= 1, "fraction must be between 0 and 1")
    check_static(total_steps, lambda value: value >= 0, "total_steps must not be negative")
    share = Fraction(fraction).limit_denominator(_MAX_DENOMINATOR)
    steps, total = jnp.asarray(step), jnp.asarray(total_steps)
    check_axes(step=(steps, ""), total_steps=(total, ""))
    # ceil(total * n / d) without the product, which could leave 32 bits.
    whole, rest = total // share.denominator, total % share.denominator
    warmup = whole * share.numerator - (-rest * share.numerator) // share.denominator
    grown = as_float(steps) / as_float(jnp.maximum(warmup, 1))
    return jnp.where(warmup > 0, jnp.clip(grown, 0, 1), jnp.float32(1))


def replay_advantages(
    reward: ArrayLike,
    reference: ArrayLike,
    *,
    kind: str = "baseline",
    mask: ArrayLike | None = None,
    eps: ArrayLike = 1e-4,
    ddof: int = 1,
    floor: ArrayLike = 0.1,
) -> Array:
    """Advantages of replayed samples from the reference score of their prompt (AVATAR's VCRS).

    The reference is the moving average of a prompt's last 20 rewards. The paper calls it a
    multiplicative factor in the advantage that keeps "the advantage baseline" from being zero, and
    gives no formula; the authors' code subtracts it. Both readings are here:

    * `"baseline"` (the code): `(r - reference) / (std(r) + eps)`. The scale is 1 when fewer than
      two rewards are left, as in the code, and also when they do not differ, where the code would
      divide by `eps` alone.
    * `"multiplicative"` (the text): `max(reference, floor) * (r - mean r) / (std(r) + eps)`. The
      paper leaves open what happens at a reference of 0, which would silence the hard prompts it is
      meant for, or below 0, which would reverse every preference; `floor` answers both. A group
      without signal stays at 0 in this reading.

    Args:
        reward: f32[N] rewards of the replayed samples; a non-finite one counts as masked.
        reference: f32[N] moving-average reward of each sample's prompt, likewise.
        kind: "baseline" or "multiplicative".
        mask: bool[N] samples that take part, all by default.
        eps: added to the standard deviation.
        ddof: 1 for the sample standard deviation.
        floor: least factor of the multiplicative reading, in reward units.

    Returns:
        f32[N]; 0 at masked samples.

    Raises:
        ValueError: unknown `kind`, wrong ranks or lengths, negative `eps`, `ddof` or `floor`.
    """
    if kind not in ("baseline", "multiplicative"):
        raise ValueError(f"kind should be 'baseline' or 'multiplicative', got {kind!r}")
    rewards, references = as_float(reward), as_float(reference)
    check_axes(reward=(rewards, "N"), reference=(references, "N"))
    check_static(floor, lambda value: value >= 0, "floor must not be negative")
    _check_scale(eps, ddof)
    valid = _valid(rewards, mask, "N") & jnp.isfinite(references)
    group = _group(rewards, valid, ddof)
    scale = group.sigma + as_float(eps)
    if kind == "baseline":
        return hide(rewards - references, valid) / scale
    return jnp.maximum(hide(references, valid), as_float(floor)) * group.deviation / scale
