"""The loop on a toy policy: crashes, signals and checkpoints at every step, in one process."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import toy

from turnwise_jax.errors import InputError
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.loop import Run, fit, restored
from turnwise_jax.train.metrics import GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.state import fingerprint

STEPS = 7


class Crash(Exception):
    """Stands in for a killed process: nothing is saved or flushed."""


class ToyCollector:
    """Batches that depend on the position alone; acts up at a chosen iteration."""

    def __init__(self, at: int | None = None, act=None):
        self.at, self.act = at, act
        self.taken = 0
        self.seen: list[int] = []

    def __call__(self, state, iteration):
        assert iteration == self.taken
        if iteration == self.at:
            self.act()
        rng = np.random.default_rng(self.taken)
        batch = toy.batch()
        batch.advantage_NK[:] = rng.normal(size=batch.advantage_NK.shape)
        self.seen.append(self.taken)
        self.taken += 1
        return SimpleNamespace(
            batch=batch,
            metrics={"reward": float(rng.random()), "curve": [float(rng.random()), None]},
            timing={"data_wait": 0.0},
            groups=[{"id": f"{iteration}/{g}"} for g in range(2)],
            tokens=10,
            prepared=False,
        )

    def position(self):
        return {"taken": self.taken}

    def memory(self):
        """As long as the run, as a buffer's would be while it fills."""
        return {"steps": np.arange(self.taken + 1, dtype=np.int32)}

    def seek(self, positions, memory, iteration):
        np.testing.assert_array_equal(memory["steps"], np.arange(iteration + 1))
        (position,) = positions
        self.taken = position["taken"]
        assert self.taken == iteration

    def shapes(self):
        return [toy.batch()]

    def programs(self, state):
        return []

    def close(self):
        pass


def toy_run(directory, *, at=None, act=None, every=3, steps=STEPS, **changes) -> Run:
    fields = {
        "directory": directory,
        "state": toy.placed(toy.state()),
        "collect": ToyCollector(at, act),
        "update": toy.update(),
        "iterations": steps,
        "checkpoint_every": every,
        "keep_checkpoints": 2,
    }
    return Run(**{**fields, **changes})


def crash():
    raise Crash


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(directory, last state) of a run that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    state, finished = fit(toy_run(directory))
    assert finished
    return directory, state


def assert_same(directory, state, whole) -> None:
    expected, last = whole
    toy.assert_equal(state, last)
    for name in (METRICS, GROUPS):
        assert (directory / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.parametrize("at", [1, 3, 5])
def test_run_after_a_crash_equals_an_uninterrupted_one(tmp_path, whole, at):
    with pytest.raises(Crash):
        fit(toy_run(tmp_path, at=at, act=crash))
    state, finished = fit(toy_run(tmp_path))
    assert finished
    assert_same(tmp_path, state, whole)


def test_crash_after_crash(tmp_path, whole):
    for at in (2, 4, 6):
        with pytest.raises(Crash):
            fit(toy_run(tmp_path, at=at, act=crash, every=1))
    state, _ = fit(toy_run(tmp_path, every=1))
    assert_same(tmp_path, state, whole)


def test_sigterm_saves_and_the_next_call_goes_on(tmp_path, whole):
    before = signal.getsignal(signal.SIGTERM)
    run = toy_run(tmp_path, at=4, act=terminate, every=100)
    state, finished = fit(run)
    assert not finished
    assert int(state.step) == 5  # the step in progress is finished and saved
    assert signal.getsignal(signal.SIGTERM) is before
    run = toy_run(tmp_path, every=100)
    state, finished = fit(run)
    assert run.collect.seen == [5, 6]
    assert finished
    assert_same(tmp_path, state, whole)


def test_sigterm_in_the_last_step_is_a_finished_run(tmp_path, whole):
    state, finished = fit(toy_run(tmp_path, at=STEPS - 1, act=terminate))
    assert finished
    assert_same(tmp_path, state, whole)


def test_sigterm_while_compiling_ends_before_the_first_step(tmp_path):
    run = toy_run(tmp_path)
    run.collect.programs = lambda state: [terminate]
    _, finished = fit(run)
    assert not finished
    assert run.collect.seen == []
    assert not (tmp_path / METRICS).exists()


def test_finished_run_compiles_and_collects_nothing(whole):
    directory, last = whole
    run = toy_run(directory)
    run.collect.shapes = crash
    state, finished = fit(run)
    assert finished
    toy.assert_equal(state, last)
    assert_same(directory, state, whole)


def test_checkpoints_come_as_often_as_asked(whole):
    directory, last = whole
    saved = Checkpointer(directory / "checkpoints", read_only=True)
    assert saved.steps() == [6, 7]  # of 3, 6 and the last, the newest two
    state, meta = restored(saved, 7, toy.state(("vision",)))
    toy.assert_equal(state, last)
    assert meta.pop("frozen") == fingerprint(last)
    assert meta == {"iteration": 7, "positions": [{"taken": 7}]}
    saved.close()


def test_checkpoints_leave_out_what_is_frozen_and_notice_another_base(whole):
    directory, _ = whole
    saved = Checkpointer(directory / "checkpoints", read_only=True)
    assert not any("frozen" in str(path) for path in saved.directory.glob("7/state/**/*"))
    like = toy.state(("vision",))
    other = jax.tree.map(lambda x: x.at[(0,) * x.ndim].add(1e-6), like.frozen)
    with pytest.raises(
        InputError, match=r"field 'policy.checkpoint': its frozen \(or reference\) weights"
    ):
        restored(saved, 7, like._replace(frozen=other))
    saved.close()


def test_one_step_axis_and_one_line_a_step(whole):
    directory, _ = whole
    for name in (METRICS, TIMING):
        assert [line["step"] for line in read_jsonl(directory / name)] == list(range(STEPS))
    groups = read_jsonl(directory / GROUPS)
    assert [(line["step"], line["id"]) for line in groups] == [
        (step, f"{step}/{g}") for step in range(STEPS) for g in range(2)
    ]


def test_metrics_of_a_step_belong_to_its_own_batch(whole):
    """Numbers are written one step late; they must not slip."""
    directory, _ = whole
    for line in read_jsonl(directory / METRICS):
        rng = np.random.default_rng(line["step"])
        rng.normal(size=toy.batch().advantage_NK.shape)
        assert line["reward"] == float(rng.random())


def test_a_step_is_in_the_files_when_the_next_but_one_begins(tmp_path):
    lines = []

    def look():
        lines.extend(json.loads(x) for x in (tmp_path / METRICS).read_text().splitlines())
        raise Crash

    with pytest.raises(Crash):
        fit(toy_run(tmp_path, at=4, act=look, every=100))
    assert [line["step"] for line in lines] == [0, 1, 2]


def test_no_compile_after_the_first_step_began(whole):
    directory, _ = whole
    assert {line["compiles"] for line in read_jsonl(directory / TIMING)} == {0}


def test_unknown_shape_is_compiled_and_counted(tmp_path):
    run = toy_run(tmp_path)
    run.collect.shapes = list
    fit(run)
    lines = read_jsonl(tmp_path / TIMING)
    assert lines[-1]["compiles"] >= 1
    assert "train_step" in " ".join(lines[0]["compiled"])


def test_checkpoint_of_other_parameters_is_refused(whole):
    directory, _ = whole
    with pytest.raises(ValueError, match="does not fit"):
        fit(toy_run(directory, state=toy.placed(toy.state(()))))
