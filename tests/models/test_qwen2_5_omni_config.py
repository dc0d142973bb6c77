"""The thinker's part of ``config.json`` in and out."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen2_5_omni import PUBLISHED, Config, weights

RAW = PUBLISHED["7b"]


def test_what_the_published_fields_mean():
    config = Config.from_hf(RAW)
    assert (config.text.head_dim, config.text.mrope_section) == (128, (16, 24, 24))
    assert config.text.attention_bias
    assert (config.image_token_id, config.audio_token_id) == (151655, 151646)
    assert (config.audio.slice_frames, config.sound_tokens) == (200, 50)
    assert config.position_id_per_seconds == 25
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(("size", "count"), [("3b", 4_703_464_448), ("7b", 8_931_813_888)])
def test_published_sizes(size, count):
    """Parameters of the thinker, and a row of the name table for each."""
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
    raw["thinker_config"]["text_config"]["my_note"] = 3
    assert Config.from_hf(raw).to_hf() == raw
    assert Config.from_hf(raw) == Config.from_hf(PUBLISHED[size])


def test_a_thinker_alone_is_written_as_a_model_that_does_not_speak():
    alone = Config.from_hf(RAW["thinker_config"])
    assert alone == Config.from_hf(RAW)
    written = alone.to_hf()
    assert written["model_type"] == "qwen2_5_omni"
    assert written["enable_audio_output"] is False
    assert written["thinker_config"] == RAW["thinker_config"]
    speaking = copy.deepcopy(RAW) | {"enable_audio_output": True, "talker_config": {"a": 1}}
    written = Config.from_hf(speaking).to_hf()
    assert written["enable_audio_output"] is False
    assert "talker_config" not in written


def test_changed_fields_are_written_where_they_were():
    config = Config.from_hf(RAW)
    text = replace(config.text, num_hidden_layers=2, rope_theta=5e5)
    audio = replace(config.audio, encoder_layers=3)
    changed = replace(config, text=text, audio=audio, audio_token_id=5, tie_word_embeddings=True)
    written = changed.to_hf()
    assert Config.from_hf(written) == changed
    thinker = written["thinker_config"]
    assert thinker["text_config"]["rope_theta"] == 5e5
    assert thinker["audio_config"]["encoder_layers"] == 3
    assert thinker["audio_token_index"] == 5
    assert "audio_token_id" not in thinker


def changed(**changes):
    raw = copy.deepcopy(RAW)
    for name, value in changes.items():
        *sections, field = name.split("__")
        place = raw if field in ("model_type", "thinker_config") else raw["thinker_config"]
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
        ({"model_type": "qwen3_omni"}, "model_type", "'qwen3_omni', expected 'qwen2_5_omni'"),
        ({"thinker_config": None}, "thinker_config", "missing"),
        ({"text_config": None}, "text_config", "missing"),
        ({"vision_config": None}, "vision_config", "missing"),
        ({"audio_config": None}, "audio_config", "missing"),
        ({"seconds_per_chunk": 4}, "seconds_per_chunk", "only 2 is supported"),
        ({"audio_token_index": -1}, "audio_token_index", "-1 is not an integer"),
        ({"vision_config__out_hidden_size": 64}, "out_hidden_size", "decoder is 3584 wide"),
        ({"audio_config__output_dim": 64}, "output_dim", "decoder is 3584 wide"),
        ({"audio_config__activation_function": "relu"}, "activation_function", "only 'gelu'"),
        (
            {"audio_config__encoder_attention_heads": 7},
            "encoder_attention_heads",
            "7 heads do not divide 1280",
        ),
        ({"audio_config__n_window": 99}, "n_window", "99 is odd"),
        ({"audio_config__n_window": 1502}, "n_window", "more than 1500"),
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
    assert len(refused) >= 6
    assert all(refused)


def paths(section, prefix=()):
    for name, value in section.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, name))


def test_tiny_takes_overrides_by_part():
    config = Config.tiny(
        50,
        audio_token_id=7,
        text_hidden_size=128,
        audio_encoder_layers=5,
        text_num_attention_heads=8,
    )
    assert config.audio_token_id == 7
    assert config.audio.encoder_layers == 5
    widths = (config.text.hidden_size, config.vision.out_hidden_size, config.audio.output_dim)
    assert widths == (128, 128, 128)


def test_the_preprocessor_decides_pixels_and_must_fit_the_ears():
    config = Config.from_hf(RAW)
    other = config.with_preprocessor({"image_mean": [0.1, 0.2, 0.3], "feature_size": 128})
    assert other.image_mean == (0.1, 0.2, 0.3)
    with pytest.raises(InputError, match="80 mel bins, but the audio tower takes 128") as info:
        config.with_preprocessor({"feature_size": 80}, file="preprocessor_config.json")
    assert info.value.field == "feature_size"
