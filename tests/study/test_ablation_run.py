"""A real ablation, tiny: killed while it evaluates, stopped while it trains, gone on with."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from turnwise_jax.study import ablation
from turnwise_jax.study.ablation import run_ablation
from turnwise_jax.study.ablation_config import BASE, START, ablation_config
from turnwise_jax.train.config import avatar_config, sft_config
from turnwise_jax.train.metrics import METRICS, MetricsWriter, read_jsonl

RUNS = [(name, seed) for seed in (0, 1) for name in ("grpo", "avatar")]


def make_config(directory: Path):
    """Two variants of two and four batches, two seeds, eight clips."""
    start, grpo, avatar = sft_config(), avatar_config(), avatar_config()
    start.policy.checkpoint, start.data.batch_size, start.run.steps = BASE, 4, 2
    start.optimizer.learning_rate = 1e-3
    for run, fresh, steps in ((grpo, 4, 2), (avatar, 2, 4)):
        run.policy.checkpoint = START
        run.rollout.update(group_size=fresh, max_new_tokens=6)
        run.replay.update(samples=4 - fresh, minimum=3)
        run.run.update(steps=steps, checkpoint_every=1)
        run.optimizer.learning_rate = 1e-3
        run.data.batch_size = 2
    for run in (start, grpo, avatar):
        run.policy.update(dtype="float32", remat="none")
        run.data.update(frames=2, shuffle=True, workers=0)
        run.shapes.row_buckets = 1
    config = ablation_config(
        start, {"grpo": grpo, "avatar": avatar}, {}, {"parts": ("grpo", "avatar")}
    )
    config.dir, config.seeds = str(directory), (0, 1)
    config.world.update(name="easy", train=6, test=2)
    config.base.update(vocab_size=500, pixels=56)
    config.base.model.update(text_initializer_range=0.1, text_num_hidden_layers=1)
    config.evaluation.update(batch_size=8, new_tokens=6, resamples=5, controls=())
    return config


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """(an uninterrupted study, one with two interruptions, what the latter printed)."""
    whole, broken = (tmp_path_factory.mktemp("ablation") / name for name in ("whole", "broken"))
    quiet = Console(file=io.StringIO())
    assert run_ablation(make_config(whole), console=quiet) == (whole, True)

    console = Console(file=io.StringIO(), width=100)
    config = make_config(broken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "evaluate", killed_at(broken / "eval" / "grpo" / "0" / "none"))
        with pytest.raises(Killed):
            run_ablation(config, console=console)
    with pytest.MonkeyPatch.context() as patch:
        stop = stopped_at(broken / "runs" / "avatar" / "0", step=1)
        patch.setattr(MetricsWriter, "write", stop)
        assert run_ablation(config, console=console) == (broken, False)
    assert 0 < len(read_jsonl(broken / "runs" / "avatar" / "0" / METRICS)) < 4
    assert json.loads((broken / "results.json").read_text())["runs"].keys() == {"grpo"}
    assert run_ablation(config, console=console) == (broken, True)
    return whole, broken, console.file.getvalue()


def killed_at(place: Path):
    """The real evaluation, up to the one in ``place``."""
    real = ablation.evaluate

    def evaluate(config):
        if Path(config.dir) == place:
            raise Killed
        return real(config)

    return evaluate


def stopped_at(place: Path, step: int):
    """The real writer of logs; SIGTERM comes while the run in ``place`` writes this step's."""
    real = MetricsWriter.write

    def write(self, now, *parts):
        real(self, now, *parts)
        if self.directory == place and now == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return write


def test_interruptions_leave_no_trace(studies):
    whole, broken, _ = studies
    names = ["tables.md", "tables.csv", "results.json"]
    for name, seed in RUNS:
        names += [f"runs/{name}/{seed}/{log}.jsonl" for log in ("metrics", "groups")]
        names.append(f"eval/{name}/{seed}/none/predictions.jsonl")
    for name in names:
        left = (broken / name).read_text().replace(str(broken), str(whole))
        assert left == (whole / name).read_text(), name


def test_each_run_is_its_own(studies):
    """Seeds and variants change what is sampled, and all generate equally many rollouts."""
    whole, _, _ = studies
    told = json.loads((whole / "results.json").read_text())
    logs = set()
    for name, seed in RUNS:
        values = told["runs"][name]["seeds"][str(seed)]["values"]
        assert values["generated"] == 16
        assert values["updates"] == {"grpo": 2, "avatar": 4}[name]
        assert (values["replayed"] > 0) == (name == "avatar")
        logs.add((whole / f"runs/{name}/{seed}/groups.jsonl").read_text())
        assert not (whole / f"runs/{name}/{seed}/checkpoints").exists()
    assert len(logs) == len(RUNS)
    assert set(told["start"]["controls"]) == {"muted", "blanked"}
    for name in ("curves", "signal", "results", "tiers"):
        assert (whole / f"{name}.png").stat().st_size > 8000


def test_what_is_done_is_not_done_again(studies):
    _, _, printed = studies
    assert printed.count("run 1 of 4: grpo, seed 0") == 1
    assert printed.count("stopped in run 2 of 4: avatar, seed 0") == 1
    assert printed.count("run 4 of 4: avatar, seed 1") == 1
