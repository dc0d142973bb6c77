"""Names of parameters: the path of each leaf in a parameter pytree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

Path = tuple[str, ...]


def named(params: Any) -> dict[Path, Any]:
    """``{("text", "decoder", "layers", "q", "kernel"): leaf, ...}`` in the tree's own order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {_names(path): leaf for path, leaf in leaves}


def replaced(params: Any, values: Mapping[Path, Any]) -> Any:
    """``params`` with the leaf at every path taken from ``values``."""
    return jax.tree_util.tree_map_with_path(lambda path, _: values[_names(path)], params)


def _names(path: tuple[Any, ...]) -> Path:
    """Dictionary keys of a key path; the step from an nnx variable to its value has none."""
    return tuple(step.key for step in path if isinstance(step, jax.tree_util.DictKey))
