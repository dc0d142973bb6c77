"""Two processes with two devices each, on loopback, against a run of one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
from runs import rl

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.directory import CONFIG, EXPORT, REPORT
from turnwise_jax.train.hosts import ALONE
from turnwise_jax.train.loop import CHECKPOINTS
from turnwise_jax.train.metrics import GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.run import check_share, train

ROOT = Path(__file__).resolve().parents[2]
BEFORE, STEPS = 2, 7  # steps of one process, then five of two
SILENCE = 10.0  # seconds after which a process counts as dead
BOUND = 60.0  # seconds in which the other one must have ended
PATIENCE = 300.0  # for a slow machine


def config_for(place, directory: Path, **data):
    """Four prompts of two rollouts a step; a rate at which AdamW does not blow up rounding."""
    config = rl(place, directory)
    config.data.update(batch_size=4, **data)
    config.optimizer.learning_rate = 2e-4
    config.run.update(steps=STEPS, checkpoint_every=2, keep_checkpoints=4)
    return config


class Pair:
    """The real command, once on each of two "hosts" that share a mesh of 2 x 2 devices.

    ``fsdp``: parts of the parameters, 1 or 2 or 4; the rest of the mesh shares rows alone.
    """

    def __init__(self, config, folder: Path, *, fsdp: int = 2):
        self.run = Path(config.run.dir)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        config.mesh.update(data=4 // fsdp, fsdp=fsdp)
        config.hosts.update(count=2, coordinator=coordinator, timeout=SILENCE)
        folder.mkdir(exist_ok=True)
        self.file = folder / "config.py"
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        self.file.write_text(
            "import json, ml_collections\n\n\n"
            "def get_config():\n"
            f"    with open({str(folder / 'config.json')!r}) as file:\n"
            "        return ml_collections.ConfigDict(json.load(file))\n"
        )
        cache = jax.config.jax_compilation_cache_dir
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": cache,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        }
        command = [sys.executable, "-m", "turnwise_jax.cli.main", "train", f"--config={self.file}"]
        self.logs = [folder / f"{index}.log" for index in range(2)]
        self.processes = []
        for index, path in enumerate(self.logs):
            with open(path, "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [*command, f"--config.hosts.index={index}"],
                        env=environment,
                        stdout=log,
                        stderr=log,
                    )
                )

    def finish(self, timeout: float = PATIENCE) -> list[int]:
        """Exit statuses."""
        end = time.monotonic() + timeout
        try:
            return [p.wait(max(end - time.monotonic(), 0)) for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert all(p.poll() is None for p in self.processes), self.last_lines()
            assert time.monotonic() < end
            time.sleep(0.01)

    def last_lines(self) -> list[str]:
        return [path.read_text().strip().rpartition("\n")[2] for path in self.logs]


@pytest.fixture(scope="module")
def alone(place, tmp_path_factory) -> Path:
    """The run of one process on one device."""
    return train(config_for(place, tmp_path_factory.mktemp("alone") / "run"))[0]


def assert_same_run(ours: Path, expected: Path) -> None:
    """What was sampled exactly, numbers and parameters within 1e-5."""
    groups, theirs = read_jsonl(ours / GROUPS), read_jsonl(expected / GROUPS)
    assert len(groups) == len(theirs) == STEPS * 4 * 2
    for record, other in zip(groups, theirs, strict=True):
        assert record["id"] == other["id"]
        assert record["replies"] == other["replies"]
        assert record["reward"] == pytest.approx(other["reward"], abs=1e-5)
        assert record["turn_advantages"] == pytest.approx(other["turn_advantages"], abs=1e-5)
    for line, other in zip(read_jsonl(ours / METRICS), read_jsonl(expected / METRICS), strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            assert value == pytest.approx(other[name], abs=1e-5, rel=1e-5), name
    assert any(line["signal"] for line in read_jsonl(ours / METRICS))
    ours, expected = Policy.load(ours / EXPORT).params, Policy.load(expected / EXPORT).params
    ours, expected = toy.leaves(ours), toy.leaves(expected)
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=name)


def cut_back(run: Path, step: int, target: Path) -> Path:
    """A copy of a finished run as it stood behind ``step``, but for the logs."""
    shutil.copytree(run, target)
    for newer in (target / CHECKPOINTS).iterdir():
        if newer.name.isdigit() and int(newer.name) > step:
            shutil.rmtree(newer)
    assert (target / CHECKPOINTS / str(step)).exists()
    shutil.rmtree(target / EXPORT)
    (target / REPORT).unlink()
    return target


@pytest.fixture(scope="module")
def together(alone, place, tmp_path_factory) -> Path:
    """A run that two processes take up from one's checkpoint; one is killed, both start again."""
    folder = tmp_path_factory.mktemp("together")
    run = cut_back(alone, BEFORE, folder / "run")
    pair = Pair(config_for(place, run), folder / "first")
    pair.wait_for(lambda: (run / CHECKPOINTS / str(BEFORE + 2)).exists())
    pair.processes[1].send_signal(signal.SIGKILL)
    died = time.monotonic()
    assert pair.finish() == [2, -signal.SIGKILL], pair.last_lines()
    assert time.monotonic() - died < BOUND
    line, _ = pair.last_lines()
    assert "error: another process" in line
    assert "start all of them again with the same command" in line
    assert not (run / EXPORT).exists()
    again = Pair(config_for(place, run), folder / "again")
    assert again.finish() == [0, 0], again.last_lines()
    return run


def test_run_of_two_processes_killed_and_resumed_equals_one(together, alone):
    assert_same_run(together, alone)


def test_two_processes_with_checkpoints_compile_nothing_after_the_warm_up(together):
    assert (together / CHECKPOINTS / str(STEPS - 1)).exists()  # a save, and a step behind it
    lines = read_jsonl(together / TIMING)
    assert [(line["compiles"], line.get("compiled")) for line in lines] == [(0, None)] * STEPS


def test_checkpoint_of_two_processes_is_taken_up_by_one(together, alone, place, tmp_path):
    run = cut_back(together, BEFORE + 4, tmp_path / "run")
    assert train(config_for(place, run))[1]
    assert_same_run(run, alone)


def test_death_of_the_first_process_ends_the_other(place, tmp_path):
    """It holds the store by which processes agree."""
    pair = Pair(config_for(place, tmp_path / "run"), tmp_path / "pair")
    pair.wait_for((pair.run / CONFIG).exists)
    pair.processes[0].send_signal(signal.SIGKILL)
    died = time.monotonic()
    assert pair.finish() == [-signal.SIGKILL, 2], pair.last_lines()
    assert time.monotonic() - died < BOUND
    assert "start all of them again with the same command" in pair.last_lines()[1]


def test_error_of_one_process_ends_both_and_is_named_by_both(alone, place, tmp_path):
    """The directory belongs to a run with another seed; only the first process looks."""
    config = config_for(place, alone)
    config.run.seed = 5
    pair = Pair(config, tmp_path / "pair")
    assert pair.finish() == [2, 2], pair.last_lines()
    first, second = pair.last_lines()
    assert first.startswith("turnwise: error: ")
    assert second.startswith("turnwise: error: process 0 ended: ")
    for line in (first, second):
        assert "this run was started with 0, not 5" in line


def test_batch_that_processes_cannot_share_is_refused(place, tmp_path):
    hosts = type(ALONE)()
    hosts.count = 3
    with pytest.raises(InputError, match="4 prompts are no equal parts for 3 processes"):
        check_share(config_for(place, tmp_path), hosts)
