"""The timed comparisons of training and rollouts: what they time is what they say they time."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

import numpy as np
import pytest
from benchmark_scripts import SMALL, script

OURS_ALONE = [*SMALL, "--no-torch"]


@pytest.fixture(scope="module")
def train_step():
    return script("train_step")


@pytest.fixture(scope="module")
def rollout():
    return script("rollout")


@pytest.fixture(scope="module")
def trained(train_step, tmp_path_factory):
    """A measured run of our two variants, and its folder."""
    folder = tmp_path_factory.mktemp("train_step")
    args = train_step.arguments([*OURS_ALONE, "--no-memory", "--tolerance=1e-5"])
    return train_step.measure(args, folder), folder


def test_both_rows_make_the_same_two_updates(trained):
    report, _ = trained
    shared, plain = report["updates"]["shared"], report["updates"]["plain"]
    for ours, whole in zip(shared, plain, strict=True):
        assert ours == pytest.approx(whole, rel=1e-5)
    assert shared[0]["grad_norm"] != pytest.approx(shared[1]["grad_norm"], rel=1e-6)
    assert shared[1]["logp"] > shared[0]["logp"] - 1


def test_a_report_has_times_ratios_and_memory_and_prints(train_step, trained, capsys):
    report, _ = trained
    assert report["times"]["shared"]["times_ours"] == {"median": 1, "least": 1, "most": 1}
    assert report["times"]["plain"]["seconds"]["least"] > 0
    assert 0 < report["compiled_mb"]["shared"] < report["compiled_mb"]["plain"]
    json.dumps(report)
    train_step.print_report(report)
    out = capsys.readouterr().out
    assert "ours, shared context" in out
    assert "2 prompts x 2 rollouts, 4 frames of context" in out


def test_rows_have_the_asked_shape(train_step, trained):
    report, folder = trained
    args = train_step.arguments([*OURS_ALONE, "--context-frames=6"])
    work = train_step.Work(folder, args)
    for example in work.examples:
        dialogue = example.dialogue
        context = dialogue.turns[: dialogue.first_open + 1]
        assert sum(len(turn.frames) for turn in context) == 6
        assert len(dialogue.open_turns) == 3
    lengths = work.rollouts.length
    assert lengths.min() == 3
    assert lengths.max() > 3
    assert len(set(report["row_tokens"])) > 1
    assert len(set(report["context_tokens"])) > 1


def test_memory_of_one_variant_is_one_line_of_json(train_step, trained, monkeypatch, capsys):
    _, folder = trained
    argv = ["train_step.py", "--memory-of=shared", f"--folder={folder}"]
    monkeypatch.setattr(sys, "argv", argv)
    train_step.main()
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["imported"] <= found["peak"]


def test_what_differs_is_not_timed(train_step):
    def step(norm):
        return lambda: {"loss": 0.5, "logp": -3.0, "grad_norm": norm}

    same = {"shared": step(1.0), "plain": step(1.0005)}
    assert train_step.check(same, 1e-3)["plain"][1]["grad_norm"] == 1.0005
    with pytest.raises(SystemExit, match=r"update 1: grad_norm is 1 for shared and 1.01 for plain"):
        train_step.check({"shared": step(1.0), "plain": step(1.01)}, 1e-3)


def test_rounds_alternate_and_ratios_are_within_rounds():
    workload = script("workload")
    order = []
    seconds = workload.alternate(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3
    )
    assert "".join(order) == "abbaab"
    assert all(len(own) == 3 for own in seconds.values())
    found = workload.compare({"a": [1.0, 2.0, 4.0], "b": [3.0, 4.0, 4.0]}, "a")
    assert found["b"]["times_ours"] == {"median": 2.0, "least": 1.0, "most": 3.0}
    assert found["b"]["seconds"] == {"median": 4.0, "least": 3.0, "most": 4.0}


def test_prefix_scores_are_timed_beside_what_gives_the_same(capsys):
    kernels = script("kernels")
    sizes = {"groups": 4, "rollouts": 2, "turns": 3, "windows": 2, "chunk": 2}
    times = {"repeats": 2, "numpy_repeats": 1, "numpy_groups": 2}
    report = kernels.measure(Namespace(**sizes, **times))
    json.dumps(report)
    assert report["largest_difference"] < 1e-4
    rows = report["milliseconds"]
    assert [row["rounds"] for row in rows.values()] == [2, 2, 1, 2, 2]
    for row in rows.values():
        assert 0 < row["least"] <= row["median"] <= row["most"]
    kernels.print_report(report)
    out = capsys.readouterr().out
    assert "least - most ms" in out
    assert "* timed on fewer groups and multiplied by 2" in out


def test_the_peak_is_what_was_resident_and_can_begin_anew():
    rss = script("rss")
    before = rss.megabytes("VmRSS")
    block = np.ones(16_000_000)
    most = rss.megabytes("VmHWM")
    assert most >= before + 0.9 * block.nbytes / 1e6
    del block
    assert not rss.reset_peak() or rss.megabytes("VmHWM") < most - 100


def test_rollouts_run_without_torch(rollout, tmp_path, capsys):
    args = rollout.arguments([*OURS_ALONE, "--marker-gain=6"])
    report = rollout.measure(args, tmp_path)
    assert report["equal_replies"] == {}
    assert report["reply_tokens"]["least"] < report["reply_tokens"]["most"] <= 8
    rollout.print_report(report)
    assert "ours, StreamEngine" in capsys.readouterr().out


def test_replies_are_compared_to_their_ends(rollout):
    tokens = np.array([[[5, 6, 0], [7, 0, 0]]])
    length = np.array([[2, 1]])
    padded = np.where(tokens == 0, 9, tokens)
    assert rollout.equal_replies((tokens, length), (padded, length)) == 1.0
    other = tokens.copy()
    other[0, 0, 1] = 8
    assert rollout.equal_replies((tokens, length), (other, length)) == 0.5
    assert rollout.equal_replies((tokens, length), (tokens, length + np.array([[0, 1]]))) == 0.5


def test_each_script_says_its_command(train_step, rollout):
    for module, name in ((train_step, "train_step"), (rollout, "rollout")):
        assert f"python benchmarks/{name}.py" in module.__doc__
