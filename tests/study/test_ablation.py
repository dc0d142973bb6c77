"""Ablations with pretended runs: numbers, tables, pictures and resuming."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from pretended import pretend, train_nothing
from rich.console import Console

from turnwise_jax.eval.report import Report
from turnwise_jax.study.ablation import run_ablation
from turnwise_jax.study.ablation_config import BASE, START, ablation_config, kind_of
from turnwise_jax.study.ablation_plots import plot_learning, plot_signal, plot_tiers
from turnwise_jax.study.ablation_results import Results, outcome
from turnwise_jax.study.ablation_tables import markdown
from turnwise_jax.train.config import avatar_config, sft_config

SEEDS = (3, 1)
MODALITIES = ("visual", "sound", "audio-visual")


def make_config(directory: Path):
    """Two variants that generate 16 rollouts each, two seeds, two tables."""
    start, grpo, avatar = sft_config(), avatar_config(), avatar_config()
    start.policy.checkpoint = BASE
    for run, fresh, steps in ((grpo, 4, 2), (avatar, 2, 4)):
        run.policy.checkpoint = START
        run.data.batch_size = 2
        run.rollout.group_size, run.replay.samples, run.run.steps = fresh, 4 - fresh, steps
    grpo.hints.use = False
    config = ablation_config(
        start,
        {"grpo": grpo, "avatar": avatar},
        {"avatar": "AVATAR", "start": "SFT"},
        {"parts": ("grpo", "avatar"), "alone": ("avatar",)},
    )
    config.dir, config.seeds = str(directory), SEEDS
    config.world.update(train=1, test=8)
    config.evaluation.resamples = 5
    return config


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study: (directory, config, what it printed)."""
    directory = tmp_path_factory.mktemp("runs") / "study"
    config, console = make_config(directory), Console(file=io.StringIO(), width=80)
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        assert run_ablation(config, console=console) == (directory, True)
    return directory, config, console.file.getvalue()


def marked(path: Path) -> dict[str, list[bool]]:
    """Category -> whether each of its answers is right, read without the package."""
    found = defaultdict(list)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        (reply,) = record["replies"]
        said = re.search("<answer>(.*)</answer>", reply)[1]
        found[record["question"]["category"]].append(said == record["question"]["answer"])
    return found


def percent(marks: dict[str, list[bool]], wanted: str = "") -> float:
    """Right answers of all, a modality's or a category's questions."""
    own = [m for name, ms in marks.items() for m in ms if name.startswith(wanted)]
    return 100.0 * sum(own) / len(own)


def names_of(marks) -> dict[str, str]:
    """Column -> how its categories' names begin."""
    modalities = {name: f"{name}/" for name in MODALITIES}
    return {"accuracy": "", **modalities, **{name: name for name in marks}}


def seed_values(directory: Path, variant: str, control: str = "none") -> dict[int, dict]:
    found = {}
    for seed in SEEDS:
        place = directory / "eval" / variant / str(seed) / control
        marks = marked(place / "predictions.jsonl")
        found[seed] = {name: percent(marks, begin) for name, begin in names_of(marks).items()}
    return found


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_number_is_that_of_the_predictions_and_logs(study):
    directory, _, _ = study
    told = json.loads((directory / "results.json").read_text())
    assert list(told["runs"]) == ["grpo", "avatar"]
    differ = 0
    for variant, run in told["runs"].items():
        own = seed_values(directory, variant)
        for seed in SEEDS:
            values = run["seeds"][str(seed)]["values"]
            assert {n: values[n] for n in own[seed]} == pytest.approx(own[seed])
            differ += values["accuracy"] != values["visual"] != values["sound"]
            place = directory / "runs" / variant / str(seed)
            groups, metrics = lines_of(place / "groups.jsonl"), lines_of(place / "metrics.jsonl")
            assert values["generated"] == sum(not g["replayed"] for g in groups) == 16
            assert values["replayed"] == sum(g["replayed"] for g in groups)
            assert values["updates"] == len(metrics)
            for name in ("zero_signal", "zero_signal_mixed", "hinted"):
                mean = 100 * statistics.mean(line[name] for line in metrics)
                assert values[name] == pytest.approx(mean)
        for name in own[SEEDS[0]]:
            numbers = [own[seed][name] for seed in SEEDS]
            spread = run["spread"][name]
            assert spread["mean"] == pytest.approx(statistics.mean(numbers))
            assert spread["deviation"] == pytest.approx(statistics.stdev(numbers))
            assert spread["count"] == 2
    assert differ > 0
    assert told["runs"]["avatar"]["seeds"]["1"]["values"]["replayed"] == 3 * 2 * 2


