"""The exact study as a user runs it: its files, their numbers, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from turnwise_jax.cli.main import main
from turnwise_jax.errors import InputError
from turnwise_jax.study.exact import compute, run_exact
from turnwise_jax.study.exact_config import HALF_TRAINED, check, exact_config

FILE = Path(__file__).resolve().parents[2] / "configs" / "worlds" / "exact.py"
FILES = ("tables.md", "estimators.csv", "learning.csv", "exact.json")
PICTURES = ("estimators.png", "sweeps.png", "learning.png")


def small_config(directory: Path):
    config = exact_config()
    config.dir = str(directory)
    config.problem.update(times=(2.0, 4.0), windows=((2.0, 5.0),))
    config.problems = {"here": {}, "late": {"windows": ((4.0, 9.0),)}}
    config.alphas, config.groups, config.lengths = (0.0, 0.5, 1.0), (2, 3), (4, 9)
    config.samples = 60
    config.learning.update(updates=4, half_trained=2, runs=2, groups=2, group_size=3)
    return config


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("exact") / "run"
    return run_exact(small_config(place))


def test_it_leaves_its_tables_and_pictures(directory):
    assert {path.name for path in directory.iterdir()} == {*FILES, *PICTURES}
    for name in PICTURES:
        assert (directory / name).read_bytes().startswith(b"\x89PNG")
    text = (directory / "tables.md").read_text()
    for policy in ("silent", "talkative", "uniform", HALF_TRAINED):
        assert f"### {policy}\n" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 12
    for lines in tables:
        assert len(lines) > 2
        assert len({line.count("|") for line in lines}) == 1


def test_every_estimator_is_there_for_every_policy_and_group(directory):
    results = json.loads((directory / "exact.json").read_text())
    rows = results["estimators"]
    keys = [tuple(r[k] for k in ("policy", "credit", "reduction", "normalised", "group"))
            for r in rows]  # fmt: skip
    assert len(set(keys)) == len(keys) == 4 * 2 * (2 * (4 * 2 + 2) + 3)
    assert all(row["exact"] == (row["group"] == 2) for row in rows)
    assert all(("noise_error" in row) == (row["group"] != 2) for row in rows)
    plain = [r for r in rows if r["exact"] and r["reduction"] == "sum" and not r["normalised"]]
    assert all(row["alignment"] == pytest.approx(1.0, abs=1e-9) for row in plain)
    assert {row["problem"] for row in results["windows"]} == {"here", "late"}
    assert {row["long_tokens"] for row in results["lengths"]} == {4, 9}


def test_the_lines_hold_the_same_numbers(directory):
    results = json.loads((directory / "exact.json").read_text())
    for name in ("estimators", "learning"):
        with (directory / f"{name}.csv").open() as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == len(results[name])
        assert "curve" not in lines[0]
        number = "alignment" if name == "estimators" else "mean"
        assert [float(line[number]) for line in lines] == [row[number] for row in results[name]]


def test_learning_has_every_kind_of_update(directory):
    rows = json.loads((directory / "exact.json").read_text())["learning"]
    kinds = {kind: sum(row["updates_by"] == kind for row in rows)
             for kind in ("truth", "large groups", "pairs", "sampled")}  # fmt: skip
    assert kinds == {"truth": 1, "large groups": 5, "pairs": 5, "sampled": 5}
    assert all(len(row["curve"]) == 5 and len(row["means"]) == 2 for row in rows)


def test_the_same_config_gives_the_same_numbers(directory, tmp_path):
    again = compute(small_config(tmp_path))
    assert json.loads((directory / "exact.json").read_text()) == json.loads(json.dumps(again))


def test_too_many_pairs_are_sampled(directory, tmp_path):
    config = small_config(tmp_path)
    config.problems, config.max_pairs, config.groups = {}, 80, (2,)
    config.alphas, config.lengths = (0.0, 1.0), (4,)
    rows = compute(config)
    assert not any(row["exact"] for row in rows["estimators"])
    assert "pairs" not in {row["updates_by"] for row in rows["learning"]}


def test_the_command_picks_the_exact_study_by_its_problem(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr("turnwise_jax.study.exact.run_exact", seen.append)
    assert main(["study", f"--config={FILE}", "--config.problem.long_tokens=20"]) == 0
    assert seen[0].problem.long_tokens == 20
    assert main(["study", f"--config={FILE}", "--config.problem.tokens=1"]) == 2
    assert "unknown config field problem.tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dir": ""}, "field 'dir': must name a directory"),
        ({"policies": {}}, "field 'policies': must name policies"),
        ({"policies": {HALF_TRAINED: {}}}, "none of them 'half-trained'"),
        ({"policies": {"silent": {"fact 3": 1.0}}}, "policies.silent.*'fact 3' is no choice"),
        ({"learning": {"start": "other"}}, "learning.start.*must be one of silent"),
        ({"learning": {"length": 0.0}}, "learning.length.*above 0"),
        ({"learning": {"runs": 1}}, "learning.runs.*at least 2"),
        ({"learning": {"half_trained": 0}}, "learning.half_trained.*at least 1"),
        ({"alphas": (0.0, 1.5)}, "alphas.*from 0 to 1"),
        ({"groups": (1,)}, "groups.*at least 2"),
        ({"samples": 3}, "samples.*at least 20"),
        ({"lengths": (1,)}, "lengths.*at least 2"),
        ({"problem": {"times": (4.0, 2.0)}}, "problem.times.*increasing"),
        ({"problems": {"odd": {"times": ()}}}, "field 'problems.odd.times': must be increasing"),
        ({"max_pairs": 100}, "problems.one_window.*too many pairs"),
    ],
)
def test_what_cannot_be_used_is_refused(change, message):
    config = exact_config()
    for name, value in change.items():
        if name in ("learning", "problem"):
            config[name].update(value)
        else:
            config[name] = value
    with pytest.raises(InputError, match=message):
        check(config)
