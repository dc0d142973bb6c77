"""The streaming studies: their configs, and one of two variants from the world to its analyses."""

from __future__ import annotations

import csv
import io
import json
import runpy
import zlib
from pathlib import Path

import numpy as np
import pytest
from logged import streaming_run
from pretended import rng_of
from rich.console import Console

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.eval.generate import as_prediction
from turnwise_jax.eval.predictions import PredictionWriter
from turnwise_jax.eval.run import PREDICTIONS, evaluate
from turnwise_jax.study import ablation
from turnwise_jax.study.ablation import run_ablation
from turnwise_jax.study.ablation_config import check, run_config
from turnwise_jax.train.directory import is_finished
from turnwise_jax.train.validate import flatten

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "worlds"
SWITCHES = {
    "grpo": ("shared", "trajectory_token"),
    "turn_mean": ("shared", "turn"),
    "credit": ("turn", "trajectory_token"),
    "turnwise": ("turn", "turn"),
}


def load(name: str):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["get_config"]()


def fields(run) -> dict:
    return {name: value for name, value in flatten(run.to_dict()).items() if name != "run.dir"}


def test_the_ablations_variants_differ_in_the_two_switches_alone():
    config = load("turnwise_ablation")
    check(config)
    assert config.order == tuple(SWITCHES) == config.tables.components
    assert len(config.seeds) == 3
    base = fields(run_config(config, "turnwise", 0))
    for name, (credit, reduction) in SWITCHES.items():
        own = fields(run_config(config, name, 0))
        assert (own["algorithm.credit"], own["algorithm.reduction"]) == (credit, reduction)
        differing = {key for key in own if own[key] != base[key]}
        assert differing <= {"algorithm.credit", "algorithm.reduction"}


def test_the_alpha_study_varies_alpha_alone_and_ends_in_turnwise():
    config, other = load("turnwise_alpha"), load("turnwise_ablation")
    check(config)
    runs = [fields(run_config(config, name, 0)) for name in config.order]
    assert [run["algorithm.alpha"] for run in runs] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [config.labels[name] for name in config.order][::4] == ["alpha 0", "alpha 1"]
    for run in runs:
        assert {key for key in run if run[key] != runs[-1][key]} <= {"algorithm.alpha"}
    full = fields(run_config(other, "turnwise", 0))
    differing = {key for key in full if full[key] != runs[-1][key]}
    assert differing <= {"run.steps", "policy.checkpoint", "data.path", "data.root"}
    for name in ("start", "world", "base"):
        assert config[name].to_dict() == other[name].to_dict()


def pretend_to_train(config):
    """A finished run's directory with random logs in the form of streaming RL."""
    place = Path(config.run.dir)
    if is_finished(place, config):
        return place, True
    if config.algorithm.name == "sft":
        place.mkdir(parents=True)
    else:
        seed = zlib.crc32("/".join(place.parts[-2:]).encode())
        streaming_run(place, credit=config.algorithm.credit, seed=seed)
    (place / "policy").mkdir()
    (place / "policy" / "config.json").write_text("{}")
    report = {"iterations": 12, "updates": 12, "skipped_updates": 0}
    (place / "report.json").write_text(json.dumps(report))
    return place, True


def reply_at_random(config):
    """A real report about policies that now and then say a window's answer."""
    place = Path(config.dir)
    if not (place / PREDICTIONS).exists():
        dialogues, _ = load_dialogues("mmduet2_rl", config.data.path, root=config.data.root)
        rng = rng_of(place)
        with PredictionWriter(place / PREDICTIONS) as writer:
            for dialogue in dialogues:
                said = [
                    str(rng.choice(["NO REPLY", dialogue.windows[0].answer]))
                    for _ in dialogue.open_turns
                ]
                writer.write(as_prediction(dialogue, said))
    return evaluate(config, predictions=place / PREDICTIONS)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """(directory, what it printed, the files of its analysis after the first run)."""
    directory = tmp_path_factory.mktemp("runs") / "study"
    config = load("turnwise_ablation")
    config.dir, config.seeds, config.order = str(directory), (0, 1), ("grpo", "turnwise")
    config.world.update(train=1, test=3)
    config.evaluation.update(resamples=5, controls=("turnwise",))
    console, early = Console(file=io.StringIO(), width=80), {}
    draw = ablation.write_analysis

    def note(runs, output):
        written = draw(runs, output)
        if not early:
            early.update({path.name: path.read_text() for path in written if path.suffix == ".md"})
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "train", pretend_to_train)
        patch.setattr(ablation, "evaluate", reply_at_random)
        patch.setattr(ablation, "make_tiny_policy", lambda place, *_, **__: place)
        patch.setattr(ablation, "write_analysis", note)
        assert run_ablation(config, console=console) == (directory, True)
    return directory, console.file.getvalue(), early


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_its_table_has_the_streaming_measures_of_the_reports(study):
    directory, printed, _ = study
    rows = rows_of(directory / "tables.csv")
    assert [row["label"] for row in rows] == ["GRPO", "TurnWise"]
    for row in rows:
        for name in ("reward", "pauc", "repetition_rate", "non_silent_share"):
            places = (directory / "eval" / row["variant"]).glob("*/none/report.json")
            values = [json.loads(place.read_text())["metrics"][name] for place in places]
            assert len(values) == 2
            assert float(row[f"{name}_mean"]) == pytest.approx(np.mean(values))
            assert float(row[f"{name}_sd"]) == pytest.approx(np.std(values, ddof=1))
    text = (directory / "tables.md").read_text()
    for name in ("SFT", "GRPO", "TurnWise", "TurnWise, another video's frames"):
        assert f"| {name} |" in text
    assert "against GRPO" in printed
    assert "replay" not in text
    assert "hint" not in text
    assert "knowing nothing" not in text.lower()


def test_it_leaves_pictures_but_none_of_a_buffer(study):
    directory, _, _ = study
    for name in ("curves", "signal", "results"):
        assert (directory / f"{name}.png").stat().st_size > 8000
    assert not (directory / "tiers.png").exists()


def test_dynamics_and_redistribution_stand_beside_the_tables(study):
    directory, _, early = study
    rows = rows_of(directory / "analysis" / "dynamics.csv")
    assert [row["label"] for row in rows] == ["GRPO", "GRPO", "TurnWise", "TurnWise"]
    assert [Path(row["run"]).name for row in rows] == ["0", "1", "0", "1"]
    text = (directory / "analysis" / "dynamics.md").read_text()
    assert "| TurnWise | 2 | 12 |" in text
    found = rows_of(directory / "analysis" / "redistribution.csv")
    assert [(row["label"], row["advantages"]) for row in found if row["run"] == "all"] == [
        ("GRPO", "recomputed"),
        ("TurnWise", "logged"),
    ]
    for name in ("dynamics.png", "redistribution.png"):
        assert (directory / "analysis" / name).stat().st_size > 10000
    assert "| GRPO | 1 | 12 |" in early["dynamics.md"]
    assert "TurnWise" not in early["redistribution.md"]
