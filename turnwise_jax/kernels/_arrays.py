"""What every kernel does at its door: convert, check shapes, hide what a mask excludes."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def as_float(value: ArrayLike) -> Array:
    return jnp.asarray(value, jnp.float32)


def as_bool(value: ArrayLike) -> Array:
    return jnp.asarray(value, jnp.bool_)


def hide(value: Array, mask: Array) -> Array:
    """`value` where `mask`, else 0: what the mask hides reaches neither value nor gradient."""
    return jnp.where(mask, value, jnp.zeros((), value.dtype))


def ratio(numerator: Array, denominator: Array) -> Array:
    """`numerator / denominator` for a count as denominator; an empty count gives 0."""
    filled = denominator > 0
    return hide(numerator, filled) / jnp.where(filled, denominator, 1).astype(jnp.float32)


def check_axes(**named: tuple[Array, str]) -> None:
    """Check `name=(array, "KW")`: one axis per letter, and one size per letter across all arrays.

    Raises:
        ValueError: at trace time, naming the argument, its shape and the shape it should have.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for name, (array, axes) in named.items():
        if array.ndim != len(axes):
            wanted = f"[{', '.join(axes)}]" if axes else "a scalar"
            raise ValueError(
                f"{name} should be {wanted} (rank {len(axes)}), got shape {array.shape}; "
                "kernels take one trajectory or one group, use jax.vmap for many"
            )
        for axis, size in zip(axes, array.shape, strict=True):
            known, owner = sizes.setdefault(axis, (size, name))
            if size != known:
                raise ValueError(
                    f"{name} has {size} entries on axis {axis}, {owner} has {known}; "
                    f"shapes {array.shape} and {named[owner][0].shape}"
                )


def check_static(value: Any, accepts: Callable[[Any], bool], requirement: str) -> None:
    """Refuse a plain number that breaks `requirement`; traced values cannot be checked and pass.

    Raises:
        ValueError: with the requirement and the value.
    """
    if isinstance(value, Real) and not accepts(value):
        raise ValueError(f"{requirement}, got {value!r}")


def _varying_axes(array: Array) -> frozenset[str]:
    """Mesh axes over which `array` differs inside `jax.shard_map`; empty everywhere else."""
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    # Before it became a field of its own, the set was the attribute `vma`.
    axes: frozenset[str] = getattr(kind, "vma", frozenset()) if manual is None else manual.varying
    return axes


def vary_like(value: Array, *others: Array) -> Array:
    """`value`, typed as varying over the mesh axes that any of `others` varies over.

    A scan inside `jax.shard_map` wants its initial carry typed like its final one. The value is
    unchanged; outside `shard_map` nothing happens at all.
    """
    wanted = frozenset[str]().union(*(_varying_axes(other) for other in others))
    missing = tuple(sorted(wanted - _varying_axes(value)))
    return jax.lax.pcast(value, missing, to="varying") if missing else value