def test_variants_are_compared_seed_by_seed(study):
    directory, _, _ = study
    own, other = (seed_values(directory, name) for name in ("avatar", "grpo"))
    apart = [own[seed]["accuracy"] - other[seed]["accuracy"] for seed in SEEDS]
    told = json.loads((directory / "results.json").read_text())["tables"]
    assert [row["variant"] for row in told["parts"]] == ["grpo", "avatar"]
    assert told["parts"][0]["difference"] == {"mean": 0.0, "deviation": 0.0, "count": 2}
    assert told["parts"][1]["difference"]["mean"] == pytest.approx(statistics.mean(apart))
    assert told["parts"][1]["difference"]["deviation"] == pytest.approx(statistics.stdev(apart))
    assert [row["variant"] for row in told["alone"]] == ["avatar"]


def test_the_tables_show_these_numbers(study):
    directory, _, printed = study
    own, other = (seed_values(directory, name) for name in ("avatar", "grpo"))
    text = (directory / "tables.md").read_text()
    rows = list(csv.DictReader(io.StringIO((directory / "tables.csv").read_text())))
    assert [(row["table"], row["variant"]) for row in rows] == [
        *(("parts", "grpo"), ("parts", "avatar"), ("alone", "avatar"))
    ]
    for name in own[3]:
        numbers = [own[seed][name] for seed in SEEDS]
        apart = [own[seed][name] - other[seed][name] for seed in SEEDS]
        assert float(rows[1][f"{name}_mean"]) == pytest.approx(statistics.mean(numbers))
        assert float(rows[1][f"{name}_sd"]) == pytest.approx(statistics.stdev(numbers))
        assert float(rows[1][f"{name}_difference"]) == pytest.approx(statistics.mean(apart))
        assert float(rows[1][f"{name}_difference_sd"]) == pytest.approx(statistics.stdev(apart))
        assert f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}" in text
    assert rows[0]["accuracy_difference"] == "0.0"
    apart = [own[seed]["accuracy"] - other[seed]["accuracy"] for seed in SEEDS]
    signed = f"{statistics.mean(apart):+.1f} ± {statistics.stdev(apart):.1f}".replace("-", "−")
    means = [statistics.mean(own[seed]["accuracy"] for seed in SEEDS)]
    (line,) = re.findall(r"^\| AVATAR \| 2 \| .*−.*$|^\| AVATAR \| 2 \| .*\+.*$", text, re.M)
    assert line.startswith(f"| AVATAR | 2 | {means[0]:.1f} ± ")
    assert f"| {signed} |" in line
    assert signed in printed
    assert "| AVATAR | 16 | 12 | 4 |" in text
    assert "| grpo | 16 | 0 | 2 |" in text
    assert "Every run generated 16 rollouts" in text
    assert "4 of 4 runs are finished" in text


def test_controls_stand_beside_what_knowing_nothing_earns(study):
    directory, _, _ = study
    told = json.loads((directory / "results.json").read_text())
    own = seed_values(directory, "avatar", "muted")
    for seed in SEEDS:
        muted = told["runs"]["avatar"]["seeds"][str(seed)]["controls"]["muted"]
        assert muted == pytest.approx(own[seed])
    assert told["runs"]["grpo"]["seeds"]["1"]["controls"] == {}
    assert set(told["start"]["controls"]) == {"muted", "blanked"}
    records = lines_of(directory / "world" / "qa_test.jsonl")
    floor = defaultdict(list)
    constant = defaultdict(Counter)
    for record in records:
        if not record.get("options"):
            constant[record["category"]][record["answer"]] += 1
    for record in records:
        name, options = record["category"], record.get("options")
        times = constant[name].most_common(1)[0][1] if name in constant else 0
        worth = 1 / len(options) if options else times / constant[name].total()
        for key in ("accuracy", name.partition("/")[0], name):
            floor[key].append(100 * worth)
    assert told["knowing_nothing"] == pytest.approx({k: np.mean(v) for k, v in floor.items()})
    text = (directory / "tables.md").read_text().partition("## controls")[2]
    for row in ("knowing nothing", "SFT", "SFT, sound muted", "AVATAR, frames grey"):
        assert f"| {row} |" in text
    assert "grpo, sound muted" not in text


def test_progress_and_leftovers(study):
    directory, _, printed = study
    expected = [(1, "grpo", 3), (2, "AVATAR", 3), (3, "grpo", 1), (4, "AVATAR", 1)]
    assert re.findall(r"run (\d) of 4: (\w+), seed (\d)", printed) == [
        (str(number), label, str(seed)) for number, label, seed in expected
    ]
    for name in ("curves", "signal", "results", "tiers"):
        assert (directory / f"{name}.png").stat().st_size > 8000
    for run in (directory / "start", *(directory / "runs").glob("*/*")):
        assert {"policy", "metrics.jsonl", "groups.jsonl"} <= {p.name for p in run.iterdir()}
        assert not (run / "checkpoints").exists()


