"""Qwen3-VL against transformers, in float32, on random checkpoints it saved itself."""

from __future__ import annotations

import copy

import jax
import numpy as np
import pytest
import safetensors
import torch
from flax import nnx
from qwen2_5_vl_reference import Grid, first_difference
from qwen3_vl_reference import (
    PATCH,
    build_reference,
    make_batch,
    media_arguments,
    our_index,
    our_positions,
    run_ours,
    run_reference,
)
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from turnwise_jax.models import io
from turnwise_jax.models.qwen3_vl import PUBLISHED, Config, media_input, weights

TOLERANCE = 1e-4

IMAGE = Grid(1, 4, 4)
ODD_IMAGE = Grid(1, 10, 6)
CASES = {
    "one image": ([[5, IMAGE, 7]], "right"),
    "text only": ([[9], [4]], "right"),
    "2, 0 and 1 images, left-padded": ([[3, IMAGE, IMAGE, 4], [12], [2, ODD_IMAGE, 5]], "left"),
    "grids larger and smaller than the table": ([[2, Grid(1, 6, 18), 3, Grid(1, 2, 2)]], "right"),
    "two videos of different length and rate, an image, no media": (
        [[4, Grid(2, 6, 4, 2.0), 1, ODD_IMAGE, 6], [7], [3, IMAGE, 2], [1, Grid(3, 4, 8, 4.0), 2]],
        "right",
    ),
}


