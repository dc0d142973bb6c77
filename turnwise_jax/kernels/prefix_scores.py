"""Silence-completed prefix scores in one pass, and the turn increments they decompose into."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from turnwise_jax.kernels._arrays import as_float, check_axes, hide, ratio, vary_like
from turnwise_jax.kernels.scoring import (
    Marks,
    RewardWeights,
    ScoredTurns,
    Windows,
    check_curve,
    mark,
    shrink_rate,
)

# Two turns to an iteration measured fastest on CPU: fewer passes over the [W] carry, and still a
# short loop body.
_UNROLL = 2


def prefix_scores(
    turns: ScoredTurns,
    windows: Windows,
    weights: RewardWeights = RewardWeights(),  # noqa: B008 - an immutable tuple
    *,
    omega: ArrayLike = 0.5,
    start_score: ArrayLike = 0.5,
    top_score: ArrayLike = 4.0,
) -> Array:
    """Score of every prefix with all later turns silent: `U_t = R(a_1..a_t, silence..)` (eq. 3).

    One scan over the turns, O(K W); nothing is scored twice. Retaining the reply of turn k changes
    the four terms of eq. 1 like this:

    * P: in each window that holds the reply, the curve steps from the height before it to the
      reply's score, over the share of the window that is left. So P rises by the mean of
      `(score - height) * share / top_score`, and the carry is one height per window.
    * D_out, D_prefix: their denominators belong to the horizon, not to the replies. Each hit adds
      `1 / denominator`.
    * D_rep: numerator and denominator both grow with a judged reply, so both are carried and
      divided anew. An unjudged reply (NaN) changes neither.

    Args:
        turns: one trajectory's turns, see `ScoredTurns`.
        windows: its reply windows, see `Windows`.
        weights: the four weights of eq. 1.
        omega, start_score, top_score: see `window_quality`.

    Returns:
        f32[K+1]: `U_0` (all silent) to `U_K`, which is `score_trajectory(...).reward`. Masked turns
        repeat the score before them, so past the last real turn it stays at U_T.

    Raises:
        ValueError: wrong ranks or lengths, `omega` outside [0, 1], `top_score` not positive.
    """
    check_curve(omega, top_score)
    weights = RewardWeights(*map(as_float, weights))
    turns, windows, marks = mark(turns, windows)
    num_windows = jnp.maximum(jnp.sum(marks.window), 1)
    worth_W = hide(weights.quality / (as_float(top_score) * num_windows), marks.window)
    decay_W = worth_W * shrink_rate(windows.start, windows.end, as_float(omega))
    # Masks stay out of the loop: NaN is in no window and has no verdict.
    start_W = hide(windows.start, marks.window)
    end_W = jnp.where(marks.window, windows.end, jnp.nan)
    moment_K = hide(turns.time, marks.replied)
    reply_K = jnp.where(marks.replied, turns.time, jnp.nan)
    verdict_K = jnp.where(marks.judged, turns.repetitive, jnp.nan)
    fixed_K = _fixed_penalty(turns, marks, weights)

    def retain(carry: tuple[Array, ...], k: Array) -> tuple[tuple[Array, ...], Array]:
        before_W, score, repetitive, judged = carry
        quality_W, verdict = turns.quality[k], verdict_K[k]
        scored_W = (start_W <= reply_K[k]) & (reply_K[k] <= end_W) & jnp.isfinite(quality_W)
        height_W = jnp.where(scored_W, quality_W, before_W)
        left_W = worth_W - decay_W * (moment_K[k] - start_W)
        score += jnp.sum((height_W - before_W) * left_W) - fixed_K[k]
        has_verdict = ~jnp.isnan(verdict)
        repetitive += hide(verdict, has_verdict)
        judged += has_verdict
        total = score - weights.repetition * ratio(repetitive, judged)
        return (height_W, score, repetitive, judged), total

    silent_W = jnp.full_like(worth_W, start_score)
    silent = jnp.sum(silent_W * worth_W)
    none = jnp.zeros((), jnp.float32)
    inputs = (*jax.tree.leaves((turns, windows, marks)), worth_W, decay_W, fixed_K)
    carry = tuple(vary_like(leaf, *inputs) for leaf in (silent_W, silent, none, none))
    num_turns = turns.time.shape[0]
    if num_turns == 0:  # the body indexes turns, and would be traced on none
        return carry[1][None]
    _, score_K = jax.lax.scan(retain, carry, jnp.arange(num_turns), unroll=_UNROLL)
    return jnp.concatenate([carry[1][None], score_K])


def _fixed_penalty(turns: ScoredTurns, marks: Marks, weights: RewardWeights) -> Array:
    """f32[K]: what each reply costs in the two terms whose denominators the horizon fixes."""
    out_of_window = ratio(weights.out_of_window, jnp.sum(marks.outside))
    shared_prefix = ratio(weights.shared_prefix, jnp.sum(turns.mask))
    outside = hide(out_of_window, marks.outside & marks.replied)
    return outside + hide(shared_prefix, marks.shares_prefix)


def turn_increments(prefix_scores_K1: Array) -> Array:
    """What each decision adds to the score: `r_t = U_t - U_{t-1}` (eq. G.3); they sum to R - U_0.

    Args:
        prefix_scores_K1: f32[K+1] from `prefix_scores`.

    Returns:
        f32[K].

    Raises:
        ValueError: wrong rank, or no entry at all.
    """
    score = as_float(prefix_scores_K1)
    check_axes(prefix_scores_K1=(score, "K"))
    if not score.size:
        raise ValueError("prefix_scores_K1 needs at least U_0, got shape (0,)")
    return score[1:] - score[:-1]