def test_checkpoints_stay_if_asked_for(tmp_path, monkeypatch):
    pretend(monkeypatch)
    config = make_config(tmp_path / "study")
    config.keep_checkpoints, config.seeds, config.order = True, (0,), ("avatar",)
    run_ablation(config, console=Console(file=io.StringIO()))
    assert (tmp_path / "study" / "runs" / "avatar" / "0" / "checkpoints").is_dir()
    tables = (tmp_path / "study" / "tables.md").read_text()
    assert "| AVATAR | 1 |" in tables
    assert "±" not in tables.partition("runs are finished")[0]


def test_the_same_command_again_changes_nothing(study, monkeypatch):
    directory, config, printed = study
    pretend(monkeypatch)
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    console = Console(file=io.StringIO(), width=80)
    run_ablation(config, console=console)
    assert [p.name for p, data in before.items() if p.read_bytes() != data] == []
    again = console.file.getvalue()
    assert "run 1" not in again
    assert printed.endswith(again)


def test_a_stopped_study_has_whole_tables_of_the_seeds_that_are_done(study, tmp_path, monkeypatch):
    """The third run, the first one of the second seed, is asked to stop."""
    config = make_config(tmp_path / "study")

    def stopping(run):
        return (Path(run.run.dir), False) if run.run.seed == SEEDS[1] else train_nothing(run)

    pretend(monkeypatch, train=stopping)
    console = Console(file=io.StringIO(), width=80)
    assert run_ablation(config, console=console) == (tmp_path / "study", False)
    assert "stopped in run 3 of 4: grpo, seed 1; the same command" in console.file.getvalue()
    told = json.loads((tmp_path / "study" / "results.json").read_text())
    assert [list(run["seeds"]) for run in told["runs"].values()] == [["3"], ["3"]]
    assert "2 of 4 runs are finished" in (tmp_path / "study" / "tables.md").read_text()
    pretend(monkeypatch)
    run_ablation(config, console=console)
    for name in ("tables.md", "tables.csv", "results.json"):
        assert (tmp_path / "study" / name).read_text() == (study[0] / name).read_text()


def results_of(study) -> Results:
    directory, config, _ = study
    kind = kind_of(config)

    def reports(place):
        return {p.name: Report.read(p / "report.json") for p in place.iterdir()}

    found = Results(config, outcome(kind, reports(directory / "eval" / START), None))
    for name in config.order:
        for seed in SEEDS:
            place, run = Path("eval") / name / str(seed), Path("runs") / name / str(seed)
            found.add(name, seed, outcome(kind, reports(directory / place), directory / run))
    return found


def test_curves_are_means_over_seeds_against_generated_rollouts(study):
    figure = plot_learning(results_of(study))
    parts, alone = figure.axes
    assert [axes.get_title(loc="left") for axes in (parts, alone)] == ["parts", "alone"]
    grpo, avatar = parts.lines
    np.testing.assert_array_equal(grpo.get_xdata(), [8, 16])
    np.testing.assert_array_equal(avatar.get_xdata(), [4, 8, 12, 16])
    logs = [
        [line["accuracy"] for line in lines_of(study[0] / "runs/avatar" / str(s) / "metrics.jsonl")]
        for s in SEEDS
    ]
    np.testing.assert_allclose(avatar.get_ydata(), np.mean(logs, axis=0))
    edges = parts.collections[1].get_paths()[0].vertices[:, 1]
    assert edges.max() == pytest.approx(np.max(logs))
    assert edges.min() == pytest.approx(np.min(logs))


def test_signal_and_tiers_show_replay_where_there_is_some(study):
    results = results_of(study)
    grpo, avatar = plot_signal(results).axes
    shown = [[line for line in axes.lines if len(line.get_xdata())] for axes in (grpo, avatar)]
    assert list(map(len, shown)) == [1, 2]
    _, mixed = shown[1]
    mean = 100 * results.curves("avatar", "zero_signal_mixed")[1].mean(axis=0)
    np.testing.assert_allclose(mixed.get_ydata(), mean)
    tiers = plot_tiers(results)
    assert [axes.get_title(loc="left") for axes in tiers.axes] == ["AVATAR"]
    top = tiers.axes[0].collections[-1].get_paths()[0].vertices[:, 1].max()
    last = lines_of(study[0] / "runs/avatar/1/metrics.jsonl")[-1]
    assert top == sum(value for name, value in last.items() if name.startswith("buffer_"))


def test_unequal_numbers_of_rollouts_and_lost_updates_are_said(study):
    results = results_of(study)
    run = results.runs["grpo"][SEEDS[0]]
    short = {**run.values, "generated": 8.0, "skipped_updates": 3.0}
    results.add("grpo", SEEDS[0], run._replace(values=short))
    text = markdown(results)
    assert "did not generate equally many rollouts (8 to 16)" in text
    assert "not finite, a run: grpo 1.5" in text
