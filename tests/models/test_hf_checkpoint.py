"""Checkpoint directories: round trips, spellings, shards, and what is refused."""

from __future__ import annotations

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from tiny_model import make_tiny, random_params

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen2_5_vl import Config, weights
from turnwise_jax.models.safetensors import INDEX, SINGLE, Checkpoint, Tensor, write_checkpoint


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    """A checkpoint directory that tests copy before they damage it."""
    directory = tmp_path_factory.mktemp("models") / "saved"
    io.save(directory, tiny.graphdef, tiny.params)
    return directory


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def edit_config(directory, **changes):
    file = directory / "config.json"
    raw = json.loads(file.read_text())
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        (raw[section] if section else raw)[field] = value
    file.write_text(json.dumps(raw))
    return file


def edit_tensors(directory, change):
    """Rewrite the weights with the official library after ``change(dict)``."""
    file = directory / SINGLE
    content = dict(safetensors.numpy.load_file(file))
    change(content)
    safetensors.numpy.save_file(content, file, metadata={"format": "pt"})
    return file


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for path, leaf in named(a).items():
        other = named(b)[path]
        assert leaf.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(other), err_msg="/".join(path))


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    tiny = make_tiny(tie_word_embeddings=tied)
    io.save(tmp_path / "a", tiny.graphdef, tiny.params)
    graphdef, params, config = io.load(tmp_path / "a")
    assert config == tiny.config
    assert graphdef == tiny.graphdef
    assert_same(params, jax.tree.map(jnp.asarray, tiny.params))
    content = safetensors.numpy.load_file(tmp_path / "a" / SINGLE)
    assert ("lm_head.weight" in content) != tied
    np.testing.assert_array_equal(
        content["model.layers.1.mlp.down_proj.weight"],
        named(tiny.params)["text", "decoder", "layers", "mlp", "down", "kernel"][1].T,
    )


