"""Batches sampled while the one before is judged: from which policy, and taken up again."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
from ml_collections import ConfigDict
from runs import rl, sft

from turnwise_jax.data.records import SILENCE
from turnwise_jax.errors import InputError
from turnwise_jax.kernels import importance_ratio
from turnwise_jax.models.media import MediaInput
from turnwise_jax.rewards.judges import RuleJudge
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train import collect, run
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.collect import RolloutCollector
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.directory import EXPORT
from turnwise_jax.train.forward import make_logprob_step
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.metrics import GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.validate import validate

STEPS, PATIENCE = 6, 300.0


class Crash(Exception):
    """Stands in for a killed process."""


def ahead(place, directory: Path, number: int = 1) -> ConfigDict:
    """A run whose policy changes what it says from one step to the next."""
    config = rl(place, directory)
    config.optimizer.learning_rate = 5e-3
    config.rollout.ahead = number
    return config


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory) -> Path:
    """A finished run, nothing interrupted."""
    return run.train(ahead(place, tmp_path_factory.mktemp("ahead") / "run"))[0]


def assert_same(ours: Path, expected: Path) -> None:
    for name in (METRICS, GROUPS, f"{EXPORT}/model.safetensors"):
        assert (ours / name).read_bytes() == (expected / name).read_bytes(), name


# What is sampled from which policy.


def sampled_with(place, directory, monkeypatch, **changes) -> tuple[list, list]:
    """(batches with the policies before their updates, parameters that sampled each)."""
    config = ahead(place, directory)
    config.run.update(steps=4, export=False)
    config.optimizer.update(changes)
    batches, samplers = [], {}
    sample, collected = StreamEngine.rollout, RolloutCollector.__call__

    def spy(engine, params, *args, step, **options):
        samplers[step] = jax.tree.map(np.array, params)
        return sample(engine, params, *args, step=step, **options)

    def spy_collect(collector, state, iteration):
        before = jax.tree.map(np.array, state)
        out = collected(collector, state, iteration)
        batches.append((before, jax.tree.map(np.array, out.batch)))
        return out

    monkeypatch.setattr(StreamEngine, "rollout", spy)
    monkeypatch.setattr(RolloutCollector, "__call__", spy_collect)
    run.train(config)
    return batches, [samplers[step] for step in sorted(samplers)]


def test_ratios_are_those_of_the_policy_to_the_one_before_the_last_update(
    place, tmp_path, monkeypatch
):
    """Against log-probs of both policies from whole forward passes of the trainer."""
    batches, samplers = sampled_with(place, tmp_path / "run", monkeypatch)
    assert len(batches) == len(samplers) == 4
    config = ahead(place, tmp_path / "run")
    policy = Policy.load(place.policy)
    optimizer = run.make_optimizer(config.optimizer, 4)
    forward = run.step_arguments(config, policy.graphdef, toy.layout(), optimizer)["forward"]
    logprobs = make_logprob_step(forward)
    lines = read_jsonl(tmp_path / "run" / METRICS)
    for step, (state, batch) in enumerate(batches):
        sampler = batches[max(step - 1, 0)][0]
        toy.assert_equal(samplers[step], sampler.params)
        mask = batch.action_mask_NA
        new, old = (np.asarray(logprobs(each, batch), np.float64) for each in (state, sampler))
        np.testing.assert_allclose(batch.old_logp_NA[mask], old[mask], atol=2e-5)
        np.testing.assert_array_equal(batch.old_logp_NA, batch.sampler_logp_NA)
        ratio = np.exp(new - old)[mask]
        found = np.asarray(jax.vmap(importance_ratio)(new, batch.old_logp_NA, mask))[mask]
        np.testing.assert_allclose(found, ratio, rtol=1e-4)
        line = lines[step]
        assert line["off_policy"] == min(step, 1)
        assert line["ratio"] == pytest.approx(ratio.mean(), rel=1e-4)
        assert line["ratio_off_one_max"] == pytest.approx(np.abs(ratio - 1).max(), abs=1e-4)
    assert lines[0]["ratio_off_one_max"] < 1e-4 < 1e-2 < lines[2]["ratio_off_one_max"]


def test_inner_epochs_keep_the_recorded_log_probs(place, tmp_path, monkeypatch):
    """No pass for old ones: they are known."""
    batches, _ = sampled_with(place, tmp_path / "run", monkeypatch, inner_epochs=2)
    for _, batch in batches:
        np.testing.assert_array_equal(batch.old_logp_NA, batch.sampler_logp_NA)
    lines = read_jsonl(tmp_path / "run" / METRICS)
    assert [line["off_policy"] for line in lines] == [0, 2, 2, 2]
    config = ahead(place, tmp_path / "plan")
    config.optimizer.inner_epochs = 2
    plan = Plan.of(config, toy.layout())
    assert set(plan.update.lowerings(plan.state, plan.batch)) == {"update"}


def test_off_is_the_default_and_on_policy(rl_run, whole):
    for line in read_jsonl(rl_run / METRICS):
        assert "off_policy" not in line
        assert line["ratio_off_one_max"] == 0.0
    assert {line["step"] for line in read_jsonl(whole / METRICS)} == set(range(STEPS))
    assert {line["compiles"] for line in read_jsonl(whole / TIMING)} == {0}


# What overlaps.


class Barrier(RuleJudge):
    """Answers about a batch only once the next one has been sampled."""

    def __init__(self):
        super().__init__()
        self.sampled = threading.Semaphore(0)
        self.batches = 0

    def ask(self, requests, on_answer=None):
        self.batches += 1
        if self.batches < STEPS:
            assert self.sampled.acquire(timeout=PATIENCE)
        return super().ask(requests, on_answer)


def test_a_batch_is_judged_while_the_next_is_sampled(place, tmp_path, whole, monkeypatch):
    judge, sample = Barrier(), StreamEngine.rollout
    seen = []

    def spy(engine, *args, step, **options):
        made = sample(engine, *args, step=step, **options)
        seen.append((step, threading.current_thread() is threading.main_thread()))
        if step > 0:
            judge.sampled.release()
        return made

    monkeypatch.setattr(StreamEngine, "rollout", spy)
    monkeypatch.setattr(collect, "make_judge", lambda config: judge)
    directory, _ = run.train(ahead(place, tmp_path / "run"))
    assert judge.batches == STEPS
    assert seen == [(0, True), *((step, False) for step in range(1, STEPS))]
    assert_same(directory, whole)


SLEEP = 0.4


class Slow(RuleJudge):
    """A judge elsewhere: its answers take time and no processor."""

    def ask(self, requests, on_answer=None):
        time.sleep(SLEEP)
        return super().ask(requests, on_answer)


def test_waits_for_a_slow_judge_disappear(place, tmp_path, monkeypatch):
    """Judge and accelerator both sleep, so that the load of this machine does not matter."""
    sample = StreamEngine.rollout

    def elsewhere(engine, *args, **options):
        time.sleep(SLEEP)
        return sample(engine, *args, **options)

    monkeypatch.setattr(StreamEngine, "rollout", elsewhere)
    monkeypatch.setattr(collect, "make_judge", lambda config: Slow())
    seconds, waits = {}, {}
    for number in (0, 1):
        config = ahead(place, tmp_path / str(number), number)
        config.run.export = False
        lines = read_jsonl(run.train(config)[0] / TIMING)[1:-1]
        seconds[number] = np.median([line["seconds"] for line in lines])
        waits[number] = np.median([line["judge_wait"] for line in lines])
        assert all(line["judge"] > 0.9 * SLEEP for line in lines)
    assert waits[0] > 0.9 * SLEEP
    assert waits[1] < 0.1 * SLEEP
    assert seconds[1] < seconds[0] - 0.5 * SLEEP


def test_the_update_prepares_while_the_judge_is_asked(place, tmp_path, monkeypatch):
    """Also without sampling ahead: log-probs of other policies do not wait for the judge."""
    order = []
    prepare, ask = run.Update.prepare, RuleJudge.ask

    def spy_prepare(update, state, batch):
        order.append("prepare")
        return prepare(update, state, batch)

    def spy_ask(judge, *args):
        order.append("judge")
        return ask(judge, *args)

    monkeypatch.setattr(run.Update, "prepare", spy_prepare)
    monkeypatch.setattr(RuleJudge, "ask", spy_ask)
    config = rl(place, tmp_path / "run")
    config.optimizer.inner_epochs = 2
    config.run.update(steps=2, export=False)
    run.train(config)
    assert order == ["prepare", "judge"] * 2


# Killed and taken up.


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_taken_up_is_the_run(place, tmp_path, whole, monkeypatch, every):
    """Killed twice at steps that are and are not checkpoints, with other checkpoints than it."""
    config = ahead(place, tmp_path / "run")
    config.run.checkpoint_every = every
    real = RolloutCollector.__call__
    for at in (2, 4):

        def call(collector, state, iteration, at=at):
            if iteration == at:
                raise Crash
            return real(collector, state, iteration)

        monkeypatch.setattr(RolloutCollector, "__call__", call)
        with pytest.raises(Crash):
            run.train(config)
    monkeypatch.setattr(RolloutCollector, "__call__", real)
    assert run.train(config)[1]
    assert_same(tmp_path / "run", whole)


def test_stopped_between_checkpoints_it_goes_on_with_what_was_sampled(
    place, tmp_path, whole, monkeypatch
):
    """SIGTERM's checkpoint comes at any step; nothing that it holds is sampled again."""
    config = ahead(place, tmp_path / "run")
    config.run.checkpoint_every = 100
    real, sample, steps = RolloutCollector.__call__, StreamEngine.rollout, []

    def call(collector, state, iteration):
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(collector, state, iteration)

    def spy(engine, *args, step, **options):
        steps.append(step)
        return sample(engine, *args, step=step, **options)

    monkeypatch.setattr(StreamEngine, "rollout", spy)
    monkeypatch.setattr(RolloutCollector, "__call__", call)
    assert not run.train(config)[1]
    monkeypatch.setattr(RolloutCollector, "__call__", real)
    assert run.train(config)[1]
    assert steps == list(range(STEPS))
    assert_same(tmp_path / "run", whole)
    use = [line["slot_use"] for line in read_jsonl(tmp_path / "run" / TIMING)]
    assert use.pop(3) is None  # sampled by the process that was stopped, behind step 2
    assert all(0 < share <= 1 for share in use)
    assert any(SILENCE not in record["replies"] for record in read_jsonl(whole / GROUPS))


