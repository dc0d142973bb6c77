"""SFT and RL of every model family, with nothing changed but the checkpoint."""

from __future__ import annotations

import json

import numpy as np
import pytest
from runs import WORLD, rl, sft
from transformers import WhisperFeatureExtractor

from turnwise_jax.data.media_text import HEARING
from turnwise_jax.models import MODELS
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.metrics import METRICS, read_jsonl
from turnwise_jax.train.run import train

OTHERS = sorted(set(MODELS) - {"qwen2_5_vl"})  # the other tests train that one


@pytest.fixture(scope="module", params=OTHERS)
def own(request, place, tmp_path_factory):
    """The shared world with the family's own untrained policy."""
    policy = make_tiny_policy(
        tmp_path_factory.mktemp(request.param) / "policy",
        WORLD,
        family=request.param,
        vocab_size=320,
        pixels=64,
        model={"text_num_hidden_layers": 2},
    )
    return place._replace(policy=policy)


def test_the_directory_says_how_sound_is_prepared_if_the_family_hears(own):
    fields = json.loads((own.policy / "preprocessor_config.json").read_text())
    hears = (
        MODELS[json.loads((own.policy / "config.json").read_text())["model_type"]].CHAT in HEARING
    )
    assert ("feature_extractor_type" in fields) == hears
    if hears:
        extractor = WhisperFeatureExtractor.from_pretrained(own.policy)
        assert (extractor.feature_size, extractor.hop_length) == (128, 160)


def steps(config) -> list[dict]:
    config.run.update(steps=2, export=False)
    directory, finished = train(config)
    assert finished
    return read_jsonl(directory / METRICS)


def test_supervised(own, tmp_path):
    for line in steps(sft(own, tmp_path / "run")):
        assert np.isfinite(line["loss"])
        assert line["grad_norm"] > 0


def test_rollouts_and_training_agree_about_what_was_sampled(own, tmp_path):
    for line in steps(rl(own, tmp_path / "run")):
        assert np.isfinite(line["loss"])
        assert 0 < np.expm1(line["sampler_gap_max"]) < 1e-3