def test_bfloat16_survives_bit_for_bit(tiny, tmp_path):
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), tiny.params)
    io.save(tmp_path / "a", tiny.config, half)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "bfloat16"
    _, params, config = io.load(tmp_path / "a", param_dtype="bfloat16")
    assert_same(params, half)
    io.save(tmp_path / "b", config, params)
    for name in (SINGLE, "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    _, wide, _ = io.load(tmp_path / "a", param_dtype="float32")
    for path, leaf in named(wide).items():
        np.testing.assert_array_equal(leaf, np.asarray(named(half)[path], np.float32))


def test_shards_are_indexed_bounded_and_deterministic(tiny, saved, tmp_path):
    limit = 100_000
    for name in ("a", "b"):
        io.save(tmp_path / name, tiny.config, tiny.params, max_shard_bytes=limit)
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert len(files) > 5
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    index = json.loads((tmp_path / "a" / INDEX).read_text())
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        content = safetensors.numpy.load_file(tmp_path / "a" / name)
        assert all(index["weight_map"][tensor] == name for tensor in content)
        size = sum(value.nbytes for value in content.values())
        assert size <= limit or len(content) == 1
        found.update(content)
    whole = safetensors.numpy.load_file(saved / SINGLE)
    assert found.keys() == whole.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    assert_same(io.load(tmp_path / "a")[1], io.load(saved)[1])


def test_saving_again_replaces_weights_and_keeps_other_files(tiny, tmp_path):
    target = tmp_path / "a"
    io.save(target, tiny.config, tiny.params, max_shard_bytes=100_000)
    (target / "tokenizer.json").write_text("{}")
    io.save(target, tiny.config, tiny.params)
    names = sorted(file.name for file in target.iterdir())
    assert names == ["config.json", SINGLE, "tokenizer.json"]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_save_leaves_nothing_behind(tiny, copied, monkeypatch):
    before = {file.name: file.read_bytes() for file in copied.iterdir()}

    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(io, "write_checkpoint", broken)
    for target in (copied, copied.parent / "new"):
        with pytest.raises(OSError, match="disk full"):
            io.save(target, tiny.config, tiny.params)
    assert {file.name: file.read_bytes() for file in copied.iterdir()} == before
    assert [file.name for file in copied.parent.iterdir()] == [copied.name]


def test_other_files_come_along_from_the_source(tiny, copied, tmp_path):
    (copied / "tokenizer.json").write_text("{}")
    (copied / "model-old.safetensors").write_bytes(b"")
    io.save(tmp_path / "out", tiny.config, tiny.params, source=copied)
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["config.json", SINGLE, "tokenizer.json"]


@pytest.mark.parametrize(
    "respell",
    [
        lambda n: n.replace("model.", "model.language_model.").replace("visual.", "model.visual."),
        lambda n: n.replace("model.", "language_model.model."),
    ],
)
def test_older_and_newer_spellings_are_read(saved, copied, respell):
    def change(content):
        for name in list(content):
            content[respell(name)] = content.pop(name)

    edit_tensors(copied, change)
    assert_same(io.load(copied)[1], io.load(saved)[1])


def test_rotary_buffers_of_old_checkpoints_are_ignored(saved, copied):
    def change(content):
        content["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)

    edit_tensors(copied, change)
    assert_same(io.load(copied)[1], io.load(saved)[1])


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path):
    tiny = make_tiny(tie_word_embeddings=True)
    io.save(tmp_path / "a", tiny.config, tiny.params)
    edit_tensors(
        tmp_path / "a",
        lambda c: c.update({"lm_head.weight": c["model.embed_tokens.weight"].copy()}),
    )
    assert_same(io.load(tmp_path / "a")[1], jax.tree.map(jnp.asarray, tiny.params))
    file = edit_tensors(
        tmp_path / "a", lambda c: c.update({"lm_head.weight": c["lm_head.weight"] + 1})
    )
    refused(tmp_path / "a", file, "lm_head.weight", "differs from the embedding")


def refused(directory, file, field, message):
    """Loading names the file, the field or tensor, and what is wrong, in one line."""
    with pytest.raises(InputError) as info:
        io.load(directory)
    text = str(info.value)
    assert info.value.file == str(file)
    assert info.value.field == field
    assert message in text
    assert "\n" not in text


def test_a_missing_tensor(copied):
    name = "model.layers.1.self_attn.k_proj.bias"
    edit_tensors(copied, lambda c: c.pop(name))
    refused(copied, copied, name, "missing, shape [32] expected")


def test_an_unexpected_tensor(copied):
    file = edit_tensors(copied, lambda c: c.update(extra=np.zeros((2, 3), np.float32)))
    refused(copied, file, "extra", "unexpected tensor of shape [2, 3]")


def test_a_tensor_of_another_shape(copied):
    name = "visual.patch_embed.proj.weight"
    file = edit_tensors(copied, lambda c: c.update({name: np.zeros((64, 3, 2, 14, 7), np.float32)}))
    message = "shape [64, 3, 2, 14, 7] in the file, [64, 3, 2, 14, 14] expected"
    refused(copied, file, name, message)


def test_a_tensor_of_another_type(copied):
    name = "model.norm.weight"
    file = edit_tensors(copied, lambda c: c.update({name: np.zeros(64, np.int32)}))
    refused(copied, file, name, "type I32 is not one of")


def test_more_layers_than_the_checkpoint_has(copied):
    edit_config(copied, text_config__num_hidden_layers=3)
    name = "model.layers.2.input_layernorm.weight"
    refused(copied, copied, name, "missing, shape [64] expected")


def test_fewer_layers_than_the_checkpoint_has(copied):
    edit_config(copied, text_config__num_hidden_layers=1)
    name = "model.layers.1.input_layernorm.weight"
    refused(copied, copied / SINGLE, name, "unexpected tensor")


def test_no_weights(copied):
    (copied / SINGLE).unlink()
    refused(copied, copied, None, "neither model.safetensors nor")


@pytest.mark.parametrize("keep", [0, 5, 100, -4])
def test_truncated_weights(copied, keep):
    file = copied / SINGLE
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match="cut short") as info:
        io.load(copied)
    assert info.value.file == str(file)


