"""The study from world to table, with training replaced by a copy of the policy it starts from."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from turnwise_jax.errors import InputError
from turnwise_jax.eval.predictions import read_predictions
from turnwise_jax.eval.report import Report
from turnwise_jax.study import runner
from turnwise_jax.study.config import BASE, check, run_config, study_config
from turnwise_jax.study.report import comma_separated, markdown
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.config import rl_config, sft_config
from turnwise_jax.worlds.settings import WORLDS
from turnwise_jax.worlds.streamworld import WorldFiles

ROWS = ("silent", "sft_forced", "sft", "turnwise", "turnwise_swapped")


def make_config(directory: Path):
    sft, turnwise = sft_config(), rl_config("turnwise")
    sft.policy.checkpoint, turnwise.policy.checkpoint = BASE, "sft"
    for run in (sft, turnwise):
        run.policy.dtype = "float32"
    config = study_config({"sft": sft, "turnwise": turnwise}, {"turnwise": "TurnWise"})
    config.dir = str(directory)
    config.world.train, config.world.test = 1, 2
    config.evaluation.new_tokens = 4
    config.evaluation.batch_size = 4
    config.evaluation.resamples = 20
    config.pictures.dialogues = 1
    return config


def pretend_to_train(config):
    """Exports the policy that the run starts from and logs three steps."""
    directory = Path(config.run.dir)
    if not (directory / "policy").exists():
        shutil.copytree(config.policy.checkpoint, directory / "policy")
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    (directory / "report.json").write_text(json.dumps({"iterations": 30}))
    metric = "reward" if "rollout" in config else "loss"
    lines = [json.dumps({"step": step, metric: 0.1 * step}) for step in range(3)]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return directory, True


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study: (directory, config, what it printed)."""
    directory = tmp_path_factory.mktemp("runs") / "study"
    config, console = make_config(directory), Console(file=io.StringIO(), width=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "train", pretend_to_train)
        assert runner.run_study(config, console=console) == (directory, True)
    return directory, config, console.file.getvalue()


def test_it_leaves_every_row_as_predictions_and_report(study):
    directory, _, _ = study
    reports = {key: Report.read(directory / "eval" / f"{key}.json") for key in ROWS}
    assert reports["silent"].metrics["pauc"] == 25.0
    assert reports["silent"].metrics["non_silent_share"] == 0.0
    assert reports["sft_forced"].metrics["non_silent_share"] == 100.0
    assert len({report.counts["windows"] for report in reports.values()}) == 1
    ids = {p.id for p in read_predictions(directory / "eval" / "sft.jsonl")}
    assert len(ids) == reports["sft"].counts["dialogues"] > 1
    swapped = read_predictions(directory / "eval" / "turnwise_swapped.jsonl")
    plain = read_predictions(directory / "eval" / "turnwise.jsonl")
    for own, other in zip(plain, swapped, strict=True):
        assert (own.id, own.windows) == (other.id, other.windows)
        assert own.video != other.video


def test_the_tables_hold_the_reports_numbers(study):
    directory, _, printed = study
    labels = [
        "always silent",
        "always replying (sft)",
        "sft",
        "TurnWise",
        "TurnWise, frames swapped",
    ]
    reports = {
        label: Report.read(directory / "eval" / f"{key}.json")
        for label, key in zip(labels, ROWS, strict=True)
    }
    assert list(json.loads((directory / "results.json").read_text())) == labels
    rows = list(csv.DictReader(io.StringIO((directory / "table.csv").read_text())))
    assert [row["policy"] for row in rows] == labels
    lines = (directory / "table.md").read_text().splitlines()
    for row, line, (label, report) in zip(rows, lines[2:], reports.items(), strict=False):
        for metric, value in report.metrics.items():
            assert float(row[metric]) == value
        assert line.startswith(f"| {label} | {report.metrics['reward']:.3f}")
        assert f"| {report.metrics['non_silent_share']:.1f} |" in line
        assert f"{report.metrics['reward']:.3f}" in printed
    assert all(label in printed for label in labels)
    assert f"{reports['sft'].counts['windows']} reply windows" in "\n".join(lines)


