"""A whole evaluation from its config, on predictions made before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turnwise_jax.data.records import Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval import streaming
from turnwise_jax.eval.compare import read_reports
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.predictions import Prediction, PredictionWriter, read_predictions
from turnwise_jax.eval.report import Report, make_judges
from turnwise_jax.eval.run import evaluate


@pytest.fixture
def config(tmp_path):
    config = eval_config()
    config.dir = str(tmp_path / "out")
    config.resamples = 50
    return config


@pytest.fixture
def finished(tmp_path):
    """A file of four dialogues on two videos."""
    path = tmp_path / "p.jsonl"
    replies = ("A red circle appears.", "NO REPLY", "The circle leaves.", "A blue ring appears.")
    with PredictionWriter(path) as writer:
        for n, reply in enumerate(replies):
            window = Window(1.0, 4.0, "What?", "A red circle appears.")
            writer.write(Prediction(f"d{n}", (2.0,), (reply,), (window,), video=f"v{n % 2}"))
    return path


def test_predictions_are_scored_without_a_policy(config, finished, tmp_path):
    report = evaluate(config, predictions=finished)
    judges = make_judges({"kind": "rule"})
    direct = streaming.report(read_predictions(finished), judges, resamples=50)
    assert report == Report.read(tmp_path / "out" / "report.json")
    assert report == replace(direct, rule=f"{streaming.RULE}; judge: rule")
    assert report.counts["dialogues"] == 4
    assert 0 < report.metrics["pauc"] < 100


def test_a_report_by_the_rule_judge_on_other_data_says_so(config, finished, tmp_path):
    prediction = read_predictions(finished)[0]
    window = replace(prediction.windows[0], answer="She cuts the onion.")
    other = tmp_path / "other.jsonl"
    with PredictionWriter(other) as writer:
        writer.write(replace(prediction, windows=(window,)))
    report = evaluate(config, predictions=other)
    assert "WARNING" in report.rule
    assert "'She cuts the onion.'" in report.rule
    assert "--config.judge.kind=openai" in report.rule
    with pytest.raises(InputError, match="judge: rule"):
        read_reports([_reported(config, finished, tmp_path), tmp_path / "out" / "report.json"])


def _reported(config, finished, tmp_path):
    config = config.copy_and_resolve_references()
    config.dir = str(tmp_path / "plain")
    evaluate(config, predictions=finished)
    return tmp_path / "plain" / "report.json"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"control": "upside_down"}, "control"),
        ({"benchmark": "nobench"}, "benchmark"),
        ({}, "policy.checkpoint"),
        ({"policy.checkpoint": "somewhere"}, "data.path"),
    ],
)
def test_what_cannot_be_run_names_its_field(config, change, field):
    config.update_from_flattened_dict(change)
    with pytest.raises(InputError) as caught:
        evaluate(config)
    assert caught.value.field == field


def test_a_file_without_dialogues_is_refused(config, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no finished dialogue"):
        evaluate(config, predictions=tmp_path / "empty.jsonl")
