"""``kill -9`` and SIGTERM on the real command: what is left equals an uninterrupted run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import toy
from runs import rl, sft

from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.directory import EXPORT
from turnwise_jax.train.loop import CHECKPOINTS, restored
from turnwise_jax.train.metrics import GROUPS, METRICS
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.run import train
from turnwise_jax.train.state import create_state
from turnwise_jax.train.validate import validate

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0  # seconds; a slow machine is no failure


class Command:
    """``turnwise train`` with a config, as a process of its own."""

    def __init__(self, config, folder: Path):
        validate(config)
        self.run = Path(config.run.dir)
        self.file = folder / "config.py"
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        self.file.write_text(
            "import json, ml_collections\n\n\n"
            "def get_config():\n"
            f"    with open({str(folder / 'config.json')!r}) as file:\n"
            "        return ml_collections.ConfigDict(json.load(file))\n"
        )

    def start(self) -> subprocess.Popen:
        cache = jax.config.jax_compilation_cache_dir
        return subprocess.Popen(
            [sys.executable, "-m", "turnwise_jax.cli.main", "train", f"--config={self.file}"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def interrupt(self, number: signal.Signals, when: Callable[[], bool]) -> tuple[int, str]:
        """Run until ``when`` and send the signal at that very moment: (exit status, output)."""
        with self.start() as process:
            end = time.monotonic() + PATIENCE
            while not when():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.001)
            process.send_signal(number)
            out, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, out

    def lines(self) -> int:
        path = self.run / METRICS
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def saving(self) -> bool:
        """A checkpoint is half written."""
        return any((self.run / CHECKPOINTS).glob("*orbax-checkpoint-tmp*"))


def last_state(directory: Path, place, config):
    policy = Policy.load(place.policy)
    like = create_state(policy.params, make_optimizer(config.optimizer, 6), config.policy.freeze)
    saved = Checkpointer(directory / CHECKPOINTS, read_only=True)
    state, _ = restored(saved, 6, like)
    saved.close()
    return state


def assert_same_run(ours: Path, expected: Path, place, config) -> None:
    """Logs, exported weights, optimizer and counters, bit for bit."""
    for name in (METRICS, GROUPS, f"{EXPORT}/model.safetensors"):
        if (expected / name).exists():
            assert (ours / name).read_bytes() == (expected / name).read_bytes(), name
    toy.assert_equal(last_state(ours, place, config), last_state(expected, place, config))


def test_turnwise_survives_kill_9(place, rl_run, tmp_path):
    """Killed twice, once with a checkpoint half written; the end comes in this process."""
    config = rl(place, tmp_path / "run")
    config.run.checkpoint_every = 1
    command = Command(config, tmp_path)
    status, _ = command.interrupt(signal.SIGKILL, command.saving)
    assert status == -signal.SIGKILL
    status, _ = command.interrupt(signal.SIGKILL, lambda: command.lines() >= 3)
    assert status == -signal.SIGKILL
    assert not (tmp_path / "run" / EXPORT).exists()
    assert train(config)[1]
    assert_same_run(tmp_path / "run", rl_run, place, config)


def test_sft_saves_and_exits_with_status_0_on_sigterm(place, sft_run, tmp_path):
    config = sft(place, tmp_path / "run")
    config.data.workers = 2  # the whole run read without threads
    config.run.checkpoint_every = 100
    command = Command(config, tmp_path)
    status, out = command.interrupt(signal.SIGTERM, lambda: command.lines() >= 1)
    assert status == 0
    assert "stopped with a checkpoint" in out
    assert not (tmp_path / "run" / EXPORT).exists()
    assert train(config)[1]
    assert_same_run(tmp_path / "run", sft_run, place, config)
