"""Evaluation of policies that do not write plain replies."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from turnwise_jax.data.records import SILENCE, Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval import streaming
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.generate import shown
from turnwise_jax.eval.predictions import Prediction, PredictionWriter, read_predictions
from turnwise_jax.eval.report import make_judges
from turnwise_jax.eval.run import evaluate
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import generate as make_world

RAW = (
    "<think>a ring?</think><silent>",
    "<think>yes</think><response>A red circle appears.",
    "<think>still there",
)
SHOWN = (SILENCE, "A red circle appears.", SILENCE)
WINDOW = Window(3.0, 5.0, "What?", "A red circle appears.")
SAID = Prediction("d", (2.0, 4.0, 6.0), RAW, (WINDOW,))


def test_predictions_hold_what_is_shown_and_what_was_sampled(tmp_path):
    own = shown(SAID, "thinkstream")
    assert (own.replies, own.raw) == (SHOWN, RAW)
    assert own.replied == (False, True, False)
    assert shown(SAID, "plain") is SAID
    with PredictionWriter(tmp_path / "p.jsonl") as writer:
        writer.write(own)
    assert read_predictions(tmp_path / "p.jsonl") == [own]


def test_reports_read_what_is_shown():
    judges = make_judges({"kind": "rule"})
    own = streaming.report([shown(SAID, "thinkstream")], judges, resamples=10)
    plain = streaming.report([dataclasses.replace(SAID, replies=SHOWN)], judges, resamples=10)
    assert own == plain
    assert own.metrics["non_silent_share"] == pytest.approx(100 / 3)
    assert own.metrics["repetition_rate"] == 0.0


def test_raw_texts_belong_to_the_decisions(tmp_path):
    path = tmp_path / "p.jsonl"
    with PredictionWriter(path) as writer:
        writer.write(dataclasses.replace(SAID, replies=SHOWN, raw=RAW[:2]))
    with pytest.raises(InputError, match="2 entries for 3 times") as error:
        read_predictions(path)
    assert error.value.field == "raw"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root, setting = tmp_path_factory.mktemp("styles"), World(history_turns=1, target_turns=2)
    files = make_world(root / "world", setting, train=1, test=2, seed=4, progress=False)
    model = {"text_num_hidden_layers": 1}
    return files, make_tiny_policy(root / "policy", setting, vocab_size=320, model=model)


@pytest.fixture
def config(world, tmp_path):
    files, policy = world
    config = eval_config()
    config.dir, config.resamples = str(tmp_path / "out"), 20
    config.policy.update(checkpoint=str(policy), dtype="float32", replies="thinkstream")
    config.data.update(path=str(files.rl("test")))
    config.decoding.update(max_new_tokens=4, batch_size=4)
    return config


def test_a_policy_that_never_keeps_to_its_form_is_silent(config, tmp_path, monkeypatch):
    """And one that does says what follows the mark; its file is scored again to the same report."""
    quiet = evaluate(config)
    assert quiet.metrics["pauc"] == 25.0
    assert quiet.counts["replies"] == 0
    made = read_predictions(tmp_path / "out" / "predictions.jsonl")
    assert all(any(text != SILENCE for text in p.raw) for p in made)
    monkeypatch.setattr(
        StreamEngine, "_text", lambda self, ids: RAW[1] if int(np.sum(ids)) % 2 else RAW[0]
    )
    config.dir = str(tmp_path / "spoken")
    spoken = evaluate(config)
    assert spoken.counts["replies"] > 0
    file = tmp_path / "spoken" / "predictions.jsonl"
    assert {text for p in read_predictions(file) for text in p.replies} <= set(SHOWN)
    config.dir = str(tmp_path / "again")
    assert evaluate(config, predictions=file) == spoken
    config.dir, config.policy.replies = str(tmp_path / "spoken"), "streampro"
    with pytest.raises(InputError, match="was made with another"):
        evaluate(config)


def test_what_cannot_be_done_with_a_style_is_refused(config):
    config.policy.replies = "morse"
    with pytest.raises(InputError, match="allowed: plain") as error:
        evaluate(config)
    assert error.value.field == "policy.replies"
    config.policy.replies, config.control = "thinkstream", "forced"
    with pytest.raises(InputError, match="plain replies") as error:
        evaluate(config)
    assert error.value.field == "control"
