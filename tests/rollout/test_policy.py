"""Policies: a directory in, the same kind of directory out, and parts that do not fit refused."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest
from tiny import SPEC, load_policy, make_checkpoint

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.rollout.policy import load_sampler


def test_load_bundles_the_parts_of_a_directory(policy):
    assert policy.spec == SPEC
    assert policy.family.Config is type(policy.config)
    assert policy.template.vocab is policy.vocab
    assert policy.rows == policy.vocab.size + 5
    assert policy.allowed.shape == (policy.rows,)
    assert policy.allowed[policy.vocab.im_end]
    assert not policy.allowed[policy.vocab.forbidden].any()
    assert not policy.allowed[policy.vocab.size :].any()


def test_save_writes_a_directory_that_loads_again(policy, tmp_path):
    other = io.init(policy.config, 9)
    policy.save(tmp_path / "new", other)
    again = load_policy(tmp_path / "new")
    jax.tree.map(np.testing.assert_array_equal, again.params, other)
    assert again.vocab.encode("The red square") == policy.vocab.encode("The red square")
    assert again.spec == policy.spec
    assert again.config == policy.config
    policy.save(tmp_path / "same")
    same = load_policy(tmp_path / "same")
    jax.tree.map(np.testing.assert_array_equal, same.params, policy.params)


def changed(directory, target, file, **values):
    """A copy of a directory with some fields of one JSON file replaced."""
    shutil.copytree(directory, target)
    raw = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps({**raw, **values}))
    return target


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"image_token_id": 3}, "field 'image_token_id': is 3, but"),
        ("preprocessor_config.json", {"merge_size": 1}, "field 'merge_size': the preprocessor"),
        ("preprocessor_config.json", {"patch_size": 7}, "field 'patch_size': the preprocessor"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(directory, tmp_path, file, values, message):
    with pytest.raises(InputError, match=message):
        load_policy(changed(directory, tmp_path / "bad", file, **values))


def test_a_tokenizer_larger_than_the_model_is_refused(directory, policy, tmp_path):
    small = type(policy.config).tiny(300, image_token_id=1, video_token_id=2)
    _, shapes = io.build(small)
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    io.save(tmp_path / "small", small, params, source=directory)
    size = policy.vocab.size
    with pytest.raises(InputError, match=f"the tokenizer has {size} ids, the model only 300 rows"):
        load_policy(tmp_path / "small")


def test_missing_files_are_named(directory, tmp_path):
    for name in ("preprocessor_config.json", "config.json", "tokenizer.json"):
        broken = tmp_path / name
        shutil.copytree(directory, broken)
        (broken / name).unlink()
        with pytest.raises(InputError, match=str(broken)):
            load_policy(broken)
    with pytest.raises(InputError, match="no such directory"):
        load_policy(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    path = tmp_path_factory.mktemp("hearing")
    make_checkpoint(path, family="qwen2_5_omni")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "audio_token_index",
        "audio_start_token_id",
        "audio_end_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    ],
)
def test_markers_of_sound_must_be_the_tokenizers(hearing, tmp_path, name):
    """Positions depend on each of them."""
    raw = json.loads((hearing / "config.json").read_text())
    thinker = {**raw["thinker_config"], name: 3}
    field = name.replace("_index", "_id")
    with pytest.raises(InputError, match=f"field '{field}': is 3, but"):
        load_policy(changed(hearing, tmp_path / "bad", "config.json", thinker_config=thinker))


def test_sound_is_cut_as_the_model_takes_it(hearing, tmp_path):
    sound = load_policy(hearing).template.sound
    assert (sound.mel_bins, sound.slice_frames) == (128, 200)
    thinker = json.loads((hearing / "config.json").read_text())["thinker_config"]
    thinker["audio_config"]["n_window"] = 50
    with pytest.raises(InputError, match="field 'slice_frames': the preprocessor says 200, the mo"):
        load_policy(changed(hearing, tmp_path / "bad", "config.json", thinker_config=thinker))


ONE = {"data": 1, "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize(
    ("dtype", "param_dtype", "kept"),
    [
        ("float32", "same", "float32"),
        ("bfloat16", "same", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_a_policy_that_only_samples_keeps_no_wider_parameters(directory, dtype, param_dtype, kept):
    policy, _ = load_sampler(directory, dtype=dtype, param_dtype=param_dtype, mesh=ONE)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(policy.params)} == {kept}
    assert policy.dtype == dtype


def test_its_parameters_are_split_as_in_training(directory, policy):
    split, placement = load_sampler(directory, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    assert placement.row_parts == 4
    jax.tree.map(np.testing.assert_array_equal, split.params, policy.params)
    gate = split.params["text"]["decoder"]["layers"]["mlp"]["gate"]["kernel"][...]
    layers, width, hidden = gate.shape
    assert gate.addressable_shards[0].data.shape == (layers, width // 2, hidden // 2)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "float16"}, "policy.dtype"),
        ({"param_dtype": "int8"}, "policy.param_dtype"),
        ({"mesh": ONE | {"fsdp": 0}}, "mesh.fsdp"),
        ({"mesh": ONE | {"data": 9}}, "mesh"),
        ({"mesh": ONE | {"tensor": 8}}, "mesh.tensor"),
    ],
)
def test_what_a_sampler_cannot_be_is_refused_by_name(directory, options, field):
    with pytest.raises(InputError) as error:
        load_sampler(directory, **{"mesh": ONE, **options})
    assert error.value.field == field
