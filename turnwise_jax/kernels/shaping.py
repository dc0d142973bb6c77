"""Temporal advantage shaping: a weight per trained token by its place in the answer."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from turnwise_jax.kernels._arrays import as_bool, as_float, check_axes, check_static, hide

# Height of each curve over the relative place in [0, 1], before the strength scales it.
_CURVES: dict[str, Callable[[Array], Array]] = {
    "u": lambda place: (2 * place - 1) ** 2,
    "linear_decay": lambda place: 1 - place,
    "linear_incline": lambda place: place,
    "uniform": jnp.zeros_like,
}


def tas_weights(token_mask_T: ArrayLike, *, strength: ArrayLike = 0.3, shape: str = "u") -> Array:
    """Weights `w_t = 1 + strength (2 t / (L-1) - 1)^2` for temporal advantage shaping.

    AVATAR eq. 5 and 6. `t` counts the trained tokens of one sequence from 0 and `L` is their
    number, so padding before, after or between them changes nothing. The weights multiply the
    advantage or, which is the same, the clipped surrogate; not the KL term. The paper names the
    ablated shapes without formulas; here they are `1 + strength (1 - t/(L-1))` and
    `1 + strength t/(L-1)`, with the same largest weight as the U.

    Args:
        token_mask_T: bool[T] trained tokens.
        strength: lambda_TAS; 0.3 in the authors' code.
        shape: "u", "linear_decay", "linear_incline" or "uniform".

    Returns:
        f32[T]; 0 outside the mask, and 1 for the token of a one-token sequence.

    Raises:
        ValueError: unknown `shape`, wrong rank, negative `strength`.

    Example:
        >>> [round(float(w), 3) for w in tas_weights([True, True, True, False])]
        [1.3, 1.0, 1.3, 0.0]
    """
    mask = as_bool(token_mask_T)
    check_axes(token_mask_T=(mask, "T"))
    check_static(strength, lambda value: value >= 0, "strength must not be negative")
    if shape not in _CURVES:
        raise ValueError(f"shape should be one of {', '.join(_CURVES)}, got {shape!r}")
    last = jnp.sum(mask) - 1
    place = (jnp.cumsum(mask) - 1) / jnp.maximum(last, 1).astype(jnp.float32)
    curve = hide(_CURVES[shape](place.astype(jnp.float32)), last > 0)
    return hide(1 + as_float(strength) * curve, mask)
