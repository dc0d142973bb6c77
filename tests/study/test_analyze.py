"""Analyses of logs: every number recomputed from the lines, pictures hold what they are given."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from logged import (
    answering_run,
    rollout,
    shared_of,
    streaming_run,
    turn_of,
    write_run,
)

from turnwise_jax.cli.main import main
from turnwise_jax.study.analyze import labelled, write_analysis
from turnwise_jax.study.analyze_credit import Redistribution, pooled, redistributions, with_credit
from turnwise_jax.study.analyze_dynamics import sorted_runs
from turnwise_jax.study.analyze_plots import plot_redistribution
from turnwise_jax.study.analyze_runs import read_run
from turnwise_jax.study.plots import RL_PANELS, credit_warmup, plot_seeds

STREAMED = ("dynamics.png", "dynamics.csv", "dynamics.md")
CREDITED = ("redistribution.png", "redistribution.csv", "redistribution.md")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("logged")
    return {
        "turn": streaming_run(root / "turn", seed=1),
        "again": streaming_run(root / "again", seed=2),
        "shared": streaming_run(root / "shared", credit="shared", seed=3),
        "avatar": answering_run(root / "avatar"),
    }


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def counted(run: Path, first: int) -> dict[str, float]:
    """The paper's quantities of the batches from ``first`` on, by loops over the log."""
    groups: dict[tuple, list[dict]] = {}
    for line in lines_of(run / "groups.jsonl"):
        if line["step"] >= first:
            groups.setdefault((line["step"], line["group"]), []).append(line)
    changed = decisions = mixed = trajectories = 0
    again: list[tuple[float, float]] = []
    for group in groups.values():
        shared = shared_of([line["reward"] for line in group])
        scores = [line["prefix_scores"] for line in group]
        for i, line in enumerate(group):
            turn = [turn_of(scores, i, t) for t in range(len(line["times"]))]
            turn = [0.0 if abs(a) < 1e-4 else a for a in turn]
            trajectories += 1
            mixed += any(a > 0 for a in turn) and any(a < 0 for a in turn)
            for advantage, mark in zip(turn, line["repetitive"], strict=True):
                decisions += 1
                changed += shared[i] > 0 > advantage or shared[i] < 0 < advantage
                if mark == 1.0:
                    again.append((shared[i], advantage))
    lifted = [advantage for own, advantage in again if own > 0]
    return {
        "decisions": decisions,
        "trajectories": trajectories,
        "sign_change": 100 * changed / decisions,
        "both_signs": 100 * mixed / trajectories,
        "repetitive": len(again),
        "repetitive_negative_shared": 100 * sum(own < 0 for own, _ in again) / len(again),
        "repetitive_negative_turn": 100 * sum(turn < 0 for _, turn in again) / len(again),
        "shared_above": len(lifted),
        "reversed": sum(advantage < 0 for advantage in lifted),
        "repetitive_reversed": 100 * sum(a < 0 for a in lifted) / len(lifted),
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.mark.parametrize(("name", "first"), [("turn", 3), ("shared", 0)])
def test_the_papers_quantities_are_those_of_the_formulas(runs, name, first, tmp_path):
    wanted = counted(runs[name], first)
    found = Redistribution.of(read_run(runs[name]).decisions)
    told = {**found._asdict(), **found.shares()}
    assert {key: told[key] for key in wanted} == pytest.approx(wanted, rel=1e-6)
    assert 0 < found.changed < found.decisions
    assert 0 < found.reversed < found.shared_above < found.repetitive
    assert found.batches == 12 - first
    assert found.left_out == 0
    write_analysis(labelled([str(runs[name])], ["Name"]), tmp_path)
    own, together = rows_of(tmp_path / "redistribution.csv")
    assert (own["run"], together["run"]) == (str(runs[name]), "all")
    assert own["advantages"] == {"turn": "logged", "shared": "recomputed"}[name]
    for key in wanted:
        assert float(own[key]) == float(together[key]) == pytest.approx(wanted[key], rel=1e-6)
    text = (tmp_path / "redistribution.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| Name |"))
    for key in ("sign_change", "both_signs", "repetitive_negative_turn"):
        assert f"| {wanted[key]:.1f} |" in row
    assert f"{wanted['reversed']} of {wanted['shared_above']}" in row
    assert "| 432 of 722 (59.8 %) |" in text
    assert ("As trained" in text) == (name == "turn")


