"""Checkpoint directories whose parameters are an Orbax checkpoint."""

from __future__ import annotations

import shutil

import jax
import numpy as np
import pytest
from tiny_model import make_tiny

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.lora import Lora, is_adapter
from turnwise_jax.models.orbax_files import PARAMS
from turnwise_jax.models.params import named
from turnwise_jax.models.sharding import param_shardings


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def directory(tiny, tmp_path_factory):
    root = tmp_path_factory.mktemp("orbax")
    io.save(root / "hf", tiny.config, tiny.params)
    (root / "hf" / "tokenizer.json").write_text("{}")
    io.save_orbax(root / "orbax", tiny.config, tiny.params, source=root / "hf")
    return root / "orbax"


def test_gives_back_what_was_written(tiny, directory):
    _, params, config = io.load(directory)
    assert config == tiny.config
    for path, leaf in named(params).items():
        np.testing.assert_array_equal(leaf, named(tiny.params)[path])


def test_other_files_come_along_and_weights_are_not_there_twice(directory):
    names = {path.name for path in directory.iterdir()}
    assert names == {"config.json", "tokenizer.json", PARAMS}


def test_reads_onto_a_mesh_in_another_dtype_with_adapters(tiny, directory):
    kinds = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=kinds)
    _, params, _ = io.load(
        directory,
        param_dtype="bfloat16",
        lora=Lora(2),
        shardings=lambda params, config: param_shardings(params, mesh, config),
    )
    places = named(param_shardings(params, mesh, tiny.config))
    for path, leaf in named(params).items():
        assert leaf.sharding == places[path]
        assert leaf.dtype == ("float32" if is_adapter(path) else "bfloat16")
        if not is_adapter(path):
            wanted = np.asarray(named(tiny.params)[path]).astype(leaf.dtype)
            np.testing.assert_array_equal(np.asarray(leaf), wanted)


def test_another_models_parameters_are_refused(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "model")
    other = make_tiny(text_intermediate_size=96).config
    io.save(tmp_path / "other", other, make_tiny(text_intermediate_size=96).params)
    shutil.copy(tmp_path / "other" / "config.json", tmp_path / "model" / "config.json")
    with pytest.raises(InputError, match=r"params.*field 'text.decoder.layers.mlp.down.kernel'"):
        io.load(tmp_path / "model")


def test_damaged_files_are_refused(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "model")
    for file in (tmp_path / "model" / PARAMS).rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read"):
        io.load(tmp_path / "model")
