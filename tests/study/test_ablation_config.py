"""Ablations: what may be asked for, other worlds, and figures of a few numbers."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from pretended import pretend
from rich.console import Console
from test_ablation import make_config

from turnwise_jax.cli import study as command
from turnwise_jax.errors import InputError
from turnwise_jax.eval.report import Report
from turnwise_jax.study.ablation import run_ablation
from turnwise_jax.study.ablation_config import (
    BASE,
    START,
    ablation_config,
    check,
    evaluation_config,
    run_config,
    start_config,
)
from turnwise_jax.study.ablation_plots import plot_learning, plot_tiers
from turnwise_jax.study.ablation_results import Outcome, Results, RunLog, Spread
from turnwise_jax.study.ablation_tables import comma_separated, markdown
from turnwise_jax.study.plots import band
from turnwise_jax.study.worlds import STREAMING, WORLD_KINDS
from turnwise_jax.train.config import rl_config, sft_config


def test_bands_smooth_each_run_and_leave_out_what_is_missing():
    values_RS = np.array([[1.0] * 5 + [2.0] * 5, [3.0] * 5 + [np.nan] * 5])
    drawn = band(values_RS, window=20)
    assert drawn.low[5] == 1.5
    assert drawn.high[5] == 3.0
    assert drawn.mean[5] == 2.25
    empty = band(np.full((2, 3), np.nan))
    assert np.isnan(empty.mean).all()


def test_spreads():
    assert Spread.of([]) is None
    assert Spread.of([2.5]) == (2.5, None, 1)
    assert Spread.of([1.0, 2.0, 6.0]) == pytest.approx((3.0, 7.0**0.5, 3))


def test_runs_are_tied_to_their_world_and_start():
    config = make_config(Path("some"))
    config.runs.grpo.data.path = "rl_stage1_train.jsonl"
    start, grpo, avatar = (
        start_config(config),
        run_config(config, "grpo", 7),
        run_config(config, "avatar", 1),
    )
    assert (start.policy.checkpoint, start.run.dir, start.run.seed) == (
        "some/base",
        "some/start",
        0,
    )
    assert (start.data.source, start.data.path) == ("qa", "some/world/sft_train.jsonl")
    assert (grpo.policy.checkpoint, grpo.run.dir) == ("some/start/policy", "some/runs/grpo/7")
    assert (grpo.run.seed, grpo.data.root) == (7, "some/world")
    assert grpo.data.path == "some/world/rl_stage1_train.jsonl"
    assert avatar.data.path == "some/world/rl_train.jsonl"
    assert config.runs.grpo.run.seed == 0
    grpo.data.frames, grpo.data.sound = 5, False
    own = evaluation_config(config, grpo, Path("some/eval"), "muted")
    assert own.policy.checkpoint == "some/runs/grpo/7/policy"
    assert (own.data.path, own.data.source) == ("some/world/qa_test.jsonl", "qa")
    assert (own.data.frames, own.data.sound, own.control) == (5, False, "muted")


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"dir": ""}, "dir", "must name a directory"),
        ({"seeds": ()}, "seeds", "at least one"),
        ({"seeds": (1, 1)}, "seeds", "different seeds"),
        ({"seeds": (-1,)}, "seeds", "32 bits"),
        ({"world.kind": "moon"}, "world.kind", "known: soundworld, streamworld"),
        ({"world.name": "moon"}, "world.name", "known: demo, easy, hard"),
        ({"order": ("avatar", "other")}, "order", "'other' is no run; known: avatar, grpo"),
        ({"order": ()}, "order", "at least one"),
        ({"order": ("grpo", "grpo")}, "order", "none twice"),
        ({"table_order": ("parts",)}, "table_order", "alone, parts"),
        ({"tables.parts": ("grpo", "x")}, "tables.parts", "'x' is no run"),
        ({"evaluation.controls": ("x",)}, "evaluation.controls", "'x' is no run"),
        ({"start.policy.checkpoint": START}, "start.policy.checkpoint", "'base' or a dir"),
        ({"runs.grpo.policy.checkpoint": BASE}, "runs.grpo.policy.checkpoint", "must be 'start'"),
        ({"runs.grpo.run.export": False}, "runs.grpo.run.export", "must be true"),
        ({"runs.grpo.hosts.count": 2}, "runs.grpo.hosts.count", "one process"),
        ({"runs.avatar.replay.minimum": 0}, "runs.avatar.replay.minimum", "at least 1"),
        ({"start.optimizer.b1": 2.0}, "start.optimizer.b1", "below 1"),
    ],
)
def test_impossible_ablations_are_refused_at_once(change, field, message):
    config = make_config(Path("somewhere"))
    config.update_from_flattened_dict(change)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        check(config)
    assert caught.value.field == field


def test_wrong_changes_of_the_world_and_missing_files_are_refused(tmp_path, monkeypatch):
    config = make_config(tmp_path / "study")
    config.world.changes.moons = 2
    with pytest.raises(InputError) as caught:
        check(config)
    assert caught.value.field == "world.changes.moons"
    config = make_config(tmp_path / "study")
    config.world.update(test=1)
    config.runs.avatar.data.path = "other.jsonl"
    pretend(monkeypatch)
    with pytest.raises(InputError, match="no such file") as caught:
        run_ablation(config, console=Console(file=io.StringIO()))
    assert caught.value.field == "runs.avatar.data.path"
    assert not (tmp_path / "study" / "start").exists()


def test_the_streaming_world_has_its_own_measures_and_files(tmp_path):
    turnwise = rl_config("turnwise")
    turnwise.policy.checkpoint = START
    start = sft_config()
    start.policy.checkpoint = BASE
    config = ablation_config(start, {"turnwise": turnwise}, {}, {"all": ("turnwise",)})
    config.world.kind = "streamworld"
    check(config)
    run = run_config(config, "turnwise", 0)
    assert (run.data.source, Path(run.data.path).name) == ("mmduet2_rl", "rl_train.parquet")
    assert start_config(config).data.source == "mmduet2_sft"
    (tmp_path / "report.json").write_text(json.dumps({"updates": 2, "skipped_updates": 0}))
    lines = [{"step": 0, "reward": 0.5, "signal": 0.25}, {"step": 1, "reward": None, "signal": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(li) + "\n" for li in lines))
    groups = [{"step": step} for step in (0, 0, 0, 1, 1, 1)]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(g) + "\n" for g in groups))
    log = RunLog.read(tmp_path, "reward")
    np.testing.assert_array_equal(log.generated, [3, 6])
    assert log.figures()["zero_signal"] == 37.5
    assert "hinted" not in log.figures()
    metrics = {measure.name: float(place) for place, measure in enumerate(STREAMING)}
    report = Report("streaming", "", {**metrics, "other": 9.0})
    kind = WORLD_KINDS["streamworld"]
    assert kind.values(report) == metrics
    results = Results(config, Outcome(kind.values(report), {}, kind.floor(report), None))
    results.add("turnwise", 0, Outcome({**metrics, **log.figures()}, {}, {}, log))
    assert "| turnwise | 1 | 0.000 |  | 1.0 | 2.0 | 3.0 | 4.0 |" in markdown(results)
    assert "## controls" not in markdown(results)
    assert "turnwise" in comma_separated(results)
    (line,) = plot_learning(results).axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [3, 6])
    assert plot_tiers(results) is None


def test_the_command_runs_what_the_config_is(tmp_path, monkeypatch):
    asked = []
    for name, kind in (("ablation.run_ablation", "a"), ("runner.run_study", "s")):
        monkeypatch.setattr(
            f"turnwise_jax.study.{name}",
            lambda config, kind=kind: asked.append((kind, config.dir)),
        )
    root = Path(__file__).resolve().parents[2] / "configs" / "worlds"
    for name in ("avatar_soundworld", "demo"):
        command.main([f"--config={root / name}.py", f"--config.dir={tmp_path / name}"])
    assert asked == [
        ("a", str(tmp_path / "avatar_soundworld")),
        ("s", str(tmp_path / "demo")),
    ]
