"""Parameters on a mesh: every one has a rule, and a sharded pass equals the plain one."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tiny_model import frames, full_pass, images, make_tiny, pad, piece

from turnwise_jax.errors import InputError
from turnwise_jax.models import MODELS, io
from turnwise_jax.models.lora import Lora
from turnwise_jax.models.params import named, replaced
from turnwise_jax.models.sharding import BATCH, logical_axes, param_shardings


def mesh(data, fsdp, tensor):
    kinds = (jax.sharding.AxisType.Auto,) * 3
    return jax.make_mesh((data, fsdp, tensor), ("data", "fsdp", "tensor"), axis_types=kinds)


PUBLISHED = [(family, size) for family in MODELS for size in MODELS[family].PUBLISHED]


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_a_rule_of_its_rank(family, tied):
    config = MODELS[family].Config.tiny(100, tie_word_embeddings=tied)
    adapters = Lora(2, targets=".*")
    for path, leaf in named(io.build(config, lora=adapters)[1]).items():
        assert len(logical_axes(path)) == leaf.ndim, path


@pytest.mark.parametrize(("family", "size"), PUBLISHED)
def test_published_models_are_split_evenly(family, size):
    """On 8 chips every matrix lies split; what stays whole is small."""
    config = MODELS[family].Config.from_hf(MODELS[family].PUBLISHED[size])
    params = io.build(config)[1]
    specs = named(param_shardings(params, mesh(2, 2, 2), config))
    leaves = named(params)
    for path in leaves:
        if path[0] == "text" and path[-1] in ("kernel", "embedding"):
            assert {"fsdp", "tensor"} <= set(specs[path].spec), path
        elif path[-1] == "kernel":
            assert "fsdp" in specs[path].spec, path
    whole = sum(leaf.size for path, leaf in leaves.items() if not any(specs[path].spec))
    assert whole < 0.005 * sum(leaf.size for leaf in leaves.values())


def test_rules_split_heads_and_width():
    tiny = make_tiny()
    specs = {
        p: s.spec
        for p, s in named(param_shardings(tiny.params, mesh(2, 2, 2), tiny.config)).items()
    }
    layers = ("text", "decoder", "layers")
    assert specs[(*layers, "q", "kernel")] == PartitionSpec(None, "fsdp", "tensor")
    assert specs[(*layers, "o", "kernel")] == PartitionSpec(None, "tensor", "fsdp")
    assert specs[(*layers, "mlp", "down", "kernel")] == PartitionSpec(None, "tensor", "fsdp")
    assert specs["text", "embed", "embedding"] == PartitionSpec("tensor", "fsdp")
    assert specs["vision", "blocks", "qkv", "kernel"] == PartitionSpec(None, "fsdp", None)


def test_dimensions_that_do_not_divide_stay_whole():
    tiny = make_tiny()
    odd = io.build(type(tiny.config).tiny(101))[1]
    specs = named(param_shardings(odd, mesh(4, 1, 2), tiny.config))
    assert specs["text", "embed", "embedding"].spec == PartitionSpec(None, "fsdp")


def test_a_torn_head_is_refused(tiny):
    with pytest.raises(InputError, match="4 parts do not divide 2 key-value heads"):
        param_shardings(tiny.params, mesh(1, 2, 4), tiny.config)


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_a_sharded_pass_equals_the_plain_one(tiny, shape):
    rows = [[2, (0, 4), b] for b in range(1, 9)]
    arrays = pad([piece(tiny.config, row, seed=b)[0] for b, row in enumerate(rows)], 16)
    vision = images(tiny.config, frames(8))
    plain = full_pass(tiny.graphdef)(tiny.params, vision, *arrays)
    where = mesh(*shape)
    params = jax.device_put(tiny.params, param_shardings(tiny.params, where, tiny.config))
    batch = jax.device_put((vision, *arrays), NamedSharding(where, BATCH))
    sharded = full_pass(tiny.graphdef)(params, *batch)
    np.testing.assert_allclose(sharded, plain, atol=1e-5, rtol=0)


def test_loading_onto_a_mesh_reads_the_same_values(tiny, tmp_path):
    io.save(tmp_path / "model", tiny.graphdef, tiny.params)
    _, abstract = io.build(tiny.config)
    shardings = param_shardings(abstract, mesh(2, 2, 2), tiny.config)
    _, params, _ = io.load(tmp_path / "model", shardings=lambda params, config: shardings)
    for path, leaf in named(params).items():
        np.testing.assert_array_equal(leaf, named(tiny.params)[path])
        assert leaf.sharding == named(shardings)[path]


def test_names_and_values_go_back_into_the_tree(tiny):
    leaves = named(tiny.params)
    doubled = replaced(tiny.params, {path: leaf * 2 for path, leaf in leaves.items()})
    assert jax.tree.structure(doubled) == jax.tree.structure(tiny.params)
    for path, leaf in named(doubled).items():
        np.testing.assert_array_equal(leaf, leaves[path] * 2)
