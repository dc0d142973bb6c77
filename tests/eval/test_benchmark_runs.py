"""Public benchmarks from annotation files through a tiny policy: killed, resumed, rescored."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from video_files import write_video

from tests.tiny import make_checkpoint
from turnwise_jax.data import DATASETS
from turnwise_jax.errors import InputError
from turnwise_jax.eval import BENCHMARKS
from turnwise_jax.eval import generate as module
from turnwise_jax.eval import run as runner
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.predictions import read_predictions
from turnwise_jax.eval.report import Report
from turnwise_jax.eval.run import evaluate

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs" / "eval").glob("*.py"))


class Run(NamedTuple):
    """An uninterrupted evaluation: its report, its folder and what it was told."""

    report: Report
    directory: Path
    config: object


def noise(seed: int, seconds: int) -> list[np.ndarray]:
    """Frames of a video at 4 a second, uint8[56, 56, 3]."""
    return list(np.random.default_rng(seed).integers(0, 256, (4 * seconds, 56, 56, 3), np.uint8))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    make_checkpoint(directory, marker_gain=1.0)
    return directory


def proactive_videoqa(root: Path) -> Path:
    """Two subsets of two questions each; the second TV video has a subtitle."""
    for subset in ("TV", "WEB"):
        (root / subset / "videos").mkdir(parents=True)
        records = []
        for n in range(2):
            write_video(root / subset / "videos" / f"{n}.mp4", noise(n, 4 + n), rate=4)
            said = [{"role": "user", "content": "What is the red square doing?", "time": 0}]
            if (subset, n) == ("TV", 1):
                said.append({"role": "user", "content": "Subtitle: (A:)no", "time": 2.5})
            answer = {"role": "assistant", "content": "It moves.", "reply_timespan": [1.0, 3.5]}
            answer["related_timespan"] = [1.0, 2.5]
            records.append(
                {"video": f"{n}.mp4", "question_id": f"{subset}-{n}", "duration": 4.0 + n,
                 "conversation": said, "answer": [answer]}
            )  # fmt: skip
        (root / subset / "anno.json").write_text(json.dumps(records))
    return root


def streamingbench_polling(root: Path) -> Path:
    """Two questions, one asked 1 s and one asked 2 s before its moment: 10 and 12 dialogues."""
    (root / "videos").mkdir(parents=True)
    entries = []
    for n in (1, 2):
        write_video(root / "videos" / f"sample_{n}_proactive.mp4", noise(n, 9), rate=4)
        question = {
            "task_type": "Proactive Output",
            "question": 'When the square moves, output "3".',
            "time_stamp": "00:00:02",
            "ground_truth_time_stamp": f"00:00:0{2 + n}",
            "ground_truth_output": "3",
        }
        path = f"./videos/sample_{n}_proactive.mp4"
        entries.append({"questions": [question], "video_path": path})
    (root / "questions_proactive.json").write_text(json.dumps(entries))
    return root / "questions_proactive.json"


MAKERS = {"proactive_videoqa": proactive_videoqa, "streamingbench_polling": streamingbench_polling}
SIZES = {"proactive_videoqa": 4, "streamingbench_polling": 22}


@pytest.fixture(scope="module", params=list(MAKERS))
def whole(request, checkpoint, tmp_path_factory) -> Run:
    root = tmp_path_factory.mktemp(request.param)
    config = eval_config(request.param)
    config.update(dir=str(root / "out"), resamples=20)
    config.policy.update(checkpoint=str(checkpoint), dtype="float32")
    config.data.update(path=str(MAKERS[request.param](root / "set")), sound=False, frames=2)
    config.data.update(interval=1.0, turn_frames=1)
    config.decoding.update(max_new_tokens=6, batch_size=3)
    return Run(evaluate(config), root / "out", config)


def names(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def test_a_killed_benchmark_goes_on_and_ends_the_same(whole, tmp_path, monkeypatch):
    """The process died while it wrote the fourth line; three dialogues are not run again."""
    data = (whole.directory / "predictions.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(whole.directory / "predictions.settings.json", out)
    (out / "predictions.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    config = whole.config.copy_and_resolve_references()
    config.dir = str(out)
    run = []
    loaded = module._load
    monkeypatch.setattr(module, "_load", lambda d, **how: run.append(d.id) or loaded(d, **how))
    assert evaluate(config) == whole.report
    every = names(whole.directory / "predictions.jsonl")
    assert len(every) == len(set(every)) == SIZES[config.benchmark]
    assert sorted(run) == sorted(every[3:])
    assert sorted(names(out / "predictions.jsonl")) == sorted(every)
    ours, theirs = (read_predictions(d / "predictions.jsonl") for d in (out, whole.directory))
    assert {p.id: p for p in ours} == {p.id: p for p in theirs}
    speed = json.loads((out / "throughput.json").read_text())
    assert speed["dialogues"] == len(run)


def test_a_mesh_gives_the_same_report(whole, tmp_path):
    """Batches of three on two devices' rows."""
    config = whole.config.copy_and_resolve_references()
    config.dir = str(tmp_path / "out")
    config.mesh.update(fsdp=2, tensor=2)
    assert evaluate(config) == whole.report
    ours, theirs = (
        read_predictions(d / "predictions.jsonl") for d in (tmp_path / "out", whole.directory)
    )
    assert ours == theirs


