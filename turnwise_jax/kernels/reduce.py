"""Means over tokens, turns and trajectories, carried as sums and counts and divided once.

A mean of means depends on how a batch was split. Every mean here has a form that returns
`MeanTerms`: add those over micro-batches or devices (`jax.lax.psum`), then call `mean_of_terms`
once. Widths and padding never enter a divisor; a mean over nothing is 0.

The objectives of the papers are built like this, `value` being a loss per token:

* TurnWise (eq. 7 and 9): `turn_mean` of each trajectory, then `trajectory_mean`.
* GRPO as the TurnWise paper writes it (eq. 8): `token_mean` of each trajectory, then
  `trajectory_mean`.
* Token mean of a whole batch: `token_mean_terms` of each trajectory, added, divided once.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from turnwise_jax.kernels._arrays import as_bool, as_float, check_axes, hide, ratio


class MeanTerms(NamedTuple):
    """A mean before its division; add terms field by field.

    Attributes:
        sum: f32[] or f32[K].
        num: f32 of the same shape, how many were summed; exact up to 2^24.
    """

    sum: Array
    num: Array


def mean_of_terms(terms: MeanTerms) -> Array:
    """`sum / num`, entry by entry; 0 where nothing was counted."""
    return ratio(as_float(terms.sum), as_float(terms.num))


def _masked_terms(value: Array, mask: Array) -> MeanTerms:
    return MeanTerms(jnp.sum(hide(value, mask)), jnp.sum(mask, dtype=jnp.float32))


def token_mean_terms(value_T: ArrayLike, mask_T: ArrayLike) -> MeanTerms:
    """Sum over the masked-in tokens and their number; splits anywhere.

    Args:
        value_T: f32[T].
        mask_T: bool[T] tokens that count; the others may hold anything.

    Returns:
        Two f32[].

    Raises:
        ValueError: wrong ranks or lengths.
    """
    value, mask = as_float(value_T), as_bool(mask_T)
    check_axes(value_T=(value, "T"), mask_T=(mask, "T"))
    return _masked_terms(value, mask)


def token_mean(value_T: ArrayLike, mask_T: ArrayLike) -> Array:
    """Mean over tokens, each with equal weight (the inner mean of eq. 8).

    See `token_mean_terms` for arguments and errors; returns f32[].
    """
    return mean_of_terms(token_mean_terms(value_T, mask_T))


def trajectory_mean_terms(value_N: ArrayLike, mask_N: ArrayLike) -> MeanTerms:
    """Sum over the masked-in trajectories and their number; splits anywhere.

    Args:
        value_N: f32[N] one value per trajectory.
        mask_N: bool[N] trajectories that count: those with a trained token.

    Returns:
        Two f32[].

    Raises:
        ValueError: wrong ranks or lengths.
    """
    value, mask = as_float(value_N), as_bool(mask_N)
    check_axes(value_N=(value, "N"), mask_N=(mask, "N"))
    return _masked_terms(value, mask)


def trajectory_mean(value_N: ArrayLike, mask_N: ArrayLike) -> Array:
    """Mean over trajectories: the 1/B of eq. 8 and 9, B counting those with a trained token.

    See `trajectory_mean_terms` for arguments and errors; returns f32[].
    """
    return mean_of_terms(trajectory_mean_terms(value_N, mask_N))


def turn_sums(
    value_T: ArrayLike, mask_T: ArrayLike, turn_id_T: ArrayLike, num_turns: int
) -> MeanTerms:
    """Sum and number of tokens of each turn: the form of the turn mean that splits inside a turn.

    Add these over the pieces of one trajectory, take `mean_of_terms` for the mean of each turn, and
    average those over the turns with a token.

    Args:
        value_T: f32[T].
        mask_T: bool[T] tokens that count; the others may hold anything.
        turn_id_T: i32[T] turn of each token, 0 to `num_turns - 1`; tokens with any other id belong
            to no turn and do not count.
        num_turns: K, static.

    Returns:
        Two f32[K].

    Raises:
        ValueError: wrong ranks or lengths, `num_turns` negative.
    """
    value, mask, turn_id = as_float(value_T), as_bool(mask_T), jnp.asarray(turn_id_T)
    check_axes(value_T=(value, "T"), mask_T=(mask, "T"), turn_id_T=(turn_id, "T"))
    if num_turns < 0:
        raise ValueError(f"num_turns must not be negative, got {num_turns}")
    # Compared and summed rather than scattered: scatter-add has no fixed order on GPUs.
    belongs_TK = (turn_id[:, None] == jnp.arange(num_turns)[None, :]) & mask[:, None]
    sums = jnp.sum(hide(value[:, None], belongs_TK), axis=0)
    return MeanTerms(sums, jnp.sum(belongs_TK, axis=0, dtype=jnp.float32))


def turn_mean_terms(
    value_T: ArrayLike, mask_T: ArrayLike, turn_id_T: ArrayLike, num_turns: int
) -> MeanTerms:
    """Sum of the turns' token means and the number of turns with a token; splits between turns.

    See `turn_sums` for arguments and errors; returns two f32[].
    """
    turns = turn_sums(value_T, mask_T, turn_id_T, num_turns)
    return _masked_terms(mean_of_terms(turns), turns.num > 0)


def turn_mean(value_T: ArrayLike, mask_T: ArrayLike, turn_id_T: ArrayLike, num_turns: int) -> Array:
    """Mean over the tokens of each turn, then over the turns of one trajectory (eq. 7).

    Every turn weighs 1/T_i however long its reply; T_i counts the turns with a token. See
    `turn_sums` for arguments and errors; returns f32[].

    Example:
        >>> float(turn_mean([1.0, 1.0, 1.0, 3.0], [True] * 4, [0, 0, 0, 1], 2))
        2.0
    """
    return mean_of_terms(turn_mean_terms(value_T, mask_T, turn_id_T, num_turns))
