"""Qwen2.5-Omni's thinker against transformers, on random checkpoints it saved itself."""

from __future__ import annotations

import copy
import json

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from flax import nnx
from qwen2_5_omni_batch import AUDIO, Sound, make_batch
from qwen2_5_omni_reference import (
    build_reference,
    our_index,
    our_positions,
    position_arguments,
    run_ours,
    run_reference,
    run_whole_reference,
)
from qwen2_5_vl_reference import Grid, first_difference
from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

from turnwise_jax.models import io
from turnwise_jax.models.qwen2_5_omni import PUBLISHED, Config, media_input, weights

TOLERANCE = 1e-4

IMAGE = Grid(1, 4, 4)
ODD_IMAGE = Grid(1, 10, 6)
CASES = {
    "images and sound alone, left-padded": (
        [[3, IMAGE, Sound(200), 4], [12], [2, ODD_IMAGE, 1, Sound(37), Sound(403), 5]],
        "left",
    ),
    "text only": ([[9], [4]], "right"),
    "sound only": ([[5, Sound(81), 3], [Sound(6), 2, Sound(255), 1]], "right"),
    "videos of different length and rate beside sound, an image, text": (
        [
            [4, Grid(2, 6, 4, 2.0), 1, ODD_IMAGE, 6],
            [7],
            [3, IMAGE, 2, Sound(130), 1],
            [1, Grid(3, 4, 8, 3.0), Sound(399), 2],
        ],
        "right",
    ),
    "sound inside video": (
        [
            [4, Sound(400, Grid(4, 4, 4, 2.0)), 3],
            [2, IMAGE, 1, Sound(251, Grid(2, 4, 6, 1.0)), 2, Sound(50), 4],
            [8],
            [Sound(140, Grid(3, 4, 4, 1.5)), 2, Sound(500, Grid(2, 4, 4, 2.0)), 1],
        ],
        "right",
    ),
    "sound inside video, wide frames, left-padded": (
        [[2, Sound(26, Grid(1, 4, 70, 2.0)), 3], [5, Sound(215, Grid(5, 8, 4, 2.0)), 1]],
        "left",
    ),
}


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    model = build_reference()
    model.save_pretrained(directory)
    return directory, model


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_layer(untied, case):
    """Positions and features in transformers' hooks are its own; so is the whole forward pass."""
    directory, model = untied
    rows, pad = CASES[case]
    batch = make_batch(rows, pad=pad)
    expected = run_reference(model, batch)
    whole = run_whole_reference(model, batch)
    np.testing.assert_allclose(expected["logits"], whole, atol=1e-5, rtol=0)
    assert first_difference(run_ours(directory, batch), expected, TOLERANCE) is None


def test_a_tied_head(tmp_path):
    model = build_reference(tied=True)
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    batch = make_batch([[3, Sound(30), 4]])
    assert first_difference(run_ours(tmp_path, batch), run_reference(model, batch), 1e-4) is None


@pytest.mark.parametrize("case", [case for case in CASES if case != "text only"])
def test_positions_equal_get_rope_index(untied, case):
    _, model = untied
    rows, pad = CASES[case]
    batch = make_batch(rows, pad=pad)
    check_positions(model, batch)


def check_positions(model, batch):
    expected, _ = model.model.get_rope_index(
        torch.tensor(batch.tokens).long(),
        attention_mask=torch.tensor(batch.valid).long(),
        **position_arguments(batch),
    )
    ours = np.moveaxis(our_positions(batch, Config.from_hf(model.config.to_dict())), 1, 0)
    np.testing.assert_array_equal(ours[:, batch.valid], expected.numpy()[:, batch.valid])