def test_a_record_left_out_ahead_is_listed_with_its_batch(place, tmp_path, monkeypatch):
    """The checkpoint of a step knows nothing of what later batches lacked."""
    config = ahead(place, tmp_path / "run")
    config.data.on_bad_record = "skip"
    seen, position = [], RolloutCollector.position

    def spy(collector):
        seen.append(position(collector))
        return seen[-1]

    data = run.read_data

    def read(config, policy):
        found = data(config, policy)
        found.dialogues[3] = broken(found.dialogues[3])
        return found

    monkeypatch.setattr(run, "read_data", read)
    monkeypatch.setattr(RolloutCollector, "position", spy)
    config.run.update(steps=3, checkpoint_every=1, export=False)
    run.train(config)
    assert [len(told["skipped"]) for told in seen] == [0, 1, 1]


def broken(dialogue):
    """Names a video that is not there."""
    turns = tuple(
        replace(turn, frames=tuple(replace(frame, path="gone.mp4") for frame in turn.frames))
        for turn in dialogue.turns
    )
    return replace(dialogue, turns=turns)


# Where it does not hold.


def test_replayed_answers_are_not_sampled_ahead(tmp_path):
    """Their credit, prompts and hints depend on what was learnt of the batch before."""
    config = rl_config("avatar")
    config.policy.checkpoint, config.data.path = "policy", "data"
    tree = config.to_dict()
    tree["rollout"]["ahead"] = 1
    with pytest.raises(InputError, match="ahead': is not a field of this kind of run"):
        validate(ConfigDict(tree))


