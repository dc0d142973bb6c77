"""Qwen2.5-VL against transformers, in float32, on random tiny checkpoints it saved itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import safetensors
import torch
from qwen2_5_vl_reference import (
    Grid,
    first_difference,
    make_batch,
    media_arguments,
    our_positions,
    run_ours,
    run_reference,
    save_reference,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from turnwise_jax.models import io
from turnwise_jax.models.qwen2_5_vl import PUBLISHED, Config, weights

TOLERANCE = 1e-4

IMAGE = Grid(1, 4, 4)
ODD_IMAGE = Grid(1, 10, 6)
CASES = {
    "one image": ([[5, IMAGE, 7]], "right"),
    "text only": ([[9], [4]], "right"),
    "2, 0 and 1 images": ([[3, IMAGE, IMAGE, 4], [12], [2, ODD_IMAGE, 5]], "right"),
    "2, 0 and 1 images, left-padded": ([[3, IMAGE, IMAGE, 4], [12], [2, ODD_IMAGE, 5]], "left"),
    "video at 1 fps": ([[4, Grid(3, 4, 4, 1.0), 6]], "right"),
    "video at 4 fps": ([[4, Grid(3, 4, 4, 4.0), 6]], "right"),
    "odd grids": ([[2, Grid(1, 6, 10), 3, Grid(1, 2, 14), 3]], "right"),
    "two videos of different length and rate, an image, no media": (
        [[4, Grid(2, 6, 4, 2.0), 1, ODD_IMAGE, 6], [7], [1, Grid(3, 4, 8, 4.0), 2]],
        "right",
    ),
    "videos, images, both paddings' sizes": (
        [[4, Grid(2, 6, 4, 2.0), 1, ODD_IMAGE, 6], [3, IMAGE, 2], [1, Grid(3, 4, 8, 4.0), 2]],
        "left",
    ),
}


@pytest.fixture(scope="module", params=["untied", "tied"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    return directory, save_reference(directory, tied=request.param == "tied")


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_layer(checkpoint, case):
    directory, model = checkpoint
    rows, pad = CASES[case]
    batch = make_batch(rows, pad=pad)
    assert (
        first_difference(run_ours(directory, batch), run_reference(model, batch), TOLERANCE) is None
    )


@pytest.mark.parametrize("case", [case for case in CASES if case != "text only"])
def test_positions_equal_get_rope_index(checkpoint, case):
    _, model = checkpoint
    rows, pad = CASES[case]
    batch = make_batch(rows, pad=pad)
    expected, _ = model.model.get_rope_index(
        torch.tensor(batch.tokens).long(),
        attention_mask=torch.tensor(batch.valid).long(),
        **media_arguments(batch),
    )
    ours = our_positions(batch, Config.from_hf(model.config.to_dict()))
    np.testing.assert_array_equal(np.moveaxis(ours, 1, 0), expected.numpy())


def test_frame_rate_reaches_the_positions_and_the_logits(checkpoint):
    directory, _ = checkpoint
    slow, fast = (make_batch(CASES[f"video at {fps} fps"][0]) for fps in (1, 4))
    config = io.load_config(directory)
    assert (our_positions(slow, config) != our_positions(fast, config)).any()
    assert (
        np.abs(run_ours(directory, slow)["logits"] - run_ours(directory, fast)["logits"]).max()
        > 1e-3
    )


def test_a_changed_layer_is_named(checkpoint):
    directory, model = checkpoint
    batch = make_batch([[5, IMAGE, 7]])
    ours = run_ours(directory, batch)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.model.language_model.layers[0].mlp.down_proj.weight[0] += 0.1
    assert first_difference(ours, run_reference(changed, batch), TOLERANCE).startswith("layer 1:")
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.model.visual.blocks[1].attn.proj.bias[0] += 0.1
    assert first_difference(ours, run_reference(changed, batch), TOLERANCE).startswith(
        "image block 2:"
    )


# What is published for the 3B model, with two layers of each kind and a small vocabulary.
WIDE_TEXT = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}
WIDE_VISION = {
    "depth": 2,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "window_size": 112,
}


def test_two_layers_of_the_3b_widths(tmp_path):
    """float32: 1e-4 everywhere. bfloat16: 2 % of the logits' mean size, on average."""
    save_reference(tmp_path, tied=True, text=WIDE_TEXT, vision=WIDE_VISION, dtype=torch.bfloat16)
    # A model cast back to float32 would keep rotary frequencies rounded to bfloat16.
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    batch = make_batch([[5, IMAGE, 3, Grid(2, 4, 6, 2.0), 2], [9]])
    expected = run_reference(model.eval(), batch)
    assert first_difference(run_ours(tmp_path, batch), expected, TOLERANCE) is None
    half = run_ours(tmp_path, batch, dtype="bfloat16", param_dtype="bfloat16")
    logits = expected["logits"]
    assert np.abs(half["logits"] - logits).mean() < 0.02 * np.abs(logits).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_round_trip_is_bit_equal_and_loads_without_complaint(tmp_path, tied, dtype, shard):
    """There and back, in one file and in shards: no key is missing, added or changed."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    model = save_reference(theirs, tied=tied, dtype=dtype, max_shard_size=shard)
    graphdef, params, _ = io.load(theirs, param_dtype=str(dtype).removeprefix("torch."))
    limit = {"5GB": 5 * 10**9, "100KB": 100_000}[shard]
    io.save(ours, graphdef, params, max_shard_bytes=limit)
    again, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        ours, output_loading_info=True, dtype="auto"
    )
    assert not any(info.values()), info
    assert read_config(ours) == read_config(theirs)
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for key, value in again.state_dict().items():
        assert value.dtype == dtype
        assert torch.equal(value, expected[key]), key
    assert stored_names(ours) == stored_names(theirs)
    assert (again.lm_head.weight is again.model.language_model.embed_tokens.weight) == tied


def read_config(directory):
    config = Qwen2_5_VLConfig.from_pretrained(directory).to_dict()
    config.pop("_name_or_path")
    return config


def stored_names(directory):
    names = set()
    for file in directory.glob("*.safetensors"):
        with safetensors.safe_open(file, "np") as content:
            names |= set(content.keys())
    return names


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_sizes_have_the_reference_names_and_shapes(size):
    config = Qwen2_5_VLConfig.from_dict(copy.deepcopy(PUBLISHED[size]))
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    tied = PUBLISHED[size]["tie_word_embeddings"]
    expected = {
        weights.published_name(name): tuple(value.shape)
        for name, value in model.state_dict().items()
        if not (tied and name == weights.HEAD)
    }
    rows = weights.entries(Config.from_hf(PUBLISHED[size]))
    assert {name: row.shape for row in rows for name in row.names} == expected
    assert Config.from_hf(config.to_dict()) == Config.from_hf(PUBLISHED[size])


def test_a_fresh_model_loads_in_transformers(tmp_path):
    """What is initialised here, without any checkpoint, is an ordinary directory as well."""
    config = Config.tiny(300, image_token_id=290, video_token_id=291, tie_word_embeddings=True)
    io.save(tmp_path / "model", config, io.init(config, 0))
    model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(info.values()), info
    batch = make_batch([[5, IMAGE, 7]])
    ours = run_ours(tmp_path / "model", batch)
    assert first_difference(ours, run_reference(model.eval(), batch), TOLERANCE) is None
    assert np.abs(ours["logits"]).max() > 0.1
