"""Adapters: nothing changes at first, gradients are those of the product, exports are merged."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_model import make_tiny

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.lora import DECODER, A, B, Lora, is_adapter, merged_kernel
from turnwise_jax.models.params import named, replaced

LORA = Lora(rank=3, alpha=6.0)
TOKENS = np.arange(1, 13).reshape(2, 6)
PLACES = np.broadcast_to(np.arange(6), (2, 3, 6))


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def directory(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "base"
    io.save(path, tiny.config, tiny.params)
    return path


@pytest.fixture(scope="module")
def adapted(directory):
    """Structure and parameters with adapters as they start."""
    graphdef, params, _ = io.load(directory, lora=LORA, seed=1)
    return graphdef, params


@pytest.fixture(scope="module")
def trained(adapted):
    """The same with B drawn as well."""
    rng = np.random.default_rng(0)
    values = {
        path: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) if path[-1] == B else leaf
        for path, leaf in named(adapted[1]).items()
    }
    return replaced(adapted[1], values)


def run(graphdef):
    return jax.jit(lambda params: nnx.merge(graphdef, params)(TOKENS, PLACES)[0])


def test_every_decoder_projection_has_one_and_nothing_else_does(adapted):
    _, params = adapted
    found = {path[:-1]: leaf.shape for path, leaf in named(params).items() if path[-1] == A}
    layers = ("text", "decoder", "layers")
    names = [(part,) for part in "qkvo"] + [("mlp", part) for part in ("gate", "up", "down")]
    assert found.keys() == {(*layers, *name) for name in names}
    for path, leaf in named(params).items():
        if is_adapter(path):
            kernel = named(params)[(*path[:-1], "kernel")]
            wanted = (kernel.shape[1], 3) if path[-1] == A else (3, kernel.shape[2])
            assert leaf.shape == (kernel.shape[0], *wanted)


def test_a_new_adapter_changes_nothing(tiny, adapted):
    graphdef, params = adapted
    np.testing.assert_array_equal(run(tiny.graphdef)(tiny.params), run(graphdef)(params))


def test_the_start_depends_on_the_seed_alone(directory, adapted):
    again = named(io.load(directory, lora=LORA, seed=1)[1])
    other = named(io.load(directory, lora=LORA, seed=2)[1])
    for path, leaf in named(adapted[1]).items():
        np.testing.assert_array_equal(leaf, again[path])
        if path[-1] == A:
            assert not np.array_equal(leaf, other[path])
            assert np.abs(leaf).max() <= np.sqrt(3 / leaf.shape[-2])
            assert np.std(leaf) == pytest.approx(leaf.shape[-2] ** -0.5, rel=0.1)


def test_output_and_gradients_are_those_of_the_merged_kernel(tiny, adapted, trained):
    graphdef, _ = adapted
    leaves = named(trained)
    adapters = {path: leaf for path, leaf in leaves.items() if is_adapter(path)}

    def unmerged(adapters):
        hidden = run(graphdef)(replaced(trained, {**leaves, **adapters}))
        return jnp.sum(jnp.sin(hidden))

    def merged(adapters):
        base = named(tiny.params)
        for path, leaf in base.items():
            a, b = (adapters.get((*path[:-1], name)) for name in (A, B))
            if a is not None and path[-1] == "kernel":
                base[path] = leaf + jnp.einsum("lir,lro->lio", a, b) * 2.0
        return jnp.sum(jnp.sin(run(tiny.graphdef)(replaced(tiny.params, base))))

    value, grads = jax.value_and_grad(unmerged)(adapters)
    wanted, wanted_grads = jax.value_and_grad(merged)(adapters)
    assert value == pytest.approx(float(wanted), rel=1e-5)
    for path, grad in grads.items():
        scale = np.abs(wanted_grads[path]).max()
        assert scale > 1e-3
        np.testing.assert_allclose(grad, wanted_grads[path], atol=1e-4 * scale)


def test_the_export_is_merged_and_an_ordinary_checkpoint(adapted, trained, tiny, tmp_path):
    io.save(tmp_path / "out", tiny.config, trained, lora=LORA)
    graphdef, params, _ = io.load(tmp_path / "out")
    assert not any(is_adapter(path) for path in named(params))
    wanted = run(adapted[0])(trained)
    np.testing.assert_allclose(run(graphdef)(params), wanted, atol=1e-4 * np.abs(wanted).max())


def test_an_export_that_would_lose_the_adapters_is_refused(trained, tiny, tmp_path):
    with pytest.raises(InputError, match="has an adapter"):
        io.save(tmp_path / "out", tiny.config, trained)
    assert not (tmp_path / "out").exists()


def test_merging_keeps_the_kernels_dtype_and_computes_in_float32():
    kernel = jnp.full((4, 4), 1.0, jnp.bfloat16)
    a, b = jnp.full((4, 2), 0.125), jnp.full((2, 4), 0.0625)
    out = merged_kernel(kernel, a, b, 1.0)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out.astype(jnp.float32), 1.0 + 2 * 0.125 * 0.0625)


@pytest.mark.parametrize(
    ("targets", "message"),
    [("text/nothing", "fits no projection"), ("text/(", "field 'policy.lora.targets'")],
)
def test_targets_that_cannot_be_meant(directory, targets, message):
    with pytest.raises(InputError, match=message):
        io.load(directory, lora=Lora(2, targets=targets))


def test_targets_choose(directory):
    lora = Lora(2, targets=rf"{DECODER}|vision/blocks/.*")
    params = io.load(directory, lora=lora)[1]
    groups = {path[0] for path in named(params) if is_adapter(path)}
    assert groups == {"text", "vision"}
