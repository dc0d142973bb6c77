"""Where parameters live on a mesh with axes ``data``, ``fsdp`` and ``tensor``.

Two tables in one place: which logical axes a parameter has, by its path, and which mesh axis each
logical axis is split over. The towers are split for storage only: their work is divided by slices.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from turnwise_jax.errors import InputError
from turnwise_jax.models.lora import A, is_adapter
from turnwise_jax.models.params import Path, named, replaced

LOGICAL_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"text/embed/embedding", ("vocab", "embed")),
    (r"text/head/kernel", ("embed", "vocab")),
    (r"text/decoder/layers/q/kernel", ("layer", "embed", "heads")),
    (r"text/decoder/layers/[kv]/kernel", ("layer", "embed", "kv_heads")),
    (r"text/decoder/layers/q/bias", ("layer", "heads")),
    (r"text/decoder/layers/[kv]/bias", ("layer", "kv_heads")),
    (r"text/decoder/layers/o/kernel", ("layer", "heads", "embed")),
    (r"text/decoder/layers/mlp/(gate|up)/kernel", ("layer", "embed", "mlp")),
    (r"text/decoder/layers/mlp/down/kernel", ("layer", "mlp", "embed")),
    (r"text/decoder/layers/\w*norm/scale", ("layer", None)),
    (r"text/decoder/norm/scale", (None,)),
    (r"(vision|audio)/(blocks|deep)/.*/kernel", ("layer", "vision", None)),
    (r"(vision|audio)/(blocks|deep)/.*/(bias|scale)", ("layer", None)),
    (r"(vision/positions|audio/markers)/embedding", (None, None)),
    (r"(vision|audio)/.*/kernel", ("vision", None)),
    (r"(vision|audio)/.*/(bias|scale)", (None,)),
)
MESH_AXES: Mapping[str, str | None] = {
    "layer": None,
    "embed": "fsdp",
    "vision": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
}
ROWS = ("data", "fsdp")
BATCH = PartitionSpec(ROWS)  # rows of tokens, slices of vision input
CACHE = PartitionSpec(None, ROWS, "tensor")  # [layers, rows, key-value heads, slots, width]


_MESH: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextmanager
def on_mesh(mesh: Mesh | None) -> Iterator[None]:
    """Models traced inside this lay out their work for a mesh; for one device without it."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def current_mesh() -> Mesh | None:
    """The mesh that models are being traced for, None for one device."""
    return _MESH.get()


def traced_on(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, always called under :func:`on_mesh`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with on_mesh(mesh):
            return function(*args, **kwargs)

    return call


def split_rows(x: jax.Array) -> jax.Array:
    """``x [B, ...]`` with its rows split over the devices, where these divide them."""
    mesh = current_mesh()
    if mesh is None or x.shape[0] % math.prod(mesh.shape[axis] for axis in ROWS):
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, BATCH))


def brought_together(layer: nnx.State, stack: Path, dtype: DTypeLike) -> nnx.State:
    """One layer's parameters, each device with all that ``fsdp`` had split, in the compute dtype.

    Left alone, a compiler may split a product's inner axis as its weights are stored, and then
    every device works on every row.

    Args:
      layer: parameters of one layer.
      stack: where all of them stand together.
      dtype: of kernels on their way; other parameters keep theirs.
    """
    mesh = current_mesh()
    if mesh is None or mesh.shape["fsdp"] == 1:
        return layer
    axes = {name: None if axis == "fsdp" else axis for name, axis in MESH_AXES.items()}

    def whole(path: Path, leaf: jax.Array) -> jax.Array:
        _, *logical = logical_axes((*stack, *path))
        value = leaf.astype(dtype) if path[-1] == "kernel" or is_adapter(path) else leaf
        place = NamedSharding(mesh, _spec(tuple(logical), leaf.shape, mesh, axes))
        return jax.lax.with_sharding_constraint(value, place)

    return replaced(layer, {path: whole(path, leaf) for path, leaf in named(layer).items()})


def logical_axes(path: Path) -> tuple[str | None, ...]:
    """The logical axis of each dimension of one parameter; adapters split as their kernel does."""
    if is_adapter(path):
        *stack, inputs, outputs = logical_axes((*path[:-1], "kernel"))
        return (*stack, inputs, None) if path[-1] == A else (*stack, None, outputs)
    name = "/".join(path)
    for pattern, axes in LOGICAL_AXES:
        if re.fullmatch(pattern, name):
            return axes
    raise KeyError(f"no sharding rule for the parameter {name}")


def param_shardings(
    params: nnx.State, mesh: Mesh, config: Any, axes: Mapping[str, str | None] = MESH_AXES
) -> nnx.State:
    """A ``NamedSharding`` for each parameter, as a pytree like ``params``.

    A dimension that its mesh axis does not divide stays whole.

    Raises:
      InputError: the ``tensor`` axis does not divide the key-value heads, which would tear a head.
    """
    tensor = mesh.shape.get("tensor", 1)
    heads = config.text.num_key_value_heads
    if heads % tensor:
        raise InputError(
            f"{tensor} parts do not divide {heads} key-value heads", field="mesh.tensor"
        )
    return replaced(
        params,
        {
            path: NamedSharding(mesh, _spec(logical_axes(path), leaf.shape, mesh, axes))
            for path, leaf in named(params).items()
        },
    )


def _spec(
    logical: tuple[str | None, ...],
    shape: tuple[int, ...],
    mesh: Mesh,
    axes: Mapping[str, str | None],
) -> PartitionSpec:
    spec = []
    for name, size in zip(logical, shape, strict=True):
        axis = axes.get(name) if name else None
        divides = axis in mesh.shape and size % mesh.shape[axis] == 0
        spec.append(axis if divides else None)
    return PartitionSpec(*spec)
