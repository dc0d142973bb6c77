"""What real runs log is what the analyses read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from turnwise_jax.study.analyze import labelled, write_analysis
from turnwise_jax.study.analyze_runs import decisions_of, read_run
from turnwise_jax.train.metrics import read_jsonl


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_turnwise_runs_decisions_are_those_it_was_trained_on(rl_run):
    run = read_run(rl_run)
    full = [line["step"] for line in run.records if line["alpha"] == 1.0]
    groups = [g for g in read_jsonl(rl_run / "groups.jsonl") if g["step"] in full]
    assert run.warmup == len(run.records) - len(full) == 1
    assert run.decisions.batches == len(full)
    assert run.decisions.left_out == 0
    for name, wanted in (
        ("turn_N", [a for g in groups for a in g["turn_advantages"]]),
        ("shared_N", [g["shared_advantage"] for g in groups for _ in g["times"]]),
        ("repetitive_N", [mark == 1.0 for g in groups for mark in g["repetitive"]]),
        ("trajectory_N", [n for n, g in enumerate(groups) for _ in g["times"]]),
    ):
        np.testing.assert_array_equal(getattr(run.decisions, name), wanted)


def test_recomputing_them_from_its_prefix_scores_gives_the_same(rl_run):
    records, groups = (read_jsonl(rl_run / f"{name}.jsonl") for name in ("metrics", "groups"))
    full = {line["step"] for line in records if line["alpha"] == 1.0}
    later = [group for group in groups if group["step"] in full]
    config = json.loads((rl_run / "config.json").read_text())["algorithm"]
    again = decisions_of(records, later, {**config, "credit": "shared"})
    assert again.recomputed
    assert np.abs(again.turn_N).max() > 0
    np.testing.assert_allclose(again.turn_N, read_run(rl_run).decisions.turn_N, atol=1e-5)


def test_their_dynamics_are_the_means_of_the_log(rl_run, avatar_run, sft_run, tmp_path):
    places = {"stream": rl_run, "answers": avatar_run, "supervised": sft_run}
    written = write_analysis(labelled([str(p) for p in places.values()], list(places)), tmp_path)
    names = {path.name for path in written}
    kinds = {"dynamics": rl_run, "answers": avatar_run, "supervised": sft_run}
    assert {f"{k}.{end}" for k in kinds for end in ("png", "csv", "md")} <= names
    assert {"redistribution.png", "redistribution.md"} <= names
    for kind, place in kinds.items():
        (row,) = rows_of(tmp_path / f"{kind}.csv")
        lines = read_jsonl(place / "metrics.jsonl")
        metric = "loss" if kind == "supervised" else "reward"
        mean = np.mean([line[metric] for line in lines])
        assert float(row[metric]) == pytest.approx(mean)
        assert row["updates"] == str(len(lines))
