"""What a run says about waiting for its input; a run from prepared frames on disk."""

from __future__ import annotations

import json

import pytest
from runs import rl, sft

from turnwise_jax.data import example
from turnwise_jax.data.frame_cache import open_cache
from turnwise_jax.data.pipeline import make_loader
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train import run
from turnwise_jax.train.directory import EXPORT, REPORT
from turnwise_jax.train.metrics import METRICS, TIMING, append_jsonl, read_jsonl
from turnwise_jax.train.starvation import Starvation, starvation


def test_the_share_is_that_of_all_steps(tmp_path):
    assert starvation(tmp_path) == Starvation(0, 0.0, 0.0)
    assert starvation(tmp_path).share == 0.0
    steps = [(2.0, 0.5), (6.0, 0.0), (2.0, 1.5)]
    append_jsonl(
        tmp_path / TIMING,
        [{"step": n, "seconds": s, "data_wait": w} for n, (s, w) in enumerate(steps)],
    )
    found = starvation(tmp_path)
    assert found == Starvation(3, 10.0, 2.0)
    assert found.share == pytest.approx(0.2)
    assert found.line() == "input: waited 2.0 s of the 10.0 s of 3 steps (20.0 %)"


@pytest.mark.parametrize("name", ["rl_run", "sft_run", "avatar_run"])
def test_timing_and_report_agree(request, name):
    directory = request.getfixturevalue(name)
    lines = read_jsonl(directory / TIMING)
    for line in lines:
        assert 0 <= line["starvation"] < 1
        assert line["starvation"] == pytest.approx(line["data_wait"] / line["seconds"])
    total = sum(line["data_wait"] for line in lines) / sum(line["seconds"] for line in lines)
    assert json.loads((directory / REPORT).read_text())["starvation"] == pytest.approx(total)
    assert "starvation" not in (directory / METRICS).read_text()


@pytest.mark.parametrize(("kind", "name"), [(rl, "rl_run"), (sft, "sft_run")])
def test_a_run_from_disk_is_the_same_run(request, place, tmp_path, monkeypatch, capsys, kind, name):
    """The first reads decode and keep; a second run over the same records decodes nothing."""
    config = kind(place, tmp_path / "run")
    config.data.update(cache_dir=str(tmp_path / "cache"), cache_gb=1.0, workers=2)
    policy = Policy.load(place.policy)
    data = run.read_data(config, policy)
    cache = open_cache(config.data.cache_dir, config.data.cache_gb)
    list(make_loader(data.dialogues, policy.spec, batch_size=1, seed=0, cache=cache))
    assert cache.misses > 0
    monkeypatch.setattr(example, "iter_frames", None)
    directory, finished = run.train(config)
    assert finished
    assert "input: waited" in capsys.readouterr().err
    expected = request.getfixturevalue(name)
    for file in (METRICS, f"{EXPORT}/model.safetensors"):
        assert (directory / file).read_bytes() == (expected / file).read_bytes()
    config.data.update(cache_dir="", workers=0)  # says nothing about what the run is
    assert run.train(config) == (directory, True)