@pytest.mark.parametrize("seed", range(12))
def test_positions_of_random_dialogues_equal_get_rope_index(untied, seed):
    """Frame rates whose rows fall between positions, sounds shorter and longer than their video."""
    _, model = untied
    rng = np.random.default_rng(seed)
    inside = bool(seed % 2)
    rows = []
    for _ in range(3):
        row = [int(rng.integers(1, 6))]
        for _ in range(rng.integers(1, 5)):
            side = 2 * rng.integers(1, 5, 2)
            grid = Grid(
                int(rng.integers(1, 9)), *side.tolist(), float(rng.choice([1, 1.7, 2, 3, 7.3]))
            )
            sound = Sound(int(rng.integers(4, 700)))
            part = [
                IMAGE,
                sound,
                sound._replace(inside=grid) if inside else grid,
            ][rng.integers(3)]
            row += [part, int(rng.integers(1, 4))]
        rows.append([*row, IMAGE, 1])
    check_positions(model, make_batch(rows))


def test_sound_reaches_the_reference_logits(untied):
    """The comparison above would see it if transformers did not listen."""
    _, model = untied
    batch = make_batch([[3, Sound(120), 4]])
    before = run_whole_reference(model, batch)
    batch.sounds[0][:, 60:] = 0
    after = run_whole_reference(model, batch)
    heard = np.flatnonzero(batch.tokens[0] == AUDIO)
    assert (before[: heard[0]] == after[: heard[0]]).all()
    assert np.abs(before - after)[heard[-1] :].max() > 1e-2


def test_turns_from_the_cache_equal_the_reference(untied):
    """Sound, sound inside video and text, cut into chunks anywhere, beside a row of images."""
    directory, model = untied
    rows = [[3, Sound(90), 4, Sound(215, Grid(3, 4, 4, 1.5)), 2], [IMAGE, 6, ODD_IMAGE, 8]]
    batch = make_batch(rows)
    expected = run_whole_reference(model, batch)
    graphdef, params, config = io.load(directory)
    media = media_input(batch.slices, batch.sound_slices, config)
    arrays = (batch.tokens, our_positions(batch, config), our_index(batch, config), batch.valid)

    @jax.jit
    def step(params, media, cache, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        rest = {"media": model.encode_media(media), "media_index": index, "valid": valid}
        hidden, cache = model(tokens, positions, cache=cache, **rest)
        return hidden @ model.head(), cache

    chunk = 23
    length = -(-batch.tokens.shape[1] // chunk) * chunk
    cache = nnx.merge(graphdef, params).init_cache(len(rows), length)
    found = []
    for start in range(0, length, chunk):
        parts = [array[..., start : start + chunk] for array in arrays]
        short = chunk - parts[0].shape[-1]
        parts = [np.pad(p, [(0, 0)] * (p.ndim - 1) + [(0, short)]) for p in parts]
        logits, cache = step(params, media, cache, *parts)
        found.append(np.asarray(logits)[:, : chunk - short])
    ours = np.concatenate(found, axis=1)[batch.valid]
    np.testing.assert_allclose(ours, expected, atol=TOLERANCE, rtol=0)


def test_a_changed_layer_is_named(untied):
    directory, model = untied
    batch = make_batch([[5, IMAGE, Sound(90), 7]])
    ours = run_ours(directory, batch)

    def stage(change):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            change(changed.model)
        return first_difference(ours, run_reference(changed, batch), TOLERANCE).split(":")[0]

    assert stage(lambda m: m.audio_tower.conv1.bias.add_(0.1)) == "audio block 0"
    assert (
        stage(lambda m: m.audio_tower.layers[1].self_attn.k_proj.weight.mul_(2)) == "audio block 2"
    )
    assert stage(lambda m: m.audio_tower.ln_post.bias.add_(0.1)) == "audio features"
    assert stage(lambda m: m.visual.blocks[0].attn.k.weight.mul_(2)) == "image block 1"
    assert stage(lambda m: m.language_model.layers[0].self_attn.v_proj.bias.add_(1)) == "layer 1"


# What is published for the 7B model, with two layers of each kind and a small vocabulary.
WIDE_TEXT = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [16, 24, 24],
    },
}
WIDE_VISION = {
    "depth": 2,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "window_size": 112,
}
WIDE_AUDIO = {
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 2,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "output_dim": 3584,
}


