"""Stages in order, each from the last one's policy; stopped and killed anywhere, the same end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from runs import rl, sft, small
from test_resume import Command, assert_same_run

from turnwise_jax.cli.main import main
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train import curriculum
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.curriculum import (
    SUMMARY,
    TABLE,
    check,
    curriculum_config,
    exported,
    markdown,
    run_curriculum,
    stage_config,
    stage_directory,
)
from turnwise_jax.train.directory import CONFIG, EXPORT, REPORT
from turnwise_jax.train.metrics import GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.run import train
from turnwise_jax.train.signals import stop_on_sigterm


def two_stages(place, directory: Path) -> ConfigDict:
    """A cold start and RL, six steps each."""
    grpo = rl(place, Path("set by the curriculum"), "grpo")
    grpo.policy.checkpoint = ""
    config = curriculum_config({"cold": sft(place, Path("set too")), "visual": grpo})
    config.dir = str(directory)
    return config


def three_stages(directory: Path, place) -> ConfigDict:
    config = two_stages(place, directory)
    config.stages.again = rl(place, Path("set as well"), "turnwise")
    config.stages.again.policy.checkpoint = ""
    config.order = ("cold", "visual", "again")
    return config


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory) -> Path:
    """A curriculum that nothing interrupted."""
    directory, finished = run_curriculum(two_stages(place, tmp_path_factory.mktemp("c") / "all"))
    assert finished
    return directory


def asking(place, directory: Path) -> ConfigDict:
    """A cold start and a stage of AVATAR on questions without media, its buffer full by step 3."""
    path = directory / "questions.jsonl"
    rows = [
        {"id": f"q{n}", "question": f"What is {n} and {n}?", "answer": str(2 * n), "hint": "Add."}
        for n in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    avatar = small(rl_config("avatar"), place, Path("set by the curriculum"))
    avatar.policy.checkpoint = ""
    avatar.data.update(path=str(path), batch_size=2)
    avatar.rollout.update(group_size=2, max_new_tokens=6)
    avatar.replay.update(samples=1, minimum=2, capacity=6)
    avatar.optimizer.learning_rate = 1e-3
    config = curriculum_config({"cold": sft(place, Path("set too")), "asking": avatar})
    config.dir = str(directory / "run")
    return config


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_stages_equal_the_same_runs_made_one_by_one(whole, sft_run, place, tmp_path):
    config = rl(place, tmp_path / "run", "grpo")
    config.policy.checkpoint = str(sft_run / EXPORT)
    rl_run, _ = train(config)
    for stage, alone in zip(("0_cold", "1_visual"), (sft_run, rl_run), strict=True):
        for name in (METRICS, f"{EXPORT}/model.safetensors"):
            assert (whole / stage / name).read_bytes() == (alone / name).read_bytes(), name
    first, last = (Policy.load(whole / stage / EXPORT) for stage in ("0_cold", "1_visual"))
    assert first.config == last.config


def test_the_same_command_again_does_nothing(whole, place, monkeypatch):
    monkeypatch.setattr("turnwise_jax.train.run._train", None)
    before = files(whole)
    assert run_curriculum(two_stages(place, whole)) == (whole, True)
    assert files(whole) == before


def test_a_finished_stage_needs_its_data_no_more(whole, place):
    config = two_stages(place, whole)
    config.stages.cold.data.path = config.stages.visual.data.path = str(whole / "gone")
    check(config)


def test_the_summary_tells_what_the_stages_did(whole, place):
    cold, visual = json.loads((whole / SUMMARY).read_text())
    assert (cold["stage"], cold["method"], visual["method"]) == ("cold", "sft", "grpo")
    assert cold["checkpoint"] == str(place.policy)
    assert visual["checkpoint"] == str(whole / "0_cold" / EXPORT)
    for entry in (cold, visual):
        directory = whole / entry["directory"]
        log = read_jsonl(directory / METRICS)
        assert entry["iterations"] == len(log) == 6
        assert entry["updates"] == 6
        assert entry["seconds"] == sum(x["seconds"] for x in read_jsonl(directory / TIMING)) > 0
        assert entry["first"]["loss"] == log[0]["loss"]
        assert entry["last"]["loss"] == log[-1]["loss"]
        assert "step" not in entry["last"]
        assert "signal_by_turn" not in entry["last"]  # a list
    lines = (whole / TABLE).read_text().splitlines()
    loss, reward = ((e["first"][n], e["last"][n]) for e, n in ((cold, "loss"), (visual, "reward")))
    assert lines[2].startswith("| cold | sft | 6 | 6 | loss {:.3f} to {:.3f} | ".format(*loss))
    assert lines[3].startswith(
        "| visual | grpo | 6 | 6 | reward {:.3f} to {:.3f} |".format(*reward)
    )
    assert lines[5].startswith("2 of 2 stages are finished.")


def test_the_table_of_a_long_log_shows_its_first_and_last_tenth(tmp_path, place):
    config = two_stages(place, tmp_path)
    directory = stage_directory(config, 0)
    directory.mkdir()
    report = {"iterations": 40, "updates": 38, "skipped_updates": 2, "skipped_records": ["a", "b"]}
    (directory / REPORT).write_text(json.dumps(report))
    with open(directory / METRICS, "w") as log, open(directory / TIMING, "w") as timing:
        for step in range(40):
            loss = None if step == 39 else float(step)
            log.write(json.dumps({"step": step, "loss": loss, "nothing": None}) + "\n")
            timing.write(json.dumps({"step": step, "seconds": 90.0}) + "\n")
    found = curriculum.summary(config, 0)
    assert found["first"] == {"loss": 1.5}
    assert found["last"] == {"loss": 37.0}
    text = markdown([found], 3)
    assert "| cold | sft | 40 | 38 | loss 1.500 to 37.000 | 1.00 |" in text
    assert "1 of 3 stages are finished" in text
    assert "Records left out: cold 2." in text
    found |= {"first": {"reward": 1, "accuracy": 0, "loss": 3}, "skipped_records": 0}
    found["last"] = {"reward": 2, "accuracy": 0.25, "loss": 4}
    assert "| reward 1.000 to 2.000, accuracy 0.000 to 0.250 |" in markdown([found], 1)
    assert "left out" not in markdown([found], 1)


class Process(Command):
    """``turnwise train`` with a curriculum; signals are sent while one of its stages runs."""

    def __init__(self, config: ConfigDict, folder: Path):
        check(config)
        self.config, self.file = config, folder / "config.py"
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        self.file.write_text(
            "import json, ml_collections\n\n\n"
            "def get_config():\n"
            f"    with open({str(folder / 'config.json')!r}) as file:\n"
            "        return ml_collections.ConfigDict(json.load(file))\n"
        )

    def stop_in(self, stage: int, number: signal.Signals, steps: int) -> tuple[int, str]:
        self.run = stage_directory(self.config, stage)
        return self.interrupt(number, lambda: self.lines() >= steps)


def test_killed_and_stopped_in_every_stage_it_ends_the_same(whole, place, tmp_path):
    config = two_stages(place, tmp_path / "run")
    process = Process(config, tmp_path)
    assert process.stop_in(0, signal.SIGKILL, 3)[0] == -signal.SIGKILL
    assert not stage_directory(config, 1).exists()
    status, out = process.stop_in(1, signal.SIGTERM, 2)
    assert status == 0
    assert f"stopped with a checkpoint: {config.dir}" in out
    assert not exported(config, 1).exists()
    assert len(json.loads((tmp_path / "run" / SUMMARY).read_text())) == 1
    assert run_curriculum(config) == (Path(config.dir), True)
    for stage, name in enumerate(config.order):
        ours = stage_directory(config, stage)
        made = place._replace(policy=Path(stage_config(config, stage).policy.checkpoint))
        assert_same_run(ours, whole / ours.name, made, config.stages[name])
    cold, visual = json.loads((whole / SUMMARY).read_text())
    ours = json.loads((tmp_path / "run" / SUMMARY).read_text())
    for entry, expected in zip(ours, (cold, visual), strict=True):
        assert (entry["first"], entry["last"]) == (expected["first"], expected["last"])


def test_killed_with_a_full_buffer_it_ends_the_same(place, tmp_path):
    """The stage that replays is killed once its buffer is full; what it draws later is the same."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, config = asking(place, tmp_path / "whole"), asking(place, tmp_path / "killed")
    assert run_curriculum(whole)[1]
    process = Process(config, tmp_path / "killed")
    assert process.stop_in(1, signal.SIGKILL, 5)[0] == -signal.SIGKILL
    assert run_curriculum(config)[1]
    for name in (METRICS, GROUPS, f"{EXPORT}/model.safetensors"):
        ours, theirs = (stage_directory(c, 1) / name for c in (config, whole))
        assert ours.read_bytes() == theirs.read_bytes(), name
    replayed = [line["replayed"] for line in read_jsonl(stage_directory(config, 1) / METRICS)]
    assert replayed[-1] == 2