def rewrite_header(file, change):
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change(data[8 : 8 + length])
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (lambda h: b"not json", None, "not valid JSON"),
        (lambda h: b"[1]     ", None, "not a JSON object"),
        (lambda h: b'{"a": 3}', "a", "malformed header entry"),
        (
            lambda h: b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}',
            "a",
            "8 bytes do not make F32 [3]",
        ),
    ],
)
def test_broken_headers(copied, change, field, message):
    rewrite_header(copied / SINGLE, change)
    refused(copied, copied / SINGLE, field, message)


@pytest.fixture
def sharded(tiny, tmp_path):
    io.save(tmp_path / "shards", tiny.config, tiny.params, max_shard_bytes=300_000)
    return tmp_path / "shards"


def edit_index(directory, change):
    file = directory / INDEX
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))
    return file


def test_a_missing_shard(sharded):
    name = sorted(file.name for file in sharded.glob("model-0*"))[1]
    (sharded / name).unlink()
    refused(sharded, sharded / INDEX, "weight_map", f"names {name}, which is missing")


def test_an_index_that_names_the_wrong_shard(sharded):
    last = sorted(file.name for file in sharded.glob("model-0*"))[-1]
    file = edit_index(sharded, lambda m: m.update({"model.embed_tokens.weight": last}))
    refused(sharded, file, "model.embed_tokens.weight", f"not in {last}, where the index puts it")


def test_a_single_file_goes_before_an_index(saved, sharded):
    shutil.copy(saved / SINGLE, sharded)
    (sharded / INDEX).write_text("{}")
    assert_same(io.load(sharded)[1], io.load(saved)[1])


def test_an_index_without_a_map(sharded):
    (sharded / INDEX).write_text("{}")
    refused(sharded, sharded / INDEX, None, "no weight_map")


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        (None, None, "no such file"),
        ("{", None, "cannot be read as JSON"),
        ("[]", None, "not a JSON object"),
        ('{"model_type": "llama"}', "model_type", "'llama' is not one of qwen2_5_omni, qwen2_5_vl"),
        ("{}", "model_type", "None is not one of"),
    ],
)
def test_configs_that_are_not_ours(copied, text, field, message):
    file = copied / "config.json"
    file.unlink() if text is None else file.write_text(text)
    refused(copied, file, field, message)


def test_a_directory_that_does_not_exist(tmp_path):
    refused(tmp_path / "none", tmp_path / "none" / "config.json", None, "no such file")


def test_the_preprocessor_decides_mean_and_deviation(copied):
    file = copied / "preprocessor_config.json"
    file.write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}')
    config = io.load_config(copied)
    assert config.image_mean == (0.5,) * 3
    assert config.image_std == (0.25,) * 3
    file.write_text('{"image_mean": [0.5]}')
    refused(copied, file, "image_mean", "[0.5] is not 3 numbers")


def test_parameters_of_another_model_are_not_written(tiny, tmp_path):
    wide = random_params(Config.tiny(120), 0)
    with pytest.raises(
        InputError, match=r"text/embed/embedding.*\[120, 64\], \[100, 64\] expected"
    ):
        io.save(tmp_path / "a", tiny.config, wide)
    assert not (tmp_path / "a").exists()


def test_an_unknown_remat_setting(tiny):
    with pytest.raises(InputError, match="'half' is not one of none, dots, full"):
        io.build(tiny.config, remat="half")


def test_reading_maps_the_file_instead_of_copying_it(tmp_path):
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_checkpoint(
        tmp_path, [Tensor("x", (3, 4), value.dtype, lambda: value)], max_shard_bytes=10**9
    )
    found = Checkpoint(tmp_path).read("x")
    base = found
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    np.testing.assert_array_equal(found, value)


def test_the_name_table_covers_every_parameter_once(tiny):
    for config in (tiny.config, make_tiny(tie_word_embeddings=True).config):
        rows = weights.entries(config)
        shapes = {row.path: row.param_shape for row in rows}
        assert len(shapes) == len(rows)
        _, abstract = io.build(config)
        assert shapes == {path: leaf.shape for path, leaf in named(abstract).items()}
