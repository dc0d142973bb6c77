"""Qwen3-VL's ``config.json`` in and out."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen3_vl import PUBLISHED, Config, weights

RAW = PUBLISHED["4b"]


def test_what_the_published_fields_mean():
    config = Config.from_hf(RAW)
    assert config.text.head_dim == 128
    assert config.text.num_attention_heads * config.text.head_dim != config.text.hidden_size
    assert (config.text.qk_norm, config.text.attention_bias) == (True, False)
    assert (config.text.mrope_interleaved, config.text.mrope_section) == (True, (24, 20, 20))
    assert config.text.rope_theta == 5e6
    assert config.vision.patch_dim == 1536
    assert config.vision.position_side == 48
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("size", "count"),
    [("2b", 2_127_532_032), ("4b", 4_437_815_808), ("8b", 8_767_123_696), ("32b", 33_357_390_064)],
)
def test_published_sizes(size, count):
    """Parameters of the published checkpoints, and a row of the name table for each."""
    config = Config.from_hf(PUBLISHED[size])
    _, abstract = io.build(config, param_dtype="bfloat16")
    leaves = named(abstract)
    assert sum(leaf.size for leaf in leaves.values()) == count
    rows = weights.entries(config)
    assert {row.path: row.param_shape for row in rows} == {p: v.shape for p, v in leaves.items()}
    assert len(rows) == len(leaves)


@pytest.mark.parametrize("size", PUBLISHED)
def test_nothing_changes_on_the_way_through(size):
    raw = copy.deepcopy(PUBLISHED[size])
    raw["my_note"] = {"keep": [1, 2]}
    assert Config.from_hf(raw).to_hf() == raw
    assert Config.from_hf(raw) == Config.from_hf(PUBLISHED[size])


def test_changed_fields_are_written_where_they_were():
    config = Config.from_hf(RAW)
    text = replace(config.text, num_hidden_layers=2, rope_theta=5e5)
    vision = replace(config.vision, depth=3, deepstack_visual_indexes=(1, 2))
    changed = replace(config, text=text, vision=vision, tie_word_embeddings=False)
    written = changed.to_hf()
    assert Config.from_hf(written) == changed
    assert written["text_config"]["rope_theta"] == 5e5
    assert "rope_parameters" not in written["text_config"]
    assert written["vision_config"]["deepstack_visual_indexes"] == [1, 2]
    assert written["text_config"]["tie_word_embeddings"] is False


def changed(**changes):
    raw = copy.deepcopy(RAW)
    for name, value in changes.items():
        *sections, field = name.split("__")
        place = raw
        for section in sections:
            place = place[section]
        if value is None:
            del place[field]
        else:
            place[field] = value
    return raw


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"model_type": "qwen3_vl_moe"}, "model_type", "'qwen3_vl_moe', expected 'qwen3_vl'"),
        ({"text_config": None}, "text_config", "missing"),
        ({"vision_config": None}, "vision_config", "missing"),
        ({"text_config__hidden_size": None}, "hidden_size", "missing"),
        ({"text_config__attention_bias": True}, "attention_bias", "only False is supported"),
        ({"text_config__head_dim": 64}, "mrope_section", "does not add up to half of 64"),
        (
            {"text_config__rope_scaling__mrope_interleaved": False},
            "mrope_interleaved",
            "only True is supported",
        ),
        ({"vision_config__hidden_act": "gelu"}, "hidden_act", "'gelu' is not supported"),
        ({"vision_config__num_heads": 7}, "num_heads", "7 heads do not divide"),
        ({"vision_config__out_hidden_size": 64}, "out_hidden_size", "decoder is 2560 wide"),
        ({"vision_config__patch_size": [16, 16]}, "patch_size", "[16, 16] is not an integer"),
        (
            {"vision_config__num_position_embeddings": 2300},
            "num_position_embeddings",
            "2300 is not a square number",
        ),
        *(
            ({"vision_config__deepstack_visual_indexes": taps}, "deepstack_visual_indexes", text)
            for taps, text in [
                ([5, 24], "[5, 24] are not blocks of 24"),
                ([5, 5], "ascending order"),
                ([11, 5], "ascending order"),
                ([-1, 5], "[-1, 5] are not blocks"),
                ([], "[] are not blocks"),
                (5, "5 is not a list of integers"),
            ]
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_field(changes, field, message):
    with pytest.raises(InputError) as info:
        Config.from_hf(changed(**changes), file="some/config.json")
    assert info.value.field == field
    assert message in str(info.value)
    assert str(info.value).startswith("some/config.json: ")


@pytest.mark.parametrize("value", [None, True, -3, 0, 2.5, "x", [], ["x"], {}, {"a": 1}], ids=repr)
def test_no_value_of_any_field_gives_another_error(value):
    """Each field in turn, at every depth, gets a value of another kind."""
    refused = []
    for path in paths(RAW):
        broken = copy.deepcopy(RAW)
        place = broken
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        try:
            Config.from_hf(broken)
        except InputError as error:
            refused.append(error.field)
    assert len(refused) >= 10
    assert all(refused)


def paths(section, prefix=()):
    for name, value in section.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, name))


def test_tiny_takes_overrides_by_part():
    config = Config.tiny(50, image_token_id=7, text_hidden_size=32, vision_depth=5)
    assert config.image_token_id == 7
    assert config.text.hidden_size == config.vision.out_hidden_size == 32
    assert config.vision.depth == 5
    assert Config.from_hf(config.to_hf()) == config
    with pytest.raises(InputError, match="mrope_section"):
        Config.tiny(50, text_head_dim=32)
    with pytest.raises(KeyError, match="audio"):
        Config.tiny(50, audio_depth=2)


def test_the_preprocessor_decides_mean_and_deviation():
    config = Config.from_hf(RAW)
    assert config.image_mean == config.image_std == (0.5,) * 3
    other = config.with_preprocessor({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 2]})
    assert (other.image_mean, other.image_std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 2.0))
    with pytest.raises(InputError, match="is not 3 numbers"):
        config.with_preprocessor({"image_std": [1.0]})