def test_two_layers_of_the_7b_widths(tmp_path):
    """float32: 1e-4 everywhere. bfloat16: 2 % of the logits' mean size, on average."""
    model = build_reference(WIDE_TEXT, WIDE_VISION, WIDE_AUDIO)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    # A model cast back to float32 would keep rotary frequencies rounded to bfloat16.
    model = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float32
    )
    batch = make_batch([[5, IMAGE, 3, Sound(215, Grid(2, 4, 6, 2.0)), 2], [9]], bins=128)
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
    graphdef, params, config = io.load(theirs, param_dtype="bfloat16")
    io.save(ours, graphdef, params, max_shard_bytes=100_000)
    again, info = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        ours, output_loading_info=True, dtype="auto"
    )
    assert not any(info.values()), info
    assert again.config.text_config.hidden_size == 64  # not transformers' default
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for key, value in again.state_dict().items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, expected[key]), key
    assert (again.lm_head.weight is again.model.language_model.embed_tokens.weight) == tied
    assert io.load_config(ours) == config
    whole = {"thinker": read_config(ours), "own": read_config(theirs)}
    assert whole["thinker"] == whole["own"]


def read_config(directory):
    """What a thinker's directory says, without where it lies."""
    config = Qwen2_5OmniThinkerConfig.from_pretrained(directory).to_dict()
    config.pop("_name_or_path")
    for name in ("architectures", "vision_config"):
        value = config[name]
        config[name] = None if name == "architectures" else {**value, "tokens_per_second": 25}
    return config


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_sizes_have_the_reference_names_and_shapes(size):
    thinker = copy.deepcopy(PUBLISHED[size]["thinker_config"])
    config = Qwen2_5OmniThinkerConfig.from_dict(thinker)
    with torch.device("meta"):
        model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    expected = {
        weights.published_name(name): tuple(value.shape)
        for name, value in model.state_dict().items()
    }
    assert len(expected) == len(model.state_dict())
    rows = weights.entries(Config.from_hf(PUBLISHED[size]))
    assert {name: row.shape for row in rows for name in row.names} == expected
    ours = sum(int(np.prod(row.param_shape)) for row in rows)
    assert ours == sum(p.numel() for p in model.parameters())
    assert Config.from_hf(config.to_dict()) == Config.from_hf(PUBLISHED[size])


def test_a_whole_checkpoint_reads_as_its_thinker(untied, tmp_path):
    """Published spelling, the talker's tensors beside it: passed over, and never written."""
    directory, model = untied
    stored = {}
    for file in directory.glob("*.safetensors"):
        stored |= safetensors.numpy.load_file(file)
    whole = {weights.published_name(name): value for name, value in stored.items()}
    whole["talker.codec_head.weight"] = np.ones((3, 2), np.float32)
    whole["token2wav.code2wav_dit_model.proj.bias"] = np.ones(2, np.float32)
    safetensors.numpy.save_file(whole, tmp_path / "model.safetensors")
    thinker = json.loads((directory / "config.json").read_text())
    config = {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {"a": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    batch = make_batch([[5, IMAGE, Sound(90), 7]])
    ours = run_ours(tmp_path, batch)
    assert first_difference(ours, run_reference(model, batch), TOLERANCE) is None
    graphdef, params, _ = io.load(tmp_path)
    io.save(tmp_path / "out", graphdef, params)
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "np") as content:
        assert all(name.startswith("thinker.") for name in content.keys())  # noqa: SIM118
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["enable_audio_output"] is False
    assert "talker_config" not in written


def test_a_fresh_model_loads_in_transformers(tmp_path):
    """What is initialised here, without any checkpoint, is an ordinary directory as well."""
    names = ("image", "video", "audio", "vision_start", "vision_end", "audio_start", "audio_end")
    ids = {f"{name}_token_id": 290 + i for i, name in enumerate(names)}
    config = Config.tiny(300, tie_word_embeddings=True, audio_num_mel_bins=20, **ids)
    io.save(tmp_path / "model", config, io.init(config, 0))
    model, info = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(info.values()), info
    batch = make_batch([[5, IMAGE, Sound(90), 7]])
    ours = run_ours(tmp_path / "model", batch)
    assert first_difference(ours, run_reference(model.eval(), batch), TOLERANCE) is None
    assert np.abs(ours["logits"]).max() > 0.1