class Trained:
    """Stands in for ``train``: notes what each stage is given, and ends as told."""

    def __init__(self, monkeypatch, *, stopped_in: str = "", signal_in: str = ""):
        self.checkpoints: dict[str, str] = {}
        self.stopped_in, self.signal_in = stopped_in, signal_in
        monkeypatch.setattr(curriculum, "train", self)

    def __call__(self, config: ConfigDict) -> tuple[Path, bool]:
        directory = Path(config.run.dir)
        self.checkpoints[directory.name] = config.policy.checkpoint
        if directory.name == self.signal_in:
            os.kill(os.getpid(), signal.SIGTERM)
        if directory.name == self.stopped_in:
            return directory, False
        (directory / EXPORT).mkdir(parents=True, exist_ok=True)
        (directory / EXPORT / CONFIG).write_text("{}")
        counts = {"iterations": 1, "updates": 1, "skipped_updates": 0, "skipped_records": []}
        (directory / REPORT).write_text(json.dumps(counts))
        (directory / METRICS).write_text('{"step": 0, "loss": 1.0}\n')
        return directory, True


def test_every_stage_begins_where_the_one_before_ends(place, tmp_path, monkeypatch):
    trained = Trained(monkeypatch)
    config = three_stages(tmp_path / "run", place)
    assert run_curriculum(config) == (tmp_path / "run", True)
    assert trained.checkpoints == {
        "0_cold": str(place.policy),
        "1_visual": str(tmp_path / "run" / "0_cold" / EXPORT),
        "2_again": str(tmp_path / "run" / "1_visual" / EXPORT),
    }
    assert config.stages.visual.policy.checkpoint == ""  # the caller's config is left alone


