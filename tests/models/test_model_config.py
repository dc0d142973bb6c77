"""``config.json`` in and out."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen2_5_vl import PUBLISHED, Config

FLAT = PUBLISHED["3b"]


def nested() -> dict:
    """The same as transformers 5 writes it."""
    raw = copy.deepcopy(FLAT)
    outer = {"model_type", "vision_config", "image_token_id", "video_token_id", "architectures"}
    outer |= {"vision_start_token_id", "vision_end_token_id", "tie_word_embeddings"}
    text = {name: raw.pop(name) for name in list(raw) if name not in outer}
    sections = text.pop("rope_scaling")["mrope_section"]
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": text.pop("rope_theta"),
        "mrope_section": sections,
    }
    text["layer_types"] = ["full_attention"] * 36
    return {**raw, "text_config": text}


def test_flat_and_nested_spellings_agree():
    config = Config.from_hf(FLAT)
    assert config == Config.from_hf(nested())
    assert config.text.head_dim == 128
    assert config.text.mrope_section == (16, 24, 24)
    assert config.text.rope_theta == 1e6
    assert config.vision.window == 4
    assert config.vision.patch_dim == 1176
    assert config.tie_word_embeddings


@pytest.mark.parametrize(("size", "count"), [("3b", 3_754_622_976), ("7b", 8_292_166_656)])
def test_published_sizes(size, count):
    """As many parameters as the published checkpoints hold."""
    _, abstract = io.build(Config.from_hf(PUBLISHED[size]), param_dtype="bfloat16")
    assert sum(leaf.size for leaf in named(abstract).values()) == count


@pytest.mark.parametrize("raw", [FLAT, nested()], ids=["flat", "nested"])
def test_unknown_fields_survive_and_nothing_changes(raw):
    raw = copy.deepcopy(raw)
    raw["my_note"] = {"keep": [1, 2]}
    before = copy.deepcopy(raw)
    written = Config.from_hf(raw).to_hf()
    assert raw == before
    for name, value in raw.items():
        if name != "vision_config" and name != "text_config":
            assert written[name] == value
    for section in ("vision_config", "text_config"):
        for name, value in raw.get(section, {}).items():
            assert written[section][name] == value
    assert Config.from_hf(written) == Config.from_hf(raw)
    assert ("text_config" in written) == ("text_config" in raw)


@pytest.mark.parametrize("raw", [FLAT, nested()], ids=["flat", "nested"])
def test_changed_fields_are_written_where_they_were(raw):
    config = Config.from_hf(raw)
    text = replace(config.text, num_hidden_layers=2, rope_theta=5e5)
    changed = replace(config, text=text, tie_word_embeddings=False)
    written = changed.to_hf()
    assert Config.from_hf(written) == changed
    section = written.get("text_config", written)
    assert section["num_hidden_layers"] == 2
    assert section.get("layer_types", [0, 0]) in ([0, 0], ["full_attention"] * 2)


def test_a_tie_written_inside_the_text_section_counts():
    raw = nested()
    raw["tie_word_embeddings"] = False
    raw["text_config"]["tie_word_embeddings"] = True
    assert Config.from_hf(raw).tie_word_embeddings


def changed(**changes):
    raw = copy.deepcopy(FLAT)
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        place = raw[section] if section else raw
        if value is None:
            del place[field]
        else:
            place[field] = value
    return raw


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"model_type": "qwen2_vl"}, "model_type", "'qwen2_vl', expected 'qwen2_5_vl'"),
        ({"hidden_size": None}, "hidden_size", "missing"),
        ({"vision_config": None}, "vision_config", "missing"),
        ({"vision_config": 3}, "vision_config", "not an object"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "0 is not an integer >= 1"),
        ({"vocab_size": "many"}, "vocab_size", "'many' is not an integer"),
        ({"rms_norm_eps": -1}, "rms_norm_eps", "-1 is not a positive number"),
        ({"num_attention_heads": 15}, "num_attention_heads", "do not divide"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "3 does not divide 16"),
        ({"hidden_act": "gelu"}, "hidden_act", "'gelu' is not supported"),
        ({"rope_scaling__mrope_section": [16, 24]}, "mrope_section", "does not add up"),
        ({"rope_scaling__mrope_section": 64}, "mrope_section", "64 is not a list of integers"),
        ({"rope_scaling__type": "yarn"}, "rope_scaling", "'yarn' is not supported"),
        (
            {"use_sliding_window": True, "max_window_layers": 20},
            "use_sliding_window",
            "not supported",
        ),
        ({"vision_config__num_heads": 7}, "num_heads", "7 heads do not divide"),
        ({"vision_config__window_size": 20}, "window_size", "less than one merged token"),
        ({"vision_config__out_hidden_size": 64}, "out_hidden_size", "decoder is 2048 wide"),
        ({"vision_config__hidden_act": "gelu"}, "hidden_act", "'gelu' is not supported"),
        ({"vision_config__fullatt_block_indexes": 7}, "fullatt_block_indexes", "not a list"),
        ({"vision_config__rope_parameters": {"rope_theta": 5.0}}, "rope_parameters", "not supp"),
        ({"image_token_id": -1}, "image_token_id", "-1 is not an integer >= 0"),
    ],
)
def test_what_cannot_be_built_is_refused_by_field(changes, field, message):
    with pytest.raises(InputError) as info:
        Config.from_hf(changed(**changes), file="some/config.json")
    assert info.value.field == field
    assert message in str(info.value)
    assert str(info.value).startswith("some/config.json: ")


@pytest.mark.parametrize("value", [None, True, -3, 0, 2.5, "x", [], ["x"], {}, {"a": 1}], ids=repr)
@pytest.mark.parametrize("raw", [FLAT, nested()], ids=["flat", "nested"])
def test_no_value_of_any_field_gives_another_error(raw, value):
    """Each field in turn, at every depth, gets a value of another kind."""
    refused = []
    for path in paths(raw):
        broken = copy.deepcopy(raw)
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


def test_sliding_window_that_no_layer_uses_is_fine():
    assert Config.from_hf(changed(use_sliding_window=True, max_window_layers=70))


def test_tiny_takes_overrides_by_part():
    config = Config.tiny(
        50, image_token_id=7, text_hidden_size=32, text_mrope_section=(1, 1, 2), vision_depth=5
    )
    assert config.image_token_id == 7
    assert config.text.hidden_size == config.vision.out_hidden_size == 32
    assert config.vision.depth == 5
    with pytest.raises(InputError, match="mrope_section"):
        Config.tiny(50, text_hidden_size=32)
