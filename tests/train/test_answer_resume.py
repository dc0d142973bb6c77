"""AVATAR's runs killed with a full buffer, on two processes, on four devices: always the same."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import test_hosts
import toy
from asking import avatar, built
from test_resume import Command
from test_run import Crash

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.answers import AnswerCollector
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.convert import convert_run
from turnwise_jax.train.directory import EXPORT, REPORT
from turnwise_jax.train.loop import CHECKPOINTS
from turnwise_jax.train.metrics import COMPILES, GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.run import train
from turnwise_jax.train.state import fingerprint

STEPS = 6


def last_memory(directory: Path) -> dict[str, np.ndarray]:
    saved = Checkpointer(directory / CHECKPOINTS, read_only=True)
    memory = saved.memory(STEPS)
    saved.close()
    return memory


def kept_state(config, directory: Path):
    """Parameters, moments and counters of the last checkpoint."""
    like = built(config).state
    saved = Checkpointer(directory / CHECKPOINTS, read_only=True)
    state, meta = saved.restore(STEPS, like.kept())
    saved.close()
    assert meta["frozen"] == fingerprint(like)
    return state


def assert_same_run(config, ours: Path, expected: Path) -> None:
    """Logs, exported weights, moments, buffer and statistics, bit for bit."""
    for name in (METRICS, GROUPS, f"{EXPORT}/model.safetensors"):
        assert (ours / name).read_bytes() == (expected / name).read_bytes(), name
    toy.assert_equal(last_memory(ours), last_memory(expected))
    toy.assert_equal(kept_state(config, ours), kept_state(config, expected))


def cut_back(run: Path, step: int, target: Path) -> None:
    """A copy of a finished run as a kill right behind the checkpoint of ``step`` leaves it.

    The logs go on, as they do when the kill comes before the next checkpoint.
    """
    shutil.copytree(run, target)
    for newer in (target / CHECKPOINTS).iterdir():
        if newer.name.isdigit() and int(newer.name) > step:
            shutil.rmtree(newer)
    shutil.rmtree(target / EXPORT)
    (target / REPORT).unlink()


def test_the_run_is_one_worth_killing(avatar_run):
    """Its buffer is full, it replays, it hints, and its rewards differ."""
    log = read_jsonl(avatar_run / METRICS)
    assert [line["replayed"] for line in log] == [0, 4, 4, 4, 4, 4]
    assert log[3]["buffer_hard"] == 3
    assert log[-1]["replay_age"] > 1
    assert {line["hinted"] for line in log} >= {0.0, 1.0}
    assert any(line["signal"] for line in log)
    names = {group["group"] for group in read_jsonl(avatar_run / GROUPS) if group["replayed"]}
    assert any(name.endswith("+hint") for name in names)


def test_fault_11_the_spread_of_fresh_rewards_is_logged(avatar_run):
    answers = [g for g in read_jsonl(avatar_run / GROUPS) if not g["replayed"]]
    for line in read_jsonl(avatar_run / METRICS):
        rewards: dict[str, list[float]] = {}
        for answer in answers:
            if answer["step"] == line["step"]:
                rewards.setdefault(answer["group"], []).append(answer["reward"])
        spreads = [np.std(own, ddof=1) for own in rewards.values()]
        assert line["group_std"] == pytest.approx(np.mean(spreads))
    assert any(line["group_std"] > 0 for line in read_jsonl(avatar_run / METRICS))


@pytest.mark.parametrize("step", range(1, STEPS))
def test_taken_up_from_any_checkpoint_it_ends_the_same(step, asking, avatar_run, tmp_path):
    cut_back(avatar_run, step, tmp_path / "run")
    config = avatar(asking, tmp_path / "run")
    assert train(config)[1]
    assert_same_run(config, tmp_path / "run", avatar_run)


def test_killed_twice_with_a_full_buffer_it_ends_the_same(asking, avatar_run, tmp_path):
    """The real command, once killed while a checkpoint is half written."""
    config = avatar(asking, tmp_path / "run")
    config.run.checkpoint_every = 1
    command = Command(config, tmp_path)
    half = command.interrupt(signal.SIGKILL, lambda: command.lines() >= 2 and command.saving())
    assert half[0] == -signal.SIGKILL
    assert command.interrupt(signal.SIGKILL, lambda: command.lines() >= 5)[0] == -signal.SIGKILL
    assert not (tmp_path / "run" / EXPORT).exists()
    assert train(config)[1]
    assert_same_run(config, tmp_path / "run", avatar_run)


def test_nothing_compiles_once_the_run_began(avatar_run):
    assert {line["compiles"] for line in read_jsonl(avatar_run / TIMING)} == {0}
    (compiled,) = read_jsonl(avatar_run / COMPILES)
    assert compiled["names"]["jit(reference_step)"] == 1


def test_convert_makes_the_policy_that_the_run_exported(avatar_run, tmp_path):
    assert convert_run(avatar_run, tmp_path / "out") == STEPS
    toy.assert_equal(Policy.load(tmp_path / "out").params, Policy.load(avatar_run / EXPORT).params)
    assert convert_run(avatar_run, tmp_path / "early", step=2) == 2


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("replay", "capacity", 9),
        ("replay", "samples", 4),
        ("hints", "use", False),
        ("algorithm", "kl", 0.0),
        ("rollout", "group_size", 4),
        ("data", "max_pixels", 50_176),
    ],
)
def test_a_run_of_other_settings_is_refused(asking, avatar_run, section, field, value):
    config = avatar(asking, avatar_run)
    config[section][field] = value
    with pytest.raises(InputError, match="this run was started with") as caught:
        train(config)
    assert caught.value.field == f"{section}.{field}"


def test_memory_for_media_may_differ(asking, avatar_run):
    config = avatar(asking, avatar_run)
    config.replay.keep_mb = 1
    assert train(config) == (avatar_run, True)


def test_another_start_under_the_same_path_is_refused(asking, avatar_run, tmp_path):
    """The reference policy is read again from where the run began."""
    shutil.copytree(asking.policy, tmp_path / "policy")
    cut_back(avatar_run, 3, tmp_path / "run")
    shutil.rmtree(tmp_path / "policy")
    shutil.copytree(avatar_run / EXPORT, tmp_path / "policy")
    config = avatar(asking, tmp_path / "run")
    config.policy.checkpoint = str(tmp_path / "policy")
    stored = tmp_path / "run" / "config.json"
    stored.write_text(stored.read_text().replace(str(asking.policy), config.policy.checkpoint))
    with pytest.raises(InputError, match="no longer those that the run began with") as caught:
        train(config)
    assert caught.value.field == "policy.checkpoint"


# several processes and devices


def assert_close_run(ours: Path, expected: Path) -> None:
    """What was sampled, drawn and asked exactly; numbers and parameters up to rounding."""
    for name in (GROUPS, METRICS):
        for line, other in zip(read_jsonl(ours / name), read_jsonl(expected / name), strict=True):
            assert line.keys() == other.keys()
            for field, value in line.items():
                if isinstance(value, float):
                    assert value == pytest.approx(other[field], abs=1e-4, rel=1e-3), field
                else:
                    assert value == other[field], field
    memory, theirs = last_memory(ours), last_memory(expected)
    assert memory.keys() == theirs.keys()
    for name, array in memory.items():
        if name in ("buffer.logp", "buffer.ref_logp"):
            np.testing.assert_allclose(array, theirs[name], atol=1e-4, err_msg=name)
        elif name not in ("buffer.kl", "buffer.advantage", "stats.kl"):  # the bits of float64
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    params, theirs = (toy.leaves(Policy.load(run / EXPORT).params) for run in (ours, expected))
    for name, value in params.items():
        np.testing.assert_allclose(value, theirs[name], atol=1e-4, err_msg=name)


def test_two_processes_make_the_run_of_one(asking, avatar_run, tmp_path, monkeypatch):
    """Rows are shared, parameters are not.

    With these split too, this family's rollouts on simulated hosts (Gloo on CPUs) now and then end
    in a mismatch of collectives, while compiling already.
    """
    monkeypatch.setattr(test_hosts, "SILENCE", 60.0)  # nobody dies here, a slow machine is no death
    config = avatar(asking, tmp_path / "run")
    pair = test_hosts.Pair(config, tmp_path / "pair", fsdp=1)
    assert pair.finish() == [0, 0], pair.last_lines()
    assert_close_run(tmp_path / "run", avatar_run)


def test_four_of_eight_devices_make_the_run_of_one(asking, avatar_run, tmp_path, monkeypatch):
    """And the checkpoint that they leave is taken up by one device."""
    collect = AnswerCollector.__call__

    def dies(collector, state, iteration):
        if iteration == 4:
            raise Crash
        return collect(collector, state, iteration)

    config = avatar(asking, tmp_path / "run")
    config.mesh.update(data=2, fsdp=2)
    config.run.checkpoint_every = 4
    monkeypatch.setattr(AnswerCollector, "__call__", dies)
    with pytest.raises(Crash):
        train(config)
    monkeypatch.setattr(AnswerCollector, "__call__", collect)
    assert {line["compiles"] for line in read_jsonl(tmp_path / "run" / TIMING)} == {0}
    assert train(avatar(asking, tmp_path / "run"))[1]
    assert_close_run(tmp_path / "run", avatar_run)