def test_a_judge_that_does_not_suit_is_named_before_anything_is_run(
    whole, tmp_path, monkeypatch, capsys
):
    def stop(*_, **__):
        raise InputError("stopped")

    monkeypatch.setattr(runner, "load_sampler", stop)
    config = whole.config.copy_and_resolve_references()
    config.dir = str(tmp_path / "out")
    with pytest.raises(InputError, match="stopped"):
        evaluate(config)
    judged = config.benchmark == "proactive_videoqa"
    assert ("WARNING: the rule judge" in capsys.readouterr().err) == judged
    assert ("WARNING: the rule judge" in whole.report.rule) == judged


def test_its_predictions_scored_again_give_the_same_report(whole, tmp_path):
    config = eval_config(whole.config.benchmark)
    config.update(dir=str(tmp_path / "again"), resamples=20)
    assert evaluate(config, predictions=whole.directory / "predictions.jsonl") == whole.report
    first, second = (
        (d / "report.json").read_bytes() for d in (whole.directory, tmp_path / "again")
    )
    assert first == second


def test_speed_is_measured_and_is_no_part_of_the_report(whole, capsys):
    speed = json.loads((whole.directory / "throughput.json").read_text())
    said = read_predictions(whole.directory / "predictions.jsonl")
    assert speed["dialogues"] == len(said) == SIZES[whole.config.benchmark]
    assert speed["decisions"] == sum(len(p.times) for p in said)
    assert speed["videos"] == len({p.video for p in said})
    assert speed["decisions_per_second"] == pytest.approx(speed["decisions"] / speed["seconds"])
    assert speed["videos_per_minute"] == pytest.approx(60 * speed["videos"] / speed["seconds"])
    assert speed["after_first_batch"]["seconds"] < speed["seconds"]
    assert "per_second" not in (whole.directory / "report.json").read_text()
    kept = (whole.directory / "throughput.json").read_bytes()
    assert evaluate(whole.config) == whole.report  # nothing left to run: nothing measured
    assert (whole.directory / "throughput.json").read_bytes() == kept
    assert "videos/min" not in capsys.readouterr().err


def test_benchmarks_and_their_annotations_go_together(whole):
    report = whole.report
    if report.benchmark == "proactive_videoqa":
        assert report.counts["dialogues/TV"] == report.counts["dialogues/WEB"] == 2
        assert report.counts["decisions"] == 4 + 5 + 4 + 5
        assert {"pauc/TV", "pauc/WEB", "repetition_rate"} <= report.metrics.keys()
    else:
        assert report.counts["questions"] == 2
        assert report.counts["polls"] == 5 + 6
        assert report.metrics["timing_accuracy"] in (0.0, 50.0, 100.0)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_configs_name_a_benchmark_and_a_reader(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    config = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config)
    config = config.get_config()
    assert config.benchmark in BENCHMARKS
    assert config.data.source in DATASETS
