"""Damaged logs and reports: one line says where, and nothing is counted that is missing."""

from __future__ import annotations

import json

import pytest
from logged import rollout, write_run

from turnwise_jax.errors import InputError
from turnwise_jax.eval.compare import read_reports
from turnwise_jax.study.analyze_runs import read_run

METRICS = [{"step": step, "reward": 0.5, "non_silent": 0.5, "alpha": 1.0} for step in range(2)]
TURN = {"credit": "turn", "alpha": 1.0}


def group(**more) -> list[dict]:
    """Four rollouts of two turns."""
    own = {"shared_advantage": 0.5, "turn_advantages": [0.5, -0.5]}
    made = [rollout(1, "p", g, [0.375, 1.0, 0.5], [0.0, 1.0], **own) for g in range(4)]
    return [{**line, **more} for line in made]


@pytest.mark.parametrize(
    ("metrics", "groups", "algorithm", "file", "record", "field"),
    [
        ([3], [], TURN, "metrics.jsonl", "line 1", None),
        ([METRICS[0], [1]], [], TURN, "metrics.jsonl", "line 2", None),
        ([{"reward": 1.0}], [], TURN, "metrics.jsonl", "line 1", None),
        ([{"step": 0, "reward": "x"}], [], TURN, "metrics.jsonl", "line 1", "reward"),
        ([{"step": 0, "reward": 10**400}], [], TURN, "metrics.jsonl", "line 1", "reward"),
        ([{"step": "0"}], [], TURN, "metrics.jsonl", "line 1", None),
        (METRICS, [[1]], TURN, "groups.jsonl", "line 1", None),
        (METRICS, group(repetitive=[1.0]), TURN, "groups.jsonl", "line 1", "repetitive"),
        (METRICS, group(turn_advantages=[0.1]), TURN, "groups.jsonl", "line 1", "turn_advantages"),
        (METRICS, group(prefix_scores=[0.1]), TURN, "groups.jsonl", "line 1", "prefix_scores"),
        (METRICS, group(turn_advantages=None), TURN, "groups.jsonl", None, None),
        (METRICS, group(), [], "config.json", None, "algorithm"),
        (METRICS, group(), "turn", "config.json", None, "algorithm"),
    ],
)
def test_what_is_damaged_is_named(tmp_path, metrics, groups, algorithm, file, record, field):
    place = write_run(tmp_path / "run", metrics, groups, algorithm)
    with pytest.raises(InputError) as caught:
        read_run(place)
    error = caught.value
    assert (error.file, error.record, error.field) == (str(place / file), record, field)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 200_000])
def test_a_config_that_is_none_is_named(tmp_path, text):
    place = write_run(tmp_path / "run", METRICS, group())
    (place / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_run(place)


def test_an_advantage_that_was_not_logged_is_not_nothing(tmp_path):
    """One of four rollouts has none for a turn: it is left out, and not counted as 0."""
    groups = group()
    groups[2]["turn_advantages"] = [0.5, None]
    found = read_run(write_run(tmp_path / "run", METRICS, groups, TURN)).decisions
    assert (len(found.turn_N), found.left_out) == (6, 1)
    assert set(found.turn_N) == {0.5, -0.5}


def report(folder, **fields):
    folder.mkdir()
    whole = {"benchmark": "b", "rule": "r", "metrics": {"a": 1.0}, "intervals": {}, "counts": {}}
    (folder / "report.json").write_text(json.dumps({**whole, **fields}))
    return folder / "report.json"


@pytest.mark.parametrize(
    "fields",
    [
        {"metrics": {"a": None}},
        {"metrics": {"a": "x"}},
        {"metrics": {"a": 10**400}},
        {"metrics": [1]},
        {"intervals": {"a": [1.0]}},
        {"intervals": {"a": [None, 1.0]}},
        {"intervals": None},
    ],
)
def test_a_damaged_report_is_named(tmp_path, fields):
    good, bad = report(tmp_path / "good"), report(tmp_path / "bad", **fields)
    with pytest.raises(InputError, match="is not a report") as caught:
        read_reports([good, bad])
    assert caught.value.file == str(bad)