@pytest.fixture(scope="module", params=["untied", "tied"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model = build_reference(tied=request.param == "tied")
    model.save_pretrained(directory)
    return directory, model


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


@pytest.mark.parametrize("side", [1, 7, 48])
def test_interpolation_equals_the_reference_bit_for_bit(side):
    config = Config.tiny(100, vision_num_position_embeddings=side**2)
    sizes = [2, 4, 6, 14, 22, 48, 50, 94]
    grids = [(h, w) for h in sizes for w in (2, 12, 48, 66)]
    slices = [(np.zeros((h * w, PATCH), np.uint8), (h, w)) for h, w in grids]
    vision = media_input(slices, [], config).vision
    indices, expected = get_vision_interpolation_indices_and_weights(
        torch.tensor([(1, *grid) for grid in grids]), side, align_corners=True, spatial_merge_size=2
    )
    np.testing.assert_array_equal(vision.corners[vision.valid], indices.numpy())
    np.testing.assert_array_equal(vision.weights[vision.valid], expected.numpy())


def test_turns_from_the_cache_equal_the_reference(checkpoint):
    """A video turn, a text turn and a second video turn, beside a row of images, cut anywhere."""
    directory, model = checkpoint
    rows = [[3, Grid(2, 4, 6, 2.0), 4, Grid(3, 4, 4, 1.0), 2], [IMAGE, 6, ODD_IMAGE, 8]]
    batch = make_batch(rows)
    expected = run_reference(model, batch)["logits"]
    graphdef, params, config = io.load(directory)
    media = media_input(batch.slices, [], config)
    arrays = (batch.tokens, our_positions(batch, config), our_index(batch, config), batch.valid)

    @jax.jit
    def step(params, media, cache, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        rest = {"media": model.encode_media(media), "media_index": index, "valid": valid}
        hidden, cache = model(tokens, positions, cache=cache, **rest)
        return hidden @ model.head(), cache

    length, chunk = batch.tokens.shape[1], 11
    cache = nnx.merge(graphdef, params).init_cache(len(rows), length)
    found = []
    for start in range(0, length, chunk):
        parts = [array[..., start : start + chunk] for array in arrays]
        logits, cache = step(params, media, cache, *parts)
        found.append(np.asarray(logits))
    ours = np.concatenate(found, axis=1)[batch.valid]
    np.testing.assert_allclose(ours, expected, atol=TOLERANCE, rtol=0)


def test_a_changed_layer_is_named(checkpoint):
    directory, model = checkpoint
    batch = make_batch([[5, IMAGE, 7]])
    ours = run_ours(directory, batch)

    def stage(change):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            change(changed.model)
        return first_difference(ours, run_reference(changed, batch), TOLERANCE).split(":")[0]

    assert stage(lambda m: m.visual.pos_embed.weight.add_(0.1)) == "image block 0"
    assert stage(lambda m: m.visual.blocks[1].attn.proj.bias[0].add_(0.1)) == "image block 2"
    merger = model.model.visual.deepstack_merger_list[1]
    assert merger.norm.weight.shape == (128,)
    assert stage(lambda m: m.visual.deepstack_merger_list[1].norm.bias.add_(0.1)) == "image deep 1"
    assert stage(lambda m: m.language_model.layers[0].self_attn.k_norm.weight.add_(1)) == "layer 1"


# What is published for the 4B model, with two layers of each kind and a small vocabulary.
WIDE_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_parameters": {**PUBLISHED["4b"]["text_config"]["rope_scaling"], "rope_theta": 5e6},
}
WIDE_VISION = {
    "depth": 2,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2560,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [0, 1],
}


def test_two_layers_of_the_4b_widths(tmp_path):
    """float32: 1e-4 everywhere. bfloat16: 2 % of the logits' mean size, on average."""
    build_reference(WIDE_TEXT, WIDE_VISION, tied=True).to(torch.bfloat16).save_pretrained(tmp_path)
    # A model cast back to float32 would keep rotary frequencies rounded to bfloat16.
    model = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    batch = make_batch([[5, IMAGE, 3, Grid(2, 4, 6, 2.0), 2], [9]])
    expected = run_reference(model.eval(), batch)
    ours = run_ours(tmp_path, batch)
    assert first_difference(ours, expected, TOLERANCE) is None
    half = run_ours(tmp_path, batch, dtype="bfloat16", param_dtype="bfloat16")
    logits = expected["logits"]
    assert np.abs(half["logits"] - logits).mean() < 0.02 * np.abs(logits).mean()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_round_trip_is_bit_equal_and_loads_without_complaint(tmp_path, tied):
    """There and back, into shards: no key is missing, added or changed."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    model = build_reference(tied=tied).to(torch.bfloat16)
    model.save_pretrained(theirs)
    graphdef, params, _ = io.load(theirs, param_dtype="bfloat16")
    io.save(ours, graphdef, params, max_shard_bytes=100_000)
    again, info = Qwen3VLForConditionalGeneration.from_pretrained(
        ours, output_loading_info=True, dtype="auto"
    )
    assert not any(info.values()), info
    assert read_config(ours) == read_config(theirs)
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for key, value in again.state_dict().items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, expected[key]), key
    assert stored_names(ours) == stored_names(theirs)
    assert (again.lm_head.weight is again.model.language_model.embed_tokens.weight) == tied


def read_config(directory):
    config = Qwen3VLConfig.from_pretrained(directory).to_dict()
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
    config = Qwen3VLConfig.from_dict(copy.deepcopy(PUBLISHED[size]))
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config)
    tied = PUBLISHED[size]["tie_word_embeddings"]
    expected = {
        name: tuple(value.shape)
        for name, value in model.state_dict().items()
        if not (tied and name == weights.HEAD)
    }
    ours = Config.from_hf(PUBLISHED[size])
    rows = weights.entries(ours)
    assert {name: row.shape for row in rows for name in row.names} == expected
    count = sum(row.layers or 1 for row in rows)
    assert count == len(expected)
    assert Config.from_hf(config.to_dict()) == ours


def test_a_fresh_model_loads_in_transformers(tmp_path):
    """What is initialised here, without any checkpoint, is an ordinary directory as well."""
    config = Config.tiny(300, image_token_id=290, video_token_id=291, tie_word_embeddings=True)
    io.save(tmp_path / "model", config, io.init(config, 0))
    model, info = Qwen3VLForConditionalGeneration.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(info.values()), info
    batch = make_batch([[5, IMAGE, 7]])
    ours = run_ours(tmp_path / "model", batch)
    assert first_difference(ours, run_reference(model.eval(), batch), TOLERANCE) is None
    assert np.abs(ours["logits"]).max() > 0.1
