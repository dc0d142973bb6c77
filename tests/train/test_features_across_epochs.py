"""Features kept across epochs: the same run, with frames encoded in its first epoch only."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_hosts
import toy
from asking import avatar
from ml_collections import ConfigDict
from runs import rl, sft

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import MediaInput
from turnwise_jax.rollout.features import Encoder
from turnwise_jax.train import answer_setup, run
from turnwise_jax.train.answers import AnswerCollector
from turnwise_jax.train.aot.compile import works_of
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.collect import RolloutCollector
from turnwise_jax.train.directory import EXPORT
from turnwise_jax.train.metrics import COMPILES, GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.supervised import SupervisedCollector

STEPS, EPOCH = 6, 2  # batches


class Crash(Exception):
    """Stands in for a killed process."""


def changed(config: ConfigDict, **changes) -> ConfigDict:
    for field, value in changes.items():
        section, name = field.split("__")
        config[section][name] = value
    return config


def circling(place, directory: Path, megabytes: int = 64, **changes) -> ConfigDict:
    """Three epochs of two batches."""
    config = changed(rl(place, directory), optimizer__learning_rate=5e-3, **changes)
    config.data.update(limit=4, features_mb=megabytes)
    return config


def share_kept(directory: Path) -> list[float | None]:
    """Of every step; nothing compiles in any."""
    lines = read_jsonl(directory / TIMING)
    assert {(line["compiles"], line.get("compiled")) for line in lines} == {(0, None)}
    return [line.get("features_kept") for line in lines]


def assert_same(ours: Path, expected: Path) -> None:
    for name in (METRICS, GROUPS, f"{EXPORT}/model.safetensors"):
        assert (ours / name).read_bytes() == (expected / name).read_bytes(), name


def assert_close(ours: Path, expected: Path) -> None:
    """The same numbers up to rounding."""
    for name in (METRICS, GROUPS):
        for line, other in zip(read_jsonl(ours / name), read_jsonl(expected / name), strict=True):
            assert line.keys() == other.keys()
            for field, value in line.items():
                if isinstance(value, float) or field.endswith("advantages"):
                    assert value == pytest.approx(other[field], abs=1e-5, rel=1e-4), field
                else:
                    assert value == other[field], field


@pytest.fixture
def encodings(monkeypatch) -> list[MediaInput]:
    """Frames and sounds that the towers were given, those that compile included."""
    given, encode = [], Encoder.__call__

    def spy(encoder, params, media):
        given.extend([media] if isinstance(media, MediaInput) else [])
        return encode(encoder, params, media)

    monkeypatch.setattr(Encoder, "__call__", spy)
    return given


def crash_at(monkeypatch, collector: type, step: int) -> None:
    real = collector.__call__

    def call(self, state, iteration):
        if iteration == step:
            raise Crash
        return real(self, state, iteration)

    monkeypatch.setattr(collector, "__call__", call)


KINDS = {
    "plain": {},
    "ahead": {"rollout__ahead": 1},
    "ahead, read when asked": {"rollout__ahead": 1, "data__workers": 0},
    "desynchronised": {"rollout__desynchronised": True},
    "inner epochs": {"optimizer__inner_epochs": 2},
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, place, tmp_path_factory) -> tuple[dict, Path]:
    """Changes of a config, and the finished run without kept features."""
    changes = KINDS[request.param]
    config = circling(place, tmp_path_factory.mktemp("without") / "run", 0, **changes)
    directory, _ = run.train(config)
    assert share_kept(directory) == [None] * STEPS
    return changes, directory


def test_a_run_is_the_same_and_encodes_in_its_first_epoch_only(place, pair, tmp_path, encodings):
    changes, without = pair
    directory, _ = run.train(circling(place, tmp_path / "run", **changes))
    assert share_kept(directory) == [0.0] * EPOCH + [1.0] * (STEPS - EPOCH)
    assert len(encodings) == EPOCH + 1  # one to compile
    assert_same(directory, without)
    signal = [line["signal"] for line in read_jsonl(directory / METRICS)]
    assert any(signal)


def test_a_run_that_is_killed_begins_to_keep_anew(place, pair, tmp_path, monkeypatch):
    """With the second batch of the second epoch; its checkpoint is that of the first epoch."""
    changes, without = pair
    config = circling(place, tmp_path / "run", **changes)
    with monkeypatch.context() as patch:
        crash_at(patch, RolloutCollector, 3)
        with pytest.raises(Crash):
            run.train(config)
    directory, finished = run.train(config)
    assert finished
    assert share_kept(directory) == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert_same(directory, without)


def test_memory_for_less_than_all_is_no_error(place, tmp_path, monkeypatch):
    """The first batch of an epoch fits; of the other one dialogue does, which does not help it."""
    monkeypatch.setattr("turnwise_jax.train.collect.feature_bytes", lambda config: 3 * 2**13)
    directory, _ = run.train(circling(place, tmp_path / "some", 1))
    monkeypatch.undo()
    assert share_kept(directory) == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert_same(directory, run.train(circling(place, tmp_path / "none", 0))[0])


def test_features_of_towers_that_are_trained_are_refused(place, tmp_path):
    for config in (rl(place, tmp_path / "rl"), sft(place, tmp_path / "sft")):
        config.policy.freeze = ()
        config.data.features_mb = 1
        assert_refused(config, r"or freeze all \(policy.freeze\)")
    adapted = circling(place, tmp_path / "adapted")
    adapted.policy.freeze = ("vision",)  # which says nothing of adapters
    adapted.policy.lora.update(rank=2, targets=r"(text|vision)/.*")
    assert_refused(adapted, r"or adapt none \(policy.lora.targets\)")


def assert_refused(config: ConfigDict, how: str) -> None:
    """By a run, and by what plans it."""
    for refuse in (run.train, lambda config: Plan.of(config, toy.layout())):
        with pytest.raises(InputError, match=how) as caught:
            refuse(config)
        assert caught.value.field == "data.features_mb"


def test_the_memory_may_change_when_a_run_is_resumed(place, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        crash_at(patch, RolloutCollector, 3)
        with pytest.raises(Crash):
            run.train(circling(place, tmp_path / "run"))
    directory, finished = run.train(circling(place, tmp_path / "run", 0))
    assert finished
    assert share_kept(directory)[2:] == [None] * 4


# Supervised runs.


def test_a_supervised_run_encodes_in_its_first_epoch_only(place, tmp_path, encodings):
    """Two batches an epoch, in another order in each."""

    def config(name: str, megabytes: int) -> ConfigDict:
        made = changed(sft(place, tmp_path / name), data__limit=8, data__batch_size=4)
        made.data.features_mb = megabytes
        return made

    without, _ = run.train(config("without", 0))
    assert not encodings  # the update does it
    directory, _ = run.train(config("run", 64))
    kept = share_kept(directory)
    assert kept == [0.0] * EPOCH + [1.0] * (STEPS - EPOCH)
    assert len(encodings) == EPOCH + 1
    assert_close(directory, without)
    again = config("again", 64)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, SupervisedCollector, 5)
        with pytest.raises(Crash):
            run.train(again)
    assert run.train(again)[1]
    assert_close(tmp_path / "again", directory)


# AVATAR.


def frozen(asking, directory: Path, megabytes: int = 0) -> ConfigDict:
    config = avatar(asking, directory)
    config.policy.freeze = ("vision", "audio")
    config.data.features_mb = megabytes
    return config


@pytest.fixture(scope="module")
def answered(asking, tmp_path_factory) -> Path:
    """A finished run of AVATAR whose towers are not trained, nothing kept."""
    return run.train(frozen(asking, tmp_path_factory.mktemp("answered") / "run"))[0]


def test_what_answers_show_is_encoded_once_for_reference_and_update(
    asking, answered, tmp_path, monkeypatch, encodings
):
    """Against passes that each encode on their own."""
    directory, _ = run.train(frozen(asking, tmp_path / "once"))
    assert_same(directory, answered)
    assert share_kept(directory) == [None] * STEPS
    assert len(encodings) == 2 * (STEPS + 1)  # to sample, and for the rows
    (compiled,) = read_jsonl(directory / COMPILES)
    assert compiled["names"]["jit(encode)"] == 2
    monkeypatch.setattr(answer_setup, "towers_fixed", lambda *_: False)
    encodings.clear()
    apart, _ = run.train(frozen(asking, tmp_path / "apart"))
    assert len(encodings) == STEPS + 1
    assert any(line["replayed"] for line in read_jsonl(apart / METRICS))
    assert_close(directory, apart)


def test_replayed_answers_look_at_kept_features(asking, answered, tmp_path, encodings):
    directory, _ = run.train(frozen(asking, tmp_path / "run", 64))
    kept = share_kept(directory)
    assert kept == [0.5] * EPOCH + [1.0] * (STEPS - EPOCH)  # sampled ones are there for the rows
    assert len(encodings) == EPOCH + 2
    assert_close(directory, answered)


def test_an_avatar_run_that_is_killed_begins_to_keep_anew(asking, answered, tmp_path, monkeypatch):
    config = frozen(asking, tmp_path / "run", 64)
    with monkeypatch.context() as patch:
        crash_at(patch, AnswerCollector, 5)
        with pytest.raises(Crash):
            run.train(config)
    assert run.train(config)[1]
    assert_close(tmp_path / "run", answered)


# What `turnwise compile` plans.


def test_rows_that_are_encoded_apart_are_planned_so(place, asking, tmp_path):
    supervised = {mb: sft(place, tmp_path / "sft") for mb in (0, 64)}
    supervised[64].data.features_mb = 64
    plans = {
        ("encode", "begin", "turn", "encode_rows", "reference", "update"): frozen(
            asking, tmp_path / "avatar"
        ),
        ("update",): supervised[0],
        ("encode_rows", "update"): supervised[64],
    }
    works = []
    for names, config in plans.items():
        plan = Plan.of(config, toy.layout())
        assert tuple(name for name, _ in plan.lowerings()) == names
        works.append(works_of(plan))
        assert works[-1].keys() >= set(names)
    _, together, apart = works
    moved = together["update"].flops - apart["update"].flops
    assert moved == pytest.approx(apart["encode_rows"].flops)


# Several processes and devices.


def gentle(place, directory: Path, megabytes: int) -> ConfigDict:
    """Three epochs of two batches of four prompts; AdamW does not blow up rounding."""
    config = circling(place, directory, megabytes)
    config.optimizer.learning_rate = 2e-4
    config.data.update(batch_size=4, limit=8)
    config.run.checkpoint_every = STEPS
    return config


@pytest.fixture(scope="module")
def alone(place, tmp_path_factory) -> Path:
    """A finished run of one process on one device, nothing kept."""
    return run.train(gentle(place, tmp_path_factory.mktemp("alone") / "run", 0))[0]


def test_on_a_mesh_features_are_kept(place, alone, tmp_path):
    config = gentle(place, tmp_path / "run", 64)
    config.mesh.update(data=2, fsdp=2)
    directory, _ = run.train(config)
    assert share_kept(directory) == [0.0] * EPOCH + [1.0] * (STEPS - EPOCH)
    assert_close(directory, alone)


def test_two_processes_keep_their_own_dialogues(place, alone, tmp_path, monkeypatch):
    monkeypatch.setattr(test_hosts, "SILENCE", 60.0)  # nobody dies here, a slow machine is no death
    pair = test_hosts.Pair(gentle(place, tmp_path / "run", 64), tmp_path / "pair")
    assert pair.finish() == [0, 0], pair.last_lines()
    assert share_kept(tmp_path / "run") == [0.0] * EPOCH + [1.0] * (STEPS - EPOCH)
    assert_close(tmp_path / "run", alone)


def test_two_processes_replay_with_kept_features(asking, answered, tmp_path, monkeypatch):
    """Each has the features of what it sampled; a batch is encoded unless both have all."""
    monkeypatch.setattr(test_hosts, "SILENCE", 60.0)
    config = frozen(asking, tmp_path / "run", 64)
    config.run.checkpoint_every = STEPS
    pair = test_hosts.Pair(config, tmp_path / "pair", fsdp=1)
    assert pair.finish() == [0, 0], pair.last_lines()
    kept = share_kept(tmp_path / "run")
    assert kept[0] == 0.5
    assert kept[-1] > 0
    assert_close(tmp_path / "run", answered)
