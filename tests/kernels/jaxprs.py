"""Looking into traced programs: which equations run, how often, on how many elements."""

from __future__ import annotations

from collections.abc import Iterator

import jax


def _inner(value) -> Iterator:
    for leaf in jax.tree.leaves(value, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
        if hasattr(leaf, "jaxpr"):
            yield leaf.jaxpr
        elif hasattr(leaf, "eqns"):
            yield leaf


def equations(jaxpr, times: int = 1) -> Iterator[tuple]:
    """Every equation, nested ones included, with how often it runs."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn, times
        repeated = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for inner in _inner(list(eqn.params.values())):
            yield from equations(inner, repeated)


def work(jaxpr) -> int:
    """Elements written by all equations that compute (those that contain others do not)."""
    return sum(
        times * sum(var.aval.size for var in eqn.outvars)
        for eqn, times in equations(jaxpr)
        if not any(True for _ in _inner(list(eqn.params.values())))
    )


def shapes(jaxpr) -> set[tuple[int, ...]]:
    """Shapes of all intermediate values."""
    return {var.aval.shape for eqn, _ in equations(jaxpr) for var in eqn.outvars}
