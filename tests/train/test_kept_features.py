"""Frames are encoded once an iteration where their towers are not trained."""

from __future__ import annotations

import pytest
from runs import rl

from turnwise_jax.models import MODELS
from turnwise_jax.models import io as checkpoints
from turnwise_jax.models.lora import Lora
from turnwise_jax.models.media import Media, MediaInput
from turnwise_jax.rollout.features import Encoder
from turnwise_jax.train import collect, run
from turnwise_jax.train.compiled import Update
from turnwise_jax.train.metrics import METRICS, TIMING, read_jsonl
from turnwise_jax.train.state import towers_fixed


@pytest.fixture
def seen(monkeypatch):
    """Media that updates were given, and those that had to be encoded, in a run."""
    taken, encoded = [], []
    prepare, encode = Update.prepare, Encoder.__call__

    def spy_prepare(self, state, batch):
        taken.append(batch.media)
        return prepare(self, state, batch)

    def spy_encode(self, params, media):
        encoded.append(media)
        return encode(self, params, media)

    monkeypatch.setattr(Update, "prepare", spy_prepare)
    monkeypatch.setattr(Encoder, "__call__", spy_encode)
    return taken, encoded


def finished(config, **changes):
    for field, value in changes.items():
        section, name = field.split("__")
        config[section][name] = value
    directory, _ = run.train(config)
    assert {line["compiles"] for line in read_jsonl(directory / TIMING)} == {0}
    return read_jsonl(directory / METRICS)


@pytest.mark.parametrize("changes", [{}, {"optimizer__inner_epochs": 2}, {"rollout__ahead": 1}])
def test_an_update_uses_what_the_rollouts_encoded(place, tmp_path, monkeypatch, seen, changes):
    taken, encoded = seen
    kept = finished(rl(place, tmp_path / "kept"), **changes)
    assert len(taken) == 6
    assert all(isinstance(media, Media) for media in taken)
    assert sum(isinstance(media, MediaInput) for media in encoded) == 6 + 1  # one to compile
    monkeypatch.setattr(collect, "towers_fixed", lambda *_: False)
    taken.clear()
    again = finished(rl(place, tmp_path / "again"), **changes)
    assert all(isinstance(media, MediaInput) for media in taken)
    for old, new in zip(kept, again, strict=True):
        assert new.keys() == old.keys()
        for name, value in old.items():
            assert new[name] == pytest.approx(value, abs=1e-6), name


def test_a_tower_that_is_trained_encodes_in_the_update(place, tmp_path, seen):
    taken, _ = seen
    finished(rl(place, tmp_path / "run"), policy__freeze=())
    assert all(isinstance(media, MediaInput) for media in taken)


def test_what_is_trained_says_whether_towers_are_fixed():
    def params(family, lora=None):
        config = MODELS[family].Config.tiny(64)
        return checkpoints.build(config, dtype="float32", remat="none", lora=lora)[1]

    assert towers_fixed(params("qwen2_5_vl"), ("vision",))
    assert not towers_fixed(params("qwen2_5_vl"), ())
    assert not towers_fixed(params("qwen2_5_omni"), ("vision",))
    assert towers_fixed(params("qwen2_5_omni"), ("vision", "audio"))
    assert towers_fixed(params("qwen2_5_omni", Lora(rank=2)), ())