def test_logged_advantages_are_taken_as_they_are(tmp_path):
    """Not what the formula gives: only the log knows what the run was trained on."""
    scores = [[0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]
    marks = [[None, 1.0], [0.0, 1.0]]
    credits = [([0.5, -0.25], 1.0), ([-2.0, 4.0], -1.0)]
    groups = [
        rollout(0, "a", g, scores[g], marks[g], turn_advantages=turn, shared_advantage=shared)
        for g, (turn, shared) in enumerate(credits)
    ]
    algorithm = {"credit": "turn", "alpha": 1.0}
    metrics = [{"step": 0, "non_silent": 1.0, "alpha": 1.0}]
    run = read_run(write_run(tmp_path / "run", metrics, groups, algorithm))
    found = Redistribution.of(run.decisions)
    assert found == Redistribution(
        batches=1, trajectories=2, decisions=4, live=4, changed=2, mixed=2,
        changed_literally=2, mixed_literally=2, repetitive=2,
        shared_below=1, shared_above=1, turn_below=1, turn_above=1, reversed=1,
    )  # fmt: skip
    assert found.shares()["sign_change"] == 50.0


def test_rounding_has_no_sign_unless_taken_literally(tmp_path):
    turns = [[0.5, -1e-7], [-0.5, 3e-8]]
    groups = [
        rollout(0, "a", g, [0.0, 1.0, 1.0], [None] * 2, turn_advantages=own, shared_advantage=s)
        for g, (own, s) in enumerate(zip(turns, (0.7, -0.7), strict=True))
    ]
    metrics = [{"step": 0, "non_silent": 1.0, "alpha": 1.0}]
    algorithm = {"credit": "turn", "alpha": 1.0}
    place = write_run(tmp_path / "run", metrics, groups, algorithm)
    write_analysis(labelled([str(place)]), tmp_path)
    row = rows_of(tmp_path / "redistribution.csv")[0]
    assert [float(row[name]) for name in ("sign_change", "both_signs")] == [0.0, 0.0]
    assert [float(row[f"{n}_literally"]) for n in ("sign_change", "both_signs")] == [50.0, 100.0]
    assert "run 50.0 and 100.0 %" in (tmp_path / "redistribution.md").read_text()


def test_incomplete_trajectories_are_left_out(tmp_path):
    scores = [[0.0, 0.5, 1.0], [0.0, 0.0, 2.0], [0.0, 1.0, None], [0.0, 0.25]]
    groups = [
        rollout(0, "a", g, own, [None] * (len(own) - 1), turn_advantages=[0.1] * (len(own) - 1),
                shared_advantage=0.5)
        for g, own in enumerate(scores)
    ]  # fmt: skip
    torn = [{**line, "step": 1} for line in groups[:2]]  # a batch that was being written
    metrics = [{"step": step, "non_silent": 1.0, "alpha": 1.0} for step in range(2)]
    algorithm = {"credit": "turn", "alpha": 1.0}
    run = read_run(write_run(tmp_path / "run", metrics, groups + torn, algorithm))
    found = Redistribution.of(run.decisions)
    assert (found.trajectories, found.decisions, found.left_out) == (2, 4, 4)
    shared = read_run(write_run(tmp_path / "shared", metrics, groups + torn, {"credit": "shared"}))
    told = shared.decisions
    assert told.recomputed
    # The third rollout's score is unknown, the fourth keeps its last one: three are compared.
    last = [[0.0, 0.5, 1.0], [0.0, 0.0, 2.0], [0.0, 0.25, 0.25]]
    wanted = [turn_of(last, i, t) for i in (0, 1) for t in (0, 1)]
    np.testing.assert_allclose(told.turn_N, wanted, rtol=1e-5)


def test_the_same_prompt_twice_in_a_batch_is_two_groups(tmp_path):
    scores = [[0.0, 1.0], [0.0, 3.0], [0.0, 5.0], [0.0, 4.0]]
    groups = [
        rollout(0, "a", g % 2, own, [None], turn_advantages=[0.0], shared_advantage=0.7)
        for g, own in enumerate(scores)
    ]
    metrics = [{"step": 0, "non_silent": 0.0}]
    run = read_run(write_run(tmp_path / "run", metrics, groups, {"name": "grpo"}))
    pairs = scores[:2], scores[2:]
    wanted = [turn_of(list(pair), i, 0) for pair in pairs for i in (0, 1)]
    np.testing.assert_allclose(run.decisions.turn_N, wanted, rtol=1e-5)


def test_runs_of_one_label_are_pooled(runs, tmp_path):
    found = labelled([str(runs["turn"]), str(runs["again"])], ["TurnWise", "TurnWise"])
    one, other = redistributions(found)["TurnWise"]
    both = pooled([one, other])
    assert both.decisions == one.decisions + other.decisions
    share = 100 * (one.changed + other.changed) / both.decisions
    assert both.shares()["sign_change"] == pytest.approx(share)
    write_analysis(found, tmp_path)
    rows = rows_of(tmp_path / "redistribution.csv")
    assert [row["run"] for row in rows] == [str(runs["turn"]), str(runs["again"]), "all"]
    assert float(rows[2]["sign_change"]) == pytest.approx(share)


def test_nothing_to_share_is_empty_and_not_a_zero():
    assert set(Redistribution().shares().values()) == {None}
    assert pooled([]) == Redistribution()


def test_the_table_has_the_last_updates_means(tmp_path):
    rng = np.random.default_rng(5)
    values = rng.random((2, 70))
    places = []
    for g, own in enumerate(values):
        lines = [
            {"step": s, "reward": v, "non_silent": v / 2, "repetition": None if s % 2 else v}
            for s, v in enumerate(own.tolist())
        ]
        places.append(str(write_run(tmp_path / f"run{g}", lines)))
    write_analysis(labelled(places, ["A", "A"]), tmp_path / "out")
    means = [statistics.mean(own[20:].tolist()) for own in values]
    even = [statistics.mean(own[20::2].tolist()) for own in values]
    rows = rows_of(tmp_path / "out" / "dynamics.csv")
    assert [float(row["reward"]) for row in rows] == pytest.approx(means)
    assert [float(row["repetition"]) for row in rows] == pytest.approx(even)
    assert [float(row["non_silent"]) for row in rows] == pytest.approx([50 * m for m in means])
    assert [(row["updates"], row["averaged"]) for row in rows] == [("70", "50")] * 2
    text = (tmp_path / "out" / "dynamics.md").read_text()
    spread = f"{statistics.mean(means):.3f} ± {statistics.stdev(means):.3f}"
    assert f"| A | 2 | 70 | {spread} |" in text
    assert "Window quality" not in text  # not logged
    assert not (tmp_path / "out" / "redistribution.md").exists()


def test_curves_of_seeds_are_a_band_and_one_run_has_its_batch_means(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.random((2, 100))
    logs = [[{"step": s, "reward": v} for s, v in enumerate(own)] for own in values.tolist()]
    figure = plot_seeds({"two": logs, "one": logs[:1]}, tmp_path / "c.png", panels=RL_PANELS)
    mean, faint, smooth = figure.axes[0].lines[:3]
    trailing = np.array(
        [[own[max(0, s - 19) : s + 1].mean() for s in range(100)] for own in values]
    )
    np.testing.assert_allclose(mean.get_ydata(), trailing.mean(0))
    np.testing.assert_allclose(faint.get_ydata(), values[0])
    np.testing.assert_allclose(smooth.get_ydata(), trailing[0])
    ends = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert ends.min() == pytest.approx(trailing.min())
    assert ends.max() == pytest.approx(trailing.max())


def test_the_shaded_warmup_is_what_the_log_says():
    def log(*alphas):
        return [{"step": s, "alpha": a} for s, a in enumerate(alphas)]

    assert credit_warmup(log(0.0, 0.25, 0.5, 0.5)) == 2
    assert credit_warmup(log(0.0, 0.0, 0.0)) == 0
    assert credit_warmup(log(1.0, 1.0)) == 0
    assert credit_warmup([{"step": 0}]) == 0
    assert credit_warmup([]) == 0


def test_the_picture_holds_every_decision(runs):
    found = with_credit(labelled([str(runs[n]) for n in ("turn", "shared", "avatar")]))
    assert list(found) == ["turn", "shared"]
    figure = plot_redistribution(found)
    counts = redistributions(found)
    for axes, (one,) in zip(figure.axes[:2], counts.values(), strict=True):
        assert axes.collections[0].get_array().sum() == one.decisions
        assert f"{one.shares()['sign_change']:.1f} %" in axes.get_title(loc="left")
        (diagonal,) = (line for line in axes.lines if line.get_linestyle() == "--")
        np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    for axes, (one,) in zip(figure.axes[2:4], counts.values(), strict=True):
        widths = [patch.get_width() for patch in axes.patches]
        parts = [one.shared_below, one.repetitive - one.shared_below - one.shared_above,
                 one.shared_above]  # fmt: skip
        np.testing.assert_allclose(widths[:3], [100 * part / one.repetitive for part in parts])
        assert sum(widths[3:]) == pytest.approx(100)
        assert f"{one.reversed} of {one.shared_above}" in axes.get_title(loc="left")
    assert plot_redistribution({}) is None


def test_runs_on_questions_have_their_own_tables_and_buffer(runs, tmp_path):
    written = write_analysis(labelled([str(runs["avatar"])]), tmp_path)
    names = [path.name for path in written]
    assert names == ["answers.png", "answers.csv", "answers.md", "tiers.png"]
    lines = lines_of(runs["avatar"] / "metrics.jsonl")
    (row,) = rows_of(tmp_path / "answers.csv")
    for name, scale in (("accuracy", 1), ("zero_signal", 100), ("zero_signal_mixed", 100)):
        mean = scale * statistics.mean(line[name] for line in lines)
        assert float(row[name]) == pytest.approx(mean)
        decimals = 3 if scale == 1 else 1
        assert f"| {mean:.{decimals}f} |" in (tmp_path / "answers.md").read_text()


def test_mixed_runs_are_told_apart(runs):
    found = labelled([str(runs["turn"]), str(runs["avatar"])])
    told = {sort.name: list(group) for sort, group in sorted_runs(found).items()}
    assert told == {"dynamics": ["turn"], "answers": ["avatar"]}


def test_an_unfinished_run_is_read_up_to_its_last_whole_line(runs, tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    for name in ("metrics", "groups"):
        data = (runs["shared"] / f"{name}.jsonl").read_bytes()
        (place / f"{name}.jsonl").write_bytes(data + b'{"step": 12, "rew')
    cut, whole = read_run(place), read_run(runs["shared"])
    assert len(cut.records) == len(whole.records)
    assert Redistribution.of(cut.decisions) == Redistribution.of(whole.decisions)


def test_names_are_the_shortest_ends_that_differ(tmp_path):
    lines = [{"step": 0, "loss": 1.0}]
    for name in ("grpo", "turnwise"):
        write_run(tmp_path / name / "0", lines)
    places = [str(tmp_path / name / "0") for name in ("grpo", "turnwise")]
    assert list(labelled(places)) == ["grpo/0", "turnwise/0"]
    assert list(labelled(places[:1])) == ["0"]


def test_the_command(runs, tmp_path, capsys):
    out = tmp_path / "out"
    argv = ["analyze", str(runs["turn"]), f"--output={out}", str(runs["again"]), "--labels=A,B"]
    assert main(argv) == 0
    assert {path.name for path in out.iterdir()} == {*STREAMED, *CREDITED}
    told = capsys.readouterr().out
    assert all(f"wrote {out / name}" in told for name in (*STREAMED, *CREDITED))
    rows = rows_of(out / "dynamics.csv")
    assert [(row["label"], row["warmup"]) for row in rows] == [("A", "3"), ("B", "3")]
    for name in ("dynamics.png", "redistribution.png"):
        assert (out / name).stat().st_size > 10000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{turn}"], "--output is required"),
        (["--output=x"], "name at least one training run's directory"),
        (["{turn}", "{none}", "--output=x"], "none: holds no metrics.jsonl; name the directory"),
        (["{turn}", "{turn}", "--output=x"], "turn: is named twice"),
        (["{turn}", "--labels=a,b", "--output=x"], "there are 2 labels for 1 runs"),
        (["{turn}", "--labels=,", "{again}", "--output=x"], "field 'labels': must not be empty"),
        (["{broken}", "--output=x"], "metrics.jsonl: holds a line that is no JSON"),
        (["{empty}", "--output=x"], "has no batch yet"),
        (["{odd}", "--output=x"], "groups.jsonl: is no log of this version: KeyError('group')"),
        (["{turn}", "--output={turn}/config.json"], "is a file; name a directory"),
        (["{turn}", "--outptu=x"], "outptu"),
    ],
)
def test_what_cannot_be_analyzed_is_told_in_a_line(runs, tmp_path, argv, message, capsys):
    places = {**runs, "none": tmp_path / "none", "empty": write_run(tmp_path / "empty", [])}
    places["broken"] = write_run(tmp_path / "broken", [])
    (places["broken"] / "metrics.jsonl").write_text("{]\n")
    odd = [{"step": 0, "prefix_scores": [0.0]}] * 2
    places["odd"] = write_run(tmp_path / "odd", [{"step": 0}], odd)
    argv = [word.format(**places).replace("=x", f"={tmp_path}/x") for word in argv]
    assert main(["analyze", *argv]) == 2
    told = capsys.readouterr().err.strip()
    assert message in told
    assert "\n" not in told
    assert not (tmp_path / "x").exists()
