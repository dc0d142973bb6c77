"""Which attention a model takes on which platform, alone and over a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.sharding import AxisType
from plain_cudnn import PLAIN

from turnwise_jax.kernels import cudnn, flash
from turnwise_jax.kernels.attention import Run, attend
from turnwise_jax.models import attention, io
from turnwise_jax.models.base import TokenRows
from turnwise_jax.models.qwen2_5_vl import Config
from turnwise_jax.models.sharding import on_mesh

B, T, N, G = 4, 128, 2, 2


def shapes(width, dtype=jnp.bfloat16, length=T):
    query = jax.ShapeDtypeStruct((B, length, N, G, width), dtype)
    key = jax.ShapeDtypeStruct((B, N, length, width), dtype)
    return query, [Run(key, key, jax.ShapeDtypeStruct((B, length), jnp.bool), causal=True)]


@pytest.fixture
def on_gpu(monkeypatch):
    """As if programs were traced for a GPU with cuDNN."""
    monkeypatch.setattr(attention, "_platform", lambda mesh: "gpu")
    monkeypatch.setattr(cudnn, "usable", lambda: True)


def test_each_platform_has_its_kernel_and_else_none(monkeypatch):
    monkeypatch.setattr(cudnn, "usable", lambda: True)
    assert attention.kernel_for("gpu", *shapes(64)) is cudnn.cudnn_attend
    assert attention.kernel_for("gpu", *shapes(64, jnp.float32)) is None
    assert attention.kernel_for("gpu", *shapes(64, length=1)) is None
    assert attention.kernel_for("tpu", *shapes(128)) is flash.flash_attend
    assert attention.kernel_for("tpu", *shapes(64)) is None
    assert attention.kernel_for("cpu", *shapes(128)) is None
    monkeypatch.setattr(cudnn, "usable", lambda: False)
    assert attention.kernel_for("gpu", *shapes(64)) is None


def test_plain_attention_has_wide_blocks_where_processors_are_no_cpus(monkeypatch):
    monkeypatch.setattr(attention, "attend", lambda query, runs, wide: wide)
    for platform, wide in {"cpu": False, "gpu": True, "tpu": True}.items():
        monkeypatch.setattr(attention, "_platform", lambda mesh, platform=platform: platform)
        assert attention.plain_values(*shapes(72)) is wide


@pytest.mark.parametrize("contexts", [4, 2])
def test_over_a_mesh_it_is_the_same_attention(monkeypatch, on_gpu, contexts):
    """Contexts that do not come apart over the devices are attended to plainly."""
    monkeypatch.setattr(cudnn, "DTYPES", ("float32",))
    used = []

    def calls():
        used.append(True)
        return PLAIN

    monkeypatch.setattr(cudnn, "cudnn_calls", calls)
    rng = np.random.default_rng(0)

    def floats(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    query = floats(B, 64, N, G, 8)
    valid = jnp.asarray(rng.random((contexts, 24)) < 0.7)
    runs = [
        Run(floats(contexts, N, 24, 8), floats(contexts, N, 24, 8), valid),
        Run(floats(B, N, 64, 8), floats(B, N, 64, 8), jnp.ones((B, 64), bool), causal=True),
    ]
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with on_mesh(mesh):
        found = jax.jit(lambda q, k: attention.mixed_values(q, [runs[0]._replace(key=k), runs[1]]))(
            query, runs[0].key
        )
    assert bool(used) is (contexts == 4)
    np.testing.assert_allclose(found, jax.jit(lambda q: attend(q, runs))(query), atol=2e-5, rtol=0)


def test_a_models_gradient_for_cuda_attends_by_cudnn(monkeypatch, on_gpu):
    """Context and rows, forwards, again under recomputation, and backwards."""
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    cudnn.cudnn_calls.cache_clear()
    graphdef, params = io.build(Config.tiny(100), dtype="bfloat16", remat="full")

    def rows(count, length):
        ids = jax.ShapeDtypeStruct((count, length), jnp.int32)
        where = jax.ShapeDtypeStruct((count, 3, length), jnp.int32)
        return TokenRows(ids, where, None, jax.ShapeDtypeStruct(ids.shape, jnp.bool))

    def loss(params, context, own):
        hidden, _ = nnx.merge(graphdef, params)(
            own.tokens, own.positions, valid=own.valid, context=context
        )
        return jnp.sum(hidden.astype(jnp.float32))

    traced = jax.jit(jax.grad(loss)).trace(params, rows(2, 96), rows(4, 64))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    cudnn.cudnn_calls.cache_clear()
    # a context's own attention, and of a row its context and itself
    assert text.count("@__cudnn$fmhaSoftmax(") == 2 * 3
    assert text.count("@__cudnn$fmhaSoftmaxBackward(") == 3
