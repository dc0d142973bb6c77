"""Kernels cast once for many passes: the same results from narrower parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tiny_model import make_tiny

from turnwise_jax.models.decoder import STACK, cast_kernels
from turnwise_jax.models.params import named


def is_kernel(path):
    return path[: len(STACK)] == STACK and path[-1] == "kernel"


def test_only_the_layers_kernels_change_their_dtype():
    _, params, _ = make_tiny()
    cast = named(cast_kernels(params, "bfloat16"))
    for path, leaf in named(params).items():
        assert cast[path].dtype == (jnp.bfloat16 if is_kernel(path) else leaf.dtype), path
        if not is_kernel(path):
            assert cast[path] is leaf, path
    assert any(map(is_kernel, cast))
    assert cast_kernels(params, "float32") is params


def test_shapes_are_cast_like_arrays():
    _, params, _ = make_tiny()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    found, real = named(cast_kernels(shapes, "bfloat16")), named(cast_kernels(params, "bfloat16"))
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in real.items()
    }


def test_a_bfloat16_pass_computes_the_same_bits():
    graphdef, params, _ = make_tiny(dtype="bfloat16")
    tokens = jnp.arange(24).reshape(2, 12) % 90
    positions = jnp.broadcast_to(jnp.arange(12), (2, 3, 12))

    @jax.jit
    def hidden(params):
        return nnx.merge(graphdef, params)(tokens, positions)[0]

    np.testing.assert_array_equal(hidden(cast_kernels(params, "bfloat16")), hidden(params))
