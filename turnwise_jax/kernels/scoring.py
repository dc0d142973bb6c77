"""The trajectory reward: window quality (PAUC) and three penalties, `R = 3P - 2D_rep - ...`.

One trajectory at a time; `jax.vmap` for many. Times are seconds, judge scores are in judge units
(0 to `top_score`), the reward and its terms are dimensionless.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    vary_like,
)


class ScoredTurns(NamedTuple):
    """The decision turns of one trajectory, padded to K.

    Attributes:
        time: f32[K] seconds of video shown when the policy decides, non-decreasing.
        replied: bool[K] False where the policy stayed silent.
        quality: f32[K, W] judge score of reply k for window w, 0 to `top_score`; NaN where it was
            not judged or the judge failed.
        repetitive: f32[K] 1 if the reply only repeats, 0 if not, NaN where it was not judged or the
            judge failed.
        shares_prefix: bool[K] the reply shares a long opening with an earlier one.
        mask: bool[K] real turns; whatever stands at the others has no effect.
    """

    time: Array
    replied: Array
    quality: Array
    repetitive: Array
    shares_prefix: Array
    mask: Array


class Windows(NamedTuple):
    """The reply windows of one trajectory, padded to W.

    Attributes:
        start: f32[W] seconds.
        end: f32[W] seconds, both ends belong to the window.
        mask: bool[W] real windows; whatever stands at the others has no effect.
    """

    start: Array
    end: Array
    mask: Array


class RewardWeights(NamedTuple):
    """Weights of eq. 1; the three penalties are subtracted."""

    quality: Any = 3.0
    repetition: Any = 2.0
    out_of_window: Any = 0.5
    shared_prefix: Any = 2.0


class ScoreTerms(NamedTuple):
    """The reward of eq. 1 and its four unweighted terms, each f32[]."""

    reward: Array
    quality: Array
    repetition: Array
    out_of_window: Array
    shared_prefix: Array


class Marks(NamedTuple):
    """What eq. 1 counts: which turns and windows take part in which term.

    Attributes:
        window: bool[W] windows that start by the last decision; the others are skipped.
        replied: bool[K] real turns with a reply.
        judged: bool[K] replies with a repetition verdict.
        repetitive: f32[K] that verdict, 0 where there is none.
        outside: bool[K] real turns that lie in no counted window.
        shares_prefix: bool[K] replies with a shared-prefix hit.
    """

    window: Array
    replied: Array
    judged: Array
    repetitive: Array
    outside: Array
    shares_prefix: Array


def check_curve(omega: ArrayLike, top_score: ArrayLike) -> None:
    """Refuse settings for which the quality curve has no meaning.

    Raises:
        ValueError: omega outside [0, 1], or a top score that is not positive.
    """
    check_static(omega, lambda value: 0 <= value <= 1, "omega must be between 0 and 1")
    check_static(top_score, lambda value: value > 0, "top_score must be positive")


def shrink_rate(start: Array, end: Array, omega: Array) -> Array:
    """`(1 - omega) / length` of a window; 0 where it has no length, so nothing there is late."""
    has_length = end > start
    return jnp.where(has_length, (1 - omega) / jnp.where(has_length, end - start, 1), 0)


def window_quality(
    time_K: Array,
    score_K: Array,
    mask_K: Array,
    start: ArrayLike,
    end: ArrayLike,
    *,
    omega: ArrayLike = 0.5,
    start_score: ArrayLike = 0.5,
    top_score: ArrayLike = 4.0,
) -> Array:
    """Quality and timeliness of the replies in one window (PAUC): P of eq. 1 before averaging.

    The curve starts at `start_score`, steps to each reply's score at the reply's shrunk offset
    `(1 - omega)(time - start)` and holds the last one to the window's end. The result is the area
    under it over `(end - start) * top_score`, built here one reply at a time: a reply adds its rise
    over the height before it, times the share of the window that is left.

    Args:
        time_K: f32[K] seconds, non-decreasing.
        score_K: f32[K] judge scores; non-finite ones are dropped (the judge gave none).
        mask_K: bool[K] turns that replied.
        start, end: f32[] seconds; both ends belong to the window.
        omega: 0 counts time in full, 1 ignores it.
        start_score: height before the first reply, in judge units.
        top_score: best judge score.

    Returns:
        f32[], `start_score / top_score` without any scored reply; a window of zero length is worth
        its last score.

    Raises:
        ValueError: wrong ranks or lengths, `omega` outside [0, 1], `top_score` not positive.

    Example:
        A full score half-way through a ten-second window:

        >>> float(window_quality([5.0], [4.0], [True], 0.0, 10.0))
        0.78125
    """
    time, score, mask = as_float(time_K), as_float(score_K), as_bool(mask_K)
    start, end = as_float(start), as_float(end)
    check_axes(time_K=(time, "K"), score_K=(score, "K"), mask_K=(mask, "K"))
    check_axes(start=(start, ""), end=(end, ""))
    check_curve(omega, top_score)

    inside = mask & jnp.isfinite(score) & (start <= time) & (time <= end)
    # What is left of the window after each reply, its delay shrunk by omega.
    share = 1 - shrink_rate(start, end, as_float(omega)) * hide(time - start, inside)

    def retain(curve: tuple[Array, Array], turn: tuple[Array, ...]) -> tuple[tuple, None]:
        height, area = curve
        scored, score, share = turn
        new_height = jnp.where(scored, score, height)
        return (new_height, area + (new_height - height) * share), None

    silent = vary_like(as_float(start_score), inside, share)
    (_, area), _ = jax.lax.scan(retain, (silent, silent), (inside, hide(score, inside), share))
    return area / as_float(top_score)


def mark(turns: ScoredTurns, windows: Windows) -> tuple[ScoredTurns, Windows, Marks]:
    """Convert and check the records of one trajectory, and mark what eq. 1 counts.

    Returns:
        The records as arrays, and the marks.

    Raises:
        ValueError: wrong ranks, or lengths that do not agree.
    """
    turns = ScoredTurns(
        time=as_float(turns.time),
        replied=as_bool(turns.replied),
        quality=as_float(turns.quality),
        repetitive=as_float(turns.repetitive),
        shares_prefix=as_bool(turns.shares_prefix),
        mask=as_bool(turns.mask),
    )
    windows = Windows(as_float(windows.start), as_float(windows.end), as_bool(windows.mask))
    axes = {"quality": "KW"}
    check_axes(
        **{f"turns.{name}": (x, axes.get(name, "K")) for name, x in turns._asdict().items()},
        **{f"windows.{name}": (x, "W") for name, x in windows._asdict().items()},
    )
    last_time = jnp.max(jnp.where(turns.mask, turns.time, -jnp.inf), initial=-jnp.inf)
    counted = windows.mask & (windows.start <= last_time)
    replied = turns.mask & turns.replied
    judged = replied & jnp.isfinite(turns.repetitive)
    time, start, end = turns.time[:, None], windows.start[None, :], windows.end[None, :]
    within = counted[None, :] & (start <= time) & (time <= end)
    marks = Marks(
        window=counted,
        replied=replied,
        judged=judged,
        repetitive=hide(turns.repetitive, judged),
        outside=turns.mask & ~jnp.any(within, axis=1),
        shares_prefix=replied & turns.shares_prefix,
    )
    return turns, windows, marks


def score_trajectory(
    turns: ScoredTurns,
    windows: Windows,
    weights: RewardWeights = RewardWeights(),  # noqa: B008 - an immutable tuple
    *,
    omega: ArrayLike = 0.5,
    start_score: ArrayLike = 0.5,
    top_score: ArrayLike = 4.0,
) -> ScoreTerms:
    """Reward of one trajectory: `R = 3 P - 2 D_rep - 0.5 D_out - 2 D_prefix` (eq. 1).

    P is the mean of `window_quality` over the windows that start by the last decision. D_rep is the
    share of judged replies that are repetitive, D_out the share of decisions outside every counted
    window that are replies, D_prefix the share of decisions with a shared-prefix hit. An empty
    denominator gives 0.

    Args:
        turns: one trajectory's turns, see `ScoredTurns`.
        windows: its reply windows, see `Windows`.
        weights: the four weights.
        omega, start_score, top_score: see `window_quality`.

    Returns:
        The reward and the four terms without their weights.

    Raises:
        ValueError: wrong ranks or lengths, `omega` outside [0, 1], `top_score` not positive.
    """
    check_curve(omega, top_score)
    weights = RewardWeights(*map(as_float, weights))
    turns, windows, marks = mark(turns, windows)

    def quality_of(score_K: Array, start: Array, end: Array) -> Array:
        curve = {"omega": omega, "start_score": start_score, "top_score": top_score}
        return window_quality(turns.time, score_K, marks.replied, start, end, **curve)

    quality_W = jax.vmap(quality_of, in_axes=(1, 0, 0))(turns.quality, windows.start, windows.end)
    quality = ratio(jnp.sum(hide(quality_W, marks.window)), jnp.sum(marks.window))
    repetition = ratio(jnp.sum(marks.repetitive), jnp.sum(marks.judged))
    out_of_window = ratio(as_float(jnp.sum(marks.outside & marks.replied)), jnp.sum(marks.outside))
    shared_prefix = ratio(as_float(jnp.sum(marks.shares_prefix)), jnp.sum(turns.mask))
    reward = (
        weights.quality * quality
        - weights.repetition * repetition
        - weights.out_of_window * out_of_window
        - weights.shared_prefix * shared_prefix
    )
    return ScoreTerms(reward, quality, repetition, out_of_window, shared_prefix)
