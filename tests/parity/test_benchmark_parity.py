"""The benchmarks' alternatives in torch do the same work: one update, one batch of replies."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_scripts import SMALL, script


def test_one_update_four_ways_and_its_memory_alone(tmp_path):
    train_step = script("train_step")
    args = train_step.arguments([*SMALL, "--rounds=1", "--no-memory", "--tolerance=1e-4"])
    report = train_step.measure(args, tmp_path)
    assert list(report["times"]) == ["shared", "plain", "torch_full", "torch_chunked"]
    ours = report["updates"]["shared"]
    for updates in report["updates"].values():
        for found, expected in zip(updates, ours, strict=True):
            assert found == pytest.approx(expected, rel=1e-4)
    found = train_step.measure_memory(train_step.Work(tmp_path, args), "torch_chunked")
    assert 0 < found["imported"] <= found["peak"]


def test_every_layer_computed_again_changes_nothing(tmp_path):
    train_step = script("train_step")
    flags = [*SMALL, "--remat=full", "--positions=5", "--layers=1"]
    work = train_step.Work(tmp_path, train_step.arguments(flags))
    work.save()
    names = ("shared", "torch_full", "torch_chunked")
    train_step.check({name: work.make(name) for name in names}, 1e-4)


def test_replies_of_different_lengths_are_the_same_three_ways(tmp_path):
    rollout = script("rollout")
    flags = [*SMALL, "--prompts=3", "--turns=4", "--reply-tokens=12", "--marker-gain=4"]
    work = rollout.Work(tmp_path, rollout.arguments(flags))
    said = {name: make() for name, make in work.variants().items()}
    _, length = said["engine"]
    assert len(np.unique(length)) > 3, "the test needs ragged replies"
    assert length.max() == 12, "and cut ones"
    for name, own in said.items():
        assert rollout.equal_replies(said["engine"], own) == 1.0, name


def test_a_whole_iteration_says_scores_and_learns_the_same(tmp_path):
    end_to_end = script("end_to_end")
    flags = [*SMALL, "--rounds=1", "--marker-gain=4", "--tolerance=1e-4"]
    report = end_to_end.measure(end_to_end.arguments([*flags, "--equal=1"]), tmp_path)
    assert report["equal_replies"] == [1.0]
    assert report["updates"]["ours"][0]["grad_norm"] > 0.1
    for phase in ("rollout", "update", "iteration"):
        assert report["phases"][phase]["torch"]["times_ours"]["least"] > 0
