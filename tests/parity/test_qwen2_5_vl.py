"""Qwen2.5-VL against transformers, in float32, on random tiny checkpoints it saved itself."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
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
from turnwise_jax.models.qwen2_5_vl import Config, weights

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