def test_pictures_and_texts_are_there(study):
    directory, _, _ = study
    for name in ("results.png", "curves.png", "curves_sft.png"):
        assert (directory / name).stat().st_size > 5000
    (picture,) = (directory / "dialogues").glob("*.png")
    text = picture.with_suffix(".txt").read_text()
    assert picture.stat().st_size > 20000
    assert text.startswith(picture.stem)
    assert "window" in text


def test_the_same_command_again_changes_nothing_and_runs_nothing(study, monkeypatch):
    directory, config, printed = study
    monkeypatch.setattr(runner, "train", pretend_to_train)
    monkeypatch.setattr("turnwise_jax.eval.generate._engine", None)
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    console = Console(file=io.StringIO(), width=80)
    runner.run_study(config, console=console)
    assert console.file.getvalue() == printed
    changed = [p.name for p, data in before.items() if p.read_bytes() != data]
    assert changed == []


def test_a_stopped_training_stops_the_study(tmp_path, monkeypatch):
    config = make_config(tmp_path / "study")
    monkeypatch.setattr(runner, "train", lambda run: (Path(run.run.dir), False))
    console = Console(file=io.StringIO())
    assert runner.run_study(config, console=console) == (tmp_path / "study", False)
    assert "stopped in sft" in console.file.getvalue()
    assert not (tmp_path / "study" / "eval").exists()


def test_runs_are_tied_to_the_world_and_to_each_other():
    config = make_config(Path("somewhere"))
    world = WorldFiles(Path("somewhere/world"))
    sft, turnwise = (run_config(config, name, world) for name in config.order)
    assert sft.policy.checkpoint == "somewhere/base"
    assert sft.data.path == "somewhere/world/sft_train.jsonl"
    assert turnwise.policy.checkpoint == "somewhere/sft/policy"
    assert turnwise.data.path == "somewhere/world/rl_train.parquet"
    assert (turnwise.run.dir, turnwise.data.root) == ("somewhere/turnwise", "somewhere/world")
    assert config.runs.turnwise.policy.checkpoint == "sft"


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"order": ("turnwise", "sft")}, "runs.turnwise.policy.checkpoint", "not run before"),
        ({"order": ("sft", "other")}, "order", "'other' is no run; known: sft, turnwise"),
        ({"order": ()}, "order", "at least one"),
        ({"order": ("sft",)}, "evaluation.swapped", "'turnwise' is not in `order`"),
        ({"world.name": "moon"}, "world.name", "known: demo"),
    ],
)
def test_impossible_studies_are_refused_at_once(change, field, message):
    config = make_config(Path("somewhere"))
    config.update_from_flattened_dict(change)
    with pytest.raises(InputError) as caught:
        check(config)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_the_untrained_policy_is_made_once(tmp_path):
    world = WORLDS["demo"]
    place = make_tiny_policy(tmp_path / "base", world, seed=3)
    data = (place / "model.safetensors").read_bytes()
    make_tiny_policy(tmp_path / "base", world, seed=3)
    make_tiny_policy(tmp_path / "again", world, seed=3)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == data
    with pytest.raises(InputError, match="no untrained policy of this study"):
        make_tiny_policy(tmp_path / "base", world, seed=4)
    assert {p.name for p in tmp_path.iterdir()} == {"base", "again"}


def test_markdown_and_csv_show_intervals_where_there_are_any():
    metrics = dict.fromkeys(
        ("reward", "pauc", "repetition_rate", "out_of_window_rate", "non_silent_share"), 1.25
    )
    metrics["reply_characters"] = 10.0
    counts = {"dialogues": 4, "videos": 2, "windows": 9}
    spans = {"pauc": (0.5, 2.0), "reward": (1.25, 1.25)}
    reports = {"x": Report("streaming", "the rule", metrics, spans, counts)}
    assert "failed" not in markdown(reports)
    short = {**counts, "failed_quality_judgements": 2, "failed_benchmark_judgements": 1}
    failing = Report("streaming", "the rule", metrics, spans, short)
    assert "left out: y 3." in markdown({**reports, "y": failing})
    assert "| x | 1.250 | 1.2 [0.5, 2.0] | 1.2 | 1.2 | 1.2 | 10.0 |" in markdown(reports)
    assert "4 held-out dialogues on 2 videos, 9 reply windows" in markdown(reports)
    (row,) = csv.DictReader(io.StringIO(comma_separated(reports)))
    assert (row["pauc_low"], row["pauc_high"], row["repetition_rate_low"]) == ("0.5", "2.0", "")
