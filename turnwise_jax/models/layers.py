"""Building blocks shared by the model families: projections, norms, the layer scan.

Parameters live in ``param_dtype`` (float32 masters by default); every block casts them to the
compute ``dtype`` where they are used. A block built with ``stack=(L,)`` carries a leading layer
axis on each parameter and is applied, one layer at a time, inside :func:`scan_layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

REMAT = ("none", "dots", "full")  # what the backward pass recomputes of a layer
PRODUCT = "product with weights"  # what "dots" keeps

Carry = TypeVar("Carry")


@dataclass(frozen=True, slots=True)
class Build:
    """How parameters are created: the random source, their dtype, a leading layer axis, their use.

    ``dtype`` is the compute dtype, ``param_dtype`` the stored one, ``stack`` the leading shape.
    """

    rngs: nnx.Rngs
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32
    stack: tuple[int, ...] = ()

    def normal(self, shape: tuple[int, ...], std: float) -> nnx.Param:
        """A parameter ``[*stack, *shape]`` drawn from a normal truncated at two deviations."""
        full = (*self.stack, *shape)
        draw = jax.random.truncated_normal(self.rngs.params(), -2.0, 2.0, full, jnp.float32)
        return nnx.Param((draw * (std / 0.87962566)).astype(self.param_dtype))

    def constant(self, shape: tuple[int, ...], value: float) -> nnx.Param:
        """A parameter ``[*stack, *shape]`` filled with ``value``."""
        return nnx.Param(jnp.full((*self.stack, *shape), value, self.param_dtype))


def along_last(vector_N: jax.Array, like: jax.Array) -> jax.Array:
    """``vector_N`` with leading unit axes, so that it broadcasts over ``like`` ``[..., N]``."""
    return vector_N.reshape((1,) * (like.ndim - 1) + (-1,))


def product(x: jax.Array, kernel_IO: jax.Array) -> jax.Array:
    """``x[..., I] @ kernel[I, O]``, backwards with all rows of ``x`` on one axis.

    A gradient summed over several axes of rows makes XLA on a CPU write a factor out across, with
    all that makes it: a SwiGLU's update then takes almost twice as long.
    """
    return checkpoint_name(_product(x, kernel_IO), PRODUCT)


@jax.custom_vjp
def _product(x: jax.Array, kernel_IO: jax.Array) -> jax.Array:
    return jnp.matmul(x, kernel_IO)


def _forwards(x: jax.Array, kernel_IO: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.matmul(x, kernel_IO), (x, kernel_IO)


def _backwards(kept: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel_IO = kept
    rows, slopes = (array.reshape(-1, array.shape[-1]) for array in (x, slope))
    return jnp.matmul(slope, kernel_IO.T), jnp.matmul(rows.T, slopes)


_product.defvjp(_forwards, _backwards)


class Linear(nnx.Module):
    """``y[..., O] = x[..., I] @ kernel[I, O] (+ bias[O])`` in the compute dtype.

    With an adapter (see ``models/lora.py``) also ``+ (x @ lora_a) @ lora_b * scale``.
    """

    def __init__(
        self, build: Build, inputs: int, outputs: int, *, bias: bool = False, gain: float = 1.0
    ):
        """Kernel entries have deviation ``gain / sqrt(inputs)``; the bias starts at zero."""
        self.kernel = build.normal((inputs, outputs), gain * inputs**-0.5)
        self.bias = build.constant((outputs,), 0.0) if bias else None
        self.dtype = jnp.dtype(build.dtype)
        self.scale: float | None = None  # of the adapter

    def adapt(self, rank: int, scale: float) -> None:
        """Add an adapter that changes nothing yet; for a module without values, see ``lora``."""
        *stack, inputs, outputs = self.kernel[...].shape
        self.scale = scale
        self.lora_a = nnx.Param(jnp.zeros((*stack, inputs, rank), jnp.float32))
        self.lora_b = nnx.Param(jnp.zeros((*stack, rank, outputs), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = product(x, self.kernel[...].astype(self.dtype))
        if self.bias is not None:
            y = y + along_last(self.bias[...].astype(self.dtype), y)
        if self.scale is not None:
            down = product(x, self.lora_a[...].astype(self.dtype))
            y = y + product(down, self.lora_b[...].astype(self.dtype)) * self.scale
        return y


class RMSNorm(nnx.Module):
    """``x / rms(x) * scale`` over the last axis, computed in float32."""

    def __init__(self, build: Build, width: int, eps: float):
        self.scale = build.constant((width,), 1.0)
        self.eps = eps
        self.dtype = jnp.dtype(build.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        scale = along_last(self.scale[...].astype(jnp.float32), x)
        return (x32 * inverse * scale).astype(self.dtype)


class LayerNorm(nnx.Module):
    """``(x - mean(x)) / deviation(x) * scale + bias`` over the last axis, computed in float32."""

    def __init__(self, build: Build, width: int, eps: float):
        self.scale = build.constant((width,), 1.0)
        self.bias = build.constant((width,), 0.0)
        self.eps = eps
        self.dtype = jnp.dtype(build.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        x32 = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        scale = along_last(self.scale[...].astype(jnp.float32), x)
        bias = along_last(self.bias[...].astype(jnp.float32), x)
        return (x32 * inverse * scale + bias).astype(self.dtype)


class SwiGLU(nnx.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(
        self, build: Build, width: int, hidden: int, *, bias: bool = False, gain: float = 1.0
    ):
        self.gate = Linear(build, width, hidden, bias=bias)
        self.up = Linear(build, width, hidden, bias=bias)
        self.down = Linear(build, hidden, width, bias=bias, gain=gain)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Embedding(nnx.Module):
    """A table ``[V, D]`` of token vectors."""

    def __init__(self, build: Build, vocab: int, width: int, std: float):
        self.embedding = build.normal((vocab, width), std)
        self.dtype = jnp.dtype(build.dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.embedding[...], tokens, axis=0, mode="clip").astype(self.dtype)


def scan_layers(
    layers: nnx.Module,
    body: Callable[[Any, Carry, Any], tuple[Carry, Any]],
    carry: Carry,
    inputs: Any = None,
    *,
    remat: str = "none",
    prepare: Callable[[nnx.State], nnx.State] = lambda params: params,
) -> tuple[Carry, Any]:
    """Run ``body(layer, carry, input) -> (carry, output)`` over the layers of a stacked module.

    ``layers`` holds every parameter with a leading layer axis, ``inputs`` is a pytree with the same
    leading axis. The loop body is traced once, so compile time does not depend on the depth.
    ``remat``: what the backward pass recomputes instead of storing it: "none", "full" (all but a
    layer's input), or "dots" (all but the results of products with weights).
    ``prepare`` changes a layer's parameters before they are used.
    """
    graphdef, params = nnx.split(layers)

    def step(carry, slices):
        layer_params, layer_inputs = slices
        return body(nnx.merge(graphdef, prepare(layer_params)), carry, layer_inputs)

    if remat != "none":
        policies = jax.checkpoint_policies
        keep = policies.save_only_these_names(PRODUCT) if remat == "dots" else None
        step = jax.checkpoint(step, prevent_cse=False, policy=keep)
    return jax.lax.scan(step, carry, (params, inputs))