def test_a_stage_that_was_asked_to_stop_ends_the_curriculum(place, tmp_path, monkeypatch):
    trained = Trained(monkeypatch, stopped_in="1_visual")
    config = three_stages(tmp_path / "run", place)
    assert run_curriculum(config) == (tmp_path / "run", False)
    assert list(trained.checkpoints) == ["0_cold", "1_visual"]
    assert [entry["stage"] for entry in json.loads((tmp_path / "run" / SUMMARY).read_text())] == [
        "cold"
    ]


@pytest.mark.parametrize(
    ("stage", "begun", "finished"), [("0_cold", 1, False), ("2_again", 3, True)]
)
def test_sigterm_as_a_stage_ends_begins_no_other(
    stage, begun, finished, place, tmp_path, monkeypatch
):
    """The signal comes when the stage's last step is done: nothing is left to stop in it."""
    trained = Trained(monkeypatch, signal_in=stage)
    config = three_stages(tmp_path / "run", place)
    assert run_curriculum(config) == (tmp_path / "run", finished)
    assert len(trained.checkpoints) == begun
    Trained(monkeypatch)
    assert run_curriculum(config) == (tmp_path / "run", True)


def test_a_signal_reaches_every_block_and_those_entered_after_it():
    handler = signal.getsignal(signal.SIGTERM)
    with stop_on_sigterm() as outer:
        with stop_on_sigterm() as first:
            assert not outer.requested
            assert not first.requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert outer.requested
            assert first.requested
        with stop_on_sigterm() as second:
            assert second.requested
    assert signal.getsignal(signal.SIGTERM) is handler
    with stop_on_sigterm() as later:
        assert not later.requested


def change(**fields):
    """Sets ``a__b=value`` as ``config.a.b``."""

    def apply(config: ConfigDict) -> None:
        for path, value in fields.items():
            *sections, name = path.split("__")
            place = config
            for section in sections:
                place = place[section]
            place[name] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "field", "message"),
    [
        (change(dir=""), "dir", "directory"),
        (change(order=()), "order", "at least one"),
        (change(order=("cold", "cold")), "order", "twice"),
        (change(order=("cold", "heat")), "order", "known: cold, visual"),
        (change(stages__cold__run__steps=-1), "stages.cold.run.steps", "at least 0"),
        (change(stages__visual__rollout__top_p=2.0), "stages.visual.rollout.top_p", "at most 1"),
        (change(stages__cold__run__export=False), "stages.cold.run.export", "must be true"),
        (change(stages__cold__policy__checkpoint=""), "stages.cold.policy.checkpoint", "name"),
        (
            change(stages__visual__policy__checkpoint="other"),
            "stages.visual.policy.checkpoint",
            "must be empty",
        ),
        (change(stages__visual__hosts__count=2), "stages.visual.hosts", "one process"),
        (change(stages__visual__data__path="nowhere"), "stages.visual.data.path", "no such file"),
        (change(stages__visual__data__path=""), "stages.visual.data.path", "data.root"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    spoil, field, message, place, tmp_path, monkeypatch
):
    trained = Trained(monkeypatch)
    config = two_stages(place, tmp_path / "run")
    config.stages.visual.hosts.coordinator = "localhost:1234"
    spoil(config)
    with pytest.raises(InputError) as caught:
        run_curriculum(config)
    assert caught.value.field.startswith(field)
    assert message in str(caught.value)
    assert not trained.checkpoints
    assert not (tmp_path / "run").exists()


def test_a_name_that_is_no_directory_is_refused(place, tmp_path):
    stage = sft(place, tmp_path)
    with pytest.raises(InputError, match=r"'up/down' cannot be part of a directory"):
        check(curriculum_config({"up/down": stage}))


def test_the_last_stage_may_keep_its_policy_to_itself(place, tmp_path):
    config = two_stages(place, tmp_path)
    config.stages.visual.run.export = False
    check(config)


def test_the_command_overrides_a_field_of_one_stage(place, tmp_path, monkeypatch, capsys):
    Trained(monkeypatch)
    process = Process(two_stages(place, tmp_path / "run"), tmp_path)
    command = ["train", f"--config={process.file}"]
    assert main([*command, "--config.stages.visual.rollout.top_p=2.0"]) == 2
    assert "field 'stages.visual.rollout.top_p'" in capsys.readouterr().err
    assert main([*command, "--config.stages.visual.rollout.top_q=2.0"]) == 2
    assert "unknown config field stages.visual.rollout.top_q" in capsys.readouterr().err
    assert main(command) == 0
    assert f"finished: {tmp_path}/run/1_visual/{EXPORT}" in capsys.readouterr().out
