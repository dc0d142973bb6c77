"""Whole runs on the embedded world: what they leave behind, refuse, leave out and take up again."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy
from events import scalars
from runs import rl, sft

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.sources.mmduet2_rl import user_turns_path
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import CachedJudge, RuleJudge
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train import collect, run
from turnwise_jax.train.directory import CONFIG, EXPORT, REPORT
from turnwise_jax.train.metrics import BOARD, GROUPS, METRICS, TIMING, read_jsonl

# What a run is watched by, and why each is there: see the README.
RL_METRICS = {
    "reward", "group_std", "pauc", "repetition", "out_of_window", "shared_prefix",
    "non_silent", "reply_tokens", "truncated", "signal", "signal_turns", "signal_by_turn",
    "advantage_max", "invalid_rewards",
    "judge_asked", "judge_failed", "alpha", "skipped_records", "loss", "grad_norm",
    "learning_rate", "skipped_updates", "ratio", "ratio_off_one_max", "clip_fraction", "logp",
    "sampler_gap", "sampler_gap_max", "padding",
}  # fmt: skip
SFT_METRICS = {
    "loss", "nll", "grad_norm", "learning_rate", "skipped_updates", "trained_tokens",
    "skipped_records", "padding",
}  # fmt: skip
TIMING_FIGURES = {
    *("time", "seconds", "tokens_per_second", "compiles", "data_wait", "starvation"),
}


class Crash(Exception):
    """Stands in for a killed process."""


def crash_before(monkeypatch, collector: type, step: int | None) -> None:
    """Let the run end there as if killed; None: not at all."""
    real = getattr(collector.__call__, "real", collector.__call__)

    def call(self, state, iteration):
        if iteration == step:
            raise Crash
        return real(self, state, iteration)

    call.real = real
    monkeypatch.setattr(collector, "__call__", call)


@pytest.mark.parametrize(("name", "names"), [("rl_run", RL_METRICS), ("sft_run", SFT_METRICS)])
def test_every_step_has_every_metric(request, name, names):
    directory = request.getfixturevalue(name)
    lines = read_jsonl(directory / METRICS)
    assert [line["step"] for line in lines] == list(range(6))
    for line in lines:
        assert line.keys() == names | {"step"}
    for line in read_jsonl(directory / TIMING):
        assert line.keys() >= TIMING_FIGURES
        assert line["tokens_per_second"] > 0
    drawn = {tag for tag, _, _ in scalars(directory / BOARD)}
    plain = names - {"signal_by_turn"}
    assert plain | {"tokens_per_second", "compiles"} <= drawn
    assert ("signal_by_turn/2" in drawn) == (name == "rl_run")


def test_sampler_and_trainer_agree_at_a_temperature_above_one(rl_run):
    for line in read_jsonl(rl_run / METRICS):
        assert np.expm1(line["sampler_gap_max"]) < 1e-3
        assert line["sampler_gap_max"] > 0  # both sides were really computed


def test_nothing_compiles_once_the_run_began(rl_run, sft_run):
    for directory in (rl_run, sft_run):
        assert {line["compiles"] for line in read_jsonl(directory / TIMING)} == {0}


def test_a_run_without_a_barrier_is_the_same_run(rl_run, place, tmp_path):
    config = rl(place, tmp_path / "run")
    config.rollout.desynchronised = True
    directory, _ = run.train(config)
    for old, new in zip(*(read_jsonl(path / GROUPS) for path in (rl_run, directory)), strict=True):
        assert (new["id"], new["replies"]) == (old["id"], old["replies"])
        assert new["turn_advantages"] == pytest.approx(old["turn_advantages"])
    for old, new in zip(*(read_jsonl(path / METRICS) for path in (rl_run, directory)), strict=True):
        assert new["reward"] == pytest.approx(old["reward"])
        assert new["grad_norm"] == pytest.approx(old["grad_norm"], rel=1e-4)
    for old, new in zip(*(read_jsonl(path / TIMING) for path in (rl_run, directory)), strict=True):
        assert 0 < old["slot_use"] <= new["slot_use"] <= 1
        assert 0 < new["shown_use"] <= 1
        assert new["compiles"] == 0


def test_alpha_and_learning_rate_follow_their_schedules(rl_run):
    lines = read_jsonl(rl_run / METRICS)
    assert [line["alpha"] for line in lines] == [0, 1, 1, 1, 1, 1]  # ceil(0.1 x 6) = 1
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3] * 6)


def test_a_refused_update_is_no_step_of_the_warm_up(place, tmp_path, monkeypatch):
    """Neither of alpha's nor of the rate's; sampled ahead, and taken up behind the refusal."""
    real = collect.RolloutCollector.__call__

    def spoil(self, state, iteration):
        collected = real(self, state, iteration)
        if iteration == 1:
            spoiled = np.full_like(collected.batch.advantage_NK, np.nan)
            collected.batch = collected.batch._replace(advantage_NK=spoiled)
        return collected

    def config(name: str):
        made = rl(place, tmp_path / name)
        made.rollout.ahead, made.algorithm.alpha_warmup, made.run.export = 1, 1.0, False
        made.optimizer.update(learning_rate=6e-4, warmup_steps=6)
        return made

    monkeypatch.setattr(collect.RolloutCollector, "__call__", spoil)
    whole, _ = run.train(config("whole"))
    lines = read_jsonl(whole / METRICS)
    completed = np.array([0, 1, 1, 2, 3, 4])
    assert [line["skipped_updates"] for line in lines] == [0, 1, 1, 1, 1, 1]
    assert [line["alpha"] for line in lines] == pytest.approx(completed / 6)
    assert [line["learning_rate"] for line in lines] == pytest.approx(1e-4 * (completed + 1))
    crash_before(monkeypatch, collect.RolloutCollector, 3)
    with pytest.raises(Crash):
        run.train(config("crashed"))
    crash_before(monkeypatch, collect.RolloutCollector, None)
    again, _ = run.train(config("crashed"))
    assert (again / METRICS).read_bytes() == (whole / METRICS).read_bytes()


def test_groups_hold_every_rollout_with_its_credit(rl_run, place):
    groups = read_jsonl(rl_run / GROUPS)
    dialogues = {d.id: d for d in load_dialogues("mmduet2_rl", place.world.rl("train"))[0]}
    assert len(groups) == 6 * 2 * 2
    for record in groups:
        dialogue = dialogues[record["group"]]
        assert record["times"] == [turn.time for turn in dialogue.open_turns]
        assert len(record["replies"]) == len(record["turn_advantages"]) == 3
        assert len(record["prefix_scores"]) == 4
        assert record["prefix_scores"][-1] == pytest.approx(record["reward"], abs=1e-5)
        assert [w["answer"] for w in record["windows"]] == [w.answer for w in dialogue.windows]
    for line in read_jsonl(rl_run / METRICS):
        own = [r["reward"] for r in groups if r["step"] == line["step"]]
        assert line["reward"] == pytest.approx(np.mean(own), abs=1e-6)


def test_exported_policy_is_the_trained_one(rl_run, place):
    before, after = Policy.load(place.policy), Policy.load(rl_run / EXPORT)
    start, end = toy.leaves(before.params), toy.leaves(after.params)
    vision = {name for name in start if "vision" in name}
    assert vision
    for name, value in start.items():
        assert np.array_equal(value, end[name]) == (name in vision), name


def test_finished_run_returns_at_once(rl_run, place, monkeypatch):
    monkeypatch.setattr(run, "_train", None)
    assert run.train(rl(place, rl_run)) == (rl_run, True)


def test_export_asked_for_later_is_made(place, tmp_path):
    config = sft(place, tmp_path / "run")
    config.run.update(steps=2, export=False)
    run.train(config)
    assert not (tmp_path / "run" / EXPORT).exists()
    config.run.export = True
    assert run.train(config)[1]
    Policy.load(tmp_path / "run" / EXPORT)


def test_kill_between_export_and_report(sft_run, place, tmp_path):
    """The report is missing and the export is half there: both are made again."""
    directory = tmp_path / "run"
    shutil.copytree(sft_run, directory)
    (directory / REPORT).unlink()
    (directory / EXPORT / "config.json").unlink()
    shutil.copytree(directory / EXPORT, directory / "policy.partial")
    metrics = (directory / METRICS).read_bytes()
    assert run.train(sft(place, directory)) == (directory, True)
    assert (directory / METRICS).read_bytes() == metrics
    assert json.loads((directory / REPORT).read_text()) == json.loads(
        (sft_run / REPORT).read_text()
    )
    toy.assert_equal(Policy.load(directory / EXPORT).params, Policy.load(sft_run / EXPORT).params)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run.steps", 12),
        ("run.seed", 1),
        ("optimizer.learning_rate", 1e-5),
        ("algorithm.alpha", 0.5),
        ("rollout.temperature", 1.0),
        ("data.batch_size", 4),
        ("shapes.rollout_lengths", (100_000,)),
        ("shapes.row_lengths", (5, 18)),
    ],
)
def test_directory_of_another_run_is_refused(rl_run, place, field, value):
    config = rl(place, rl_run)
    section, name = field.split(".")
    config[section][name] = value
    before = (rl_run / CONFIG).read_text()
    with pytest.raises(InputError, match="this run was started with") as error:
        run.train(config)
    assert error.value.field == field
    assert (rl_run / CONFIG).read_text() == before


def test_settings_that_change_no_result_may_differ(rl_run, place):
    config = rl(place, rl_run)
    config.run.checkpoint_every, config.data.workers = 1, 0
    config.judge.url, config.optimizer.accumulate = "http://elsewhere/v1", 2
    config.mesh.data = 2
    assert run.train(config) == (rl_run, True)


def test_directory_in_use_is_refused(place, tmp_path, monkeypatch):
    config = sft(place, tmp_path / "run")
    inner = []

    def again(*_):
        with pytest.raises(InputError, match="another process is training in it"):
            run.train(config)
        inner.append(True)
        return True

    monkeypatch.setattr(run, "_train", again)
    run.train(config)
    assert inner == [True]


def test_directory_that_cannot_be_made_is_refused(place, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        run.train(sft(place, tmp_path / "file" / "run"))


# Records that cannot be used.


def spoil(place, tmp_path, kind: str):
    """A copy of the world in which one video is missing or cut short."""
    root = tmp_path / "world"
    shutil.copytree(place.world.root, root)
    video = root / "videos" / "train-0001.mp4"
    if kind == "missing":
        video.unlink()
    elif kind == "cut short":
        data = video.read_bytes()
        video.write_bytes(data[: len(data) // 2])
    return root


@pytest.mark.parametrize("kind", ["missing", "cut short"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_video_that_cannot_be_read(place, tmp_path, kind, policy):
    root = spoil(place, tmp_path, kind)
    config = sft(place, tmp_path / "run")
    config.data.update(path=str(root / "sft_train.jsonl"), on_bad_record=policy)
    config.run.steps = 4
    if policy == "raise":
        with pytest.raises(InputError) as error:
            run.train(config)
        line = str(error.value)
        assert "\n" not in line
        assert "train-0001" in line
        assert "sft_train.jsonl" in line
        return
    directory, finished = run.train(config)
    assert finished
    report = json.loads((directory / REPORT).read_text())
    assert len(report["skipped_records"]) == 2  # two dialogues about that video
    assert all("train-0001.mp4" in line for line in report["skipped_records"])
    assert read_jsonl(directory / METRICS)[-1]["skipped_records"] == 2
    assert report["updates"] == 4


def test_records_left_out_while_reading_survive_a_crash(place, tmp_path, monkeypatch):
    """Frames asked for past the end of a video are found missing only when they are decoded."""
    root = tmp_path / "world"
    shutil.copytree(place.world.root, root)
    lines = (root / "sft_train.jsonl").read_text().splitlines()
    lines[5] = lines[5].replace("#t=8.0", "#t=800.0")
    assert "t=800.0" in lines[5]
    (root / "sft_train.jsonl").write_text("\n".join(lines) + "\n")

    def config(name: str):
        config = sft(place, tmp_path / name)
        config.data.update(path=str(root / "sft_train.jsonl"), on_bad_record="skip")
        config.run.update(checkpoint_every=3, export=False)
        return config

    whole, _ = run.train(config("whole"))
    crash_before(monkeypatch, collect.SupervisedCollector, 4)
    with pytest.raises(Crash):
        run.train(config("crashed"))
    crash_before(monkeypatch, collect.SupervisedCollector, None)
    again, _ = run.train(config("crashed"))
    assert (again / METRICS).read_bytes() == (whole / METRICS).read_bytes()
    assert read_jsonl(again / METRICS)[2]["skipped_records"] == 1
    reports = [json.loads((path / REPORT).read_text()) for path in (again, whole)]
    assert all(0 < report.pop("starvation") < 1 for report in reports)  # depends on the clock
    assert reports[0] == reports[1]
    (line,) = reports[0]["skipped_records"]
    assert "t=800" in line


def test_window_that_ends_before_it_starts_is_skipped(place, tmp_path):
    source = place.world.rl("train")
    table = pq.read_table(source)
    rows = table.to_pylist()
    rows[3]["reward_model"]["ground_truth"]["answer"][0]["reply_timespan"] = [9.0, 3.0]
    path = tmp_path / source.name
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    shutil.copy(user_turns_path(source), user_turns_path(path))
    config = rl(place, tmp_path / "run")
    config.data.update(path=str(path), root=str(place.world.root), on_bad_record="skip")
    directory, _ = run.train(config)
    (line,) = json.loads((directory / REPORT).read_text())["skipped_records"]
    assert line.startswith(str(path))
    assert "reply_timespan" in line
    bad = rows[3]["reward_model"]["ground_truth"]["question_id"]
    seen = {record["group"] for record in read_jsonl(directory / GROUPS)}
    assert bad not in seen
    assert len(seen) == 6 * 2


def test_too_few_usable_records_are_refused(place, tmp_path):
    config = sft(place, tmp_path / "run")
    config.data.batch_size = 64
    with pytest.raises(InputError, match="16 usable records do not fill one batch of 64"):
        run.train(config)


# Judges that fail.


class Flaky(RuleJudge):
    """Fails on some replies."""

    def ask(self, requests, on_answer=None):
        answers = super().ask(requests)
        given = [
            None if len(r.reply) % 5 == 0 else a for r, a in zip(requests, answers, strict=True)
        ]
        for index, answer in enumerate(given):
            if on_answer:
                on_answer(index, answer)
        return given


def test_failed_judgements_are_counted_and_the_run_goes_on(place, tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "make_judge", lambda config: Flaky())
    updated, trained = run.Update.__call__, []

    def update(self, state, batch, **options):
        trained.extend(np.asarray(batch.action_mask_NA).any(axis=1).tolist())
        return updated(self, state, batch, **options)

    monkeypatch.setattr(run.Update, "__call__", update)
    config = rl(place, tmp_path / "run")
    directory, _ = run.train(config)
    lines = read_jsonl(directory / METRICS)
    failed = sum(line["judge_failed"] for line in lines)
    assert 0 < failed < sum(line["judge_asked"] for line in lines)
    assert all(line["skipped_updates"] == 0 for line in lines)
    groups = read_jsonl(directory / GROUPS)
    lost = [record for record in groups if record["reward"] is None]
    assert 0 < len(lost) == sum(line["invalid_rewards"] for line in lines) < len(groups)
    names = {(record["step"], record["group"]) for record in lost}
    for record in groups:  # of two rollouts one is left: no signal
        if (record["step"], record["group"]) in names:
            assert not any((*record["turn_advantages"], record["shared_advantage"]))
    for record in lost:
        assert record["prefix_scores"] == [None] * 4
    assert trained == [record["reward"] is not None for record in groups]


def test_judge_cache_outlives_a_crash(place, tmp_path, monkeypatch):
    """Steps done again after a crash ask the judge nothing, and end as if nothing had happened."""
    monkeypatch.setattr(
        collect, "make_judge", lambda config: CachedJudge(RuleJudge(), config["cache"])
    )
    config = rl(place, tmp_path / "run")
    config.judge.update(kind="openai", cache=str(tmp_path / "answers.jsonl"))
    config.run.export = False
    crash_before(monkeypatch, collect.RolloutCollector, 5)
    with pytest.raises(Crash):
        run.train(config)
    crash_before(monkeypatch, collect.RolloutCollector, None)
    run.train(config)
    timing = read_jsonl(tmp_path / "run" / TIMING)
    metrics = read_jsonl(tmp_path / "run" / METRICS)
    assert [line["step"] for line in timing] == list(range(6))
    assert timing[4]["judge_cached"] == metrics[4]["judge_asked"]
    assert timing[0]["judge_cached"] == 0


def test_shuffled_data_read_by_threads_is_taken_up_exactly(place, sft_run, tmp_path, monkeypatch):
    """The whole run read without threads; this one is taken up in the middle of an epoch."""
    config = sft(place, tmp_path / "run")
    config.data.workers, config.run.checkpoint_every = 2, 3
    crash_before(monkeypatch, collect.SupervisedCollector, 4)
    with pytest.raises(Crash):
        run.train(config)
    crash_before(monkeypatch, collect.SupervisedCollector, None)
    run.train(config)
    for name in (METRICS, f"{EXPORT}/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (sft_run / name).read_bytes()


def test_rewards_by_the_rule_judge_on_other_data_are_warned_of(
    place, tmp_path, monkeypatch, capsys
):
    def of_others(config, policy):
        data = read(config, policy)
        others = [
            dataclasses.replace(
                dialogue,
                windows=tuple(dataclasses.replace(w, answer=answer) for w in dialogue.windows),
            )
            for dialogue in data.dialogues
        ]
        return dataclasses.replace(data, dialogues=others)

    def stop(*_):
        raise Crash

    read, answer = run.read_data, "She cuts the onion."
    monkeypatch.setattr(run, "build", stop)
    for change, kind, warned in (
        (read, "rule", False),
        (of_others, "rule", True),
        (of_others, "openai", False),
    ):
        monkeypatch.setattr(run, "read_data", change)
        config = rl(place, tmp_path / f"{kind}-{warned}")
        config.judge.kind = kind
        with pytest.raises(Crash):
            run.train(config)
        assert ("WARNING: the rule judge" in capsys.readouterr().err) == warned