# Put on the devices by the thread that reads ahead.


@pytest.mark.parametrize("kind", [rl, sft])
def test_media_are_on_the_devices_before_they_are_asked_for(place, tmp_path, monkeypatch, kind):
    moved, batches = [], []
    split, update = Layout.split, run.Update.__call__

    def spy(layout, tree):
        if isinstance(tree, MediaInput) and isinstance(jax.tree.leaves(tree)[0], np.ndarray):
            moved.append(threading.current_thread().name.partition("_")[0])
        return split(layout, tree)

    def spy_update(self, state, batch, **options):
        batches.append(jax.tree.leaves(batch.media))
        return update(self, state, batch, **options)

    monkeypatch.setattr(Layout, "split", spy)
    monkeypatch.setattr(run.Update, "__call__", spy_update)
    config = kind(place, tmp_path / "run")
    config.data.workers = 2
    config.run.update(steps=3, export=False)
    monkeypatch.setattr(StreamEngine, "warm_up", lambda *_, **__: None)
    run.train(config)
    assert moved == ["ahead"] * 3
    place = (
        toy.layout().whole if kind is rl else toy.layout().rows
    )  # encoded by the rollouts, or not
    for leaves in batches:
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        assert all(leaf.sharding == place for leaf in leaves)


def test_what_is_in_its_place_is_not_copied():
    layout = toy.layout()
    there = layout.split(np.arange(8.0, dtype=np.float32))
    again = layout.split(there)
    assert again.unsafe_buffer_pointer() == there.unsafe_buffer_pointer()
