"""Records that a supervised run does not train on, and their loss."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import test_hosts
from ml_collections import ConfigDict
from runs import sft
from test_mesh import mesh_fields
from test_run import Crash, crash_before

from turnwise_jax.data.pipeline import load_example
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.rows import sft_rows
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.train import collect, run
from turnwise_jax.train.batches import as_batch
from turnwise_jax.train.buckets.data import Records
from turnwise_jax.train.data import is_held_out, read_data
from turnwise_jax.train.directory import EXPORT, REPORT
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.hosts import Hosts
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.metrics import METRICS, TIMING, read_jsonl

SHARE = 0.4  # 7 of the world's 16 records: a batch of 4 and one that lacks a row
ADDED = ("held_out_loss", "held_out_nll")


def holding(place, directory: Path, **fields) -> ConfigDict:
    """Six batches of four, two an epoch; the loss after four and after six of them."""
    config = sft(place, directory)
    config.run.validate_every = 4
    config.data.update(batch_size=4, held_out=SHARE, **fields)
    config.shapes.row_buckets = 2
    return config


@pytest.fixture(scope="module")
def trained(place, tmp_path_factory):
    """(directory, names of the records that were trained on) of a finished run."""
    seen, real = [], collect.sft_rows

    def noting(examples, **settings):
        seen.extend(example.dialogue.id for example in examples)
        return real(examples, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "sft_rows", noting)
        directory, _ = run.train(holding(place, tmp_path_factory.mktemp("held") / "run"))
    return directory, set(seen)


def built(place, directory: Path, mesh=(1, 1, 1), **settings):
    """A run that has not begun."""
    config = holding(place, directory)
    config.mesh.update(mesh_fields(*mesh))
    config.data.batch_size = settings.pop("batch_size", 4)
    config.algorithm.update(settings)
    layout = Layout.of(make_mesh(config.mesh))
    policy = run.load_policy(config, layout.param_shardings)
    made = run.build(config, directory, layout, policy, read_data(config, policy))
    made.collect.close()
    return made


def plain_loss(config: ConfigDict, policy: Policy) -> float:
    """Cross-entropy of the reply tokens of all held-out records, one at a time."""
    data = read_data(config, policy)
    buckets = RowShapes.for_dialogues(data.held_out, data.held_out_grids, policy, batch_size=1)
    forward = Forward(policy.graphdef, 1.0, config.policy.logprob_chunk)

    @jax.jit
    def logprobs(params, batch):
        return forward.logprobs(params, forward.media(params, batch.media), batch)

    total = count = 0.0
    for dialogue in data.held_out:
        example = load_example(dialogue, policy.spec)
        media, rows, shapes = sft_rows([example], policy, buckets)
        batch = as_batch(media, rows, np.zeros((1, shapes.turns), np.float32))
        total -= float(logprobs(policy.params, batch).sum())
        count += int(rows.action_mask.sum())
    return total / count


def test_the_name_alone_decides():
    """SHA-256 of "a" begins with ca97..., which is 0.791 of the way to ffff..."""
    assert [is_held_out("a", share) for share in (0.79, 0.80)] == [False, True]
    names = [f"clip-{n}" for n in range(4000)]
    few, more = ({n for n in names if is_held_out(n, share)} for share in (0.01, 0.1))
    assert few < more
    assert len(few) / 4000 == pytest.approx(0.01, abs=0.005)
    assert len(more) / 4000 == pytest.approx(0.1, abs=0.015)
    assert not any(is_held_out(name, 0.0) for name in names)


def test_no_held_out_record_is_trained_on(trained, place, policy, tmp_path):
    directory, seen = trained
    data = read_data(holding(place, tmp_path), policy)
    whole = read_data(sft(place, tmp_path), policy)
    names = {dialogue.id for dialogue in data.held_out}
    assert (len(names), len(data.dialogues), whole.held_out) == (7, 9, [])
    assert seen == {dialogue.id for dialogue in data.dialogues}
    assert names | seen == {dialogue.id for dialogue in whole.dialogues}
    assert json.loads((directory / REPORT).read_text())["held_out_records"] == 7


def test_the_loss_is_that_of_all_tokens_of_the_policy_then(trained, place):
    """The last one is of the policy that the run leaves; the batch of three counts no row twice."""
    directory, _ = trained
    lines = read_jsonl(directory / METRICS)
    for line in lines:
        assert [name in line for name in ADDED] == [line["step"] in (3, 5)] * 2
    expected = plain_loss(holding(place, directory), Policy.load(directory / EXPORT))
    assert [lines[5][name] for name in ADDED] == pytest.approx([expected] * 2, rel=1e-5)
    assert lines[3]["held_out_loss"] - lines[5]["held_out_loss"] > 1e-3
    timing = read_jsonl(directory / TIMING)
    assert {line["compiles"] for line in timing} == {0}
    assert [line["step"] for line in timing if line.get("held_out_seconds", 0) > 0] == [3, 5]


def test_a_killed_run_takes_it_up_exactly(trained, place, tmp_path, monkeypatch):
    """Behind a loss that no checkpoint knows of, which is then taken again; read by threads."""
    config = holding(place, tmp_path / "run", workers=2)
    config.run.checkpoint_every = 3
    crash_before(monkeypatch, collect.SupervisedCollector, 5)
    with pytest.raises(Crash):
        run.train(config)
    crash_before(monkeypatch, collect.SupervisedCollector, None)
    run.train(config)
    for name in (METRICS, f"{EXPORT}/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (trained[0] / name).read_bytes()


def test_looking_changes_nothing_of_the_training(trained, place, tmp_path):
    config = holding(place, tmp_path / "run")
    config.run.validate_every = 1
    directory, _ = run.train(config)
    for line, other in zip(
        read_jsonl(directory / METRICS), read_jsonl(trained[0] / METRICS), strict=True
    ):
        losses = {name: line.pop(name) for name in ADDED}
        assert all(losses.values())
        assert other == line | {name: losses[name] for name in ADDED if name in other}
    weights = [path / EXPORT / "model.safetensors" for path in (directory, trained[0])]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_mesh_gives_the_same_loss(place, tmp_path):
    alone, split = (built(place, tmp_path, mesh) for mesh in ((1, 1, 1), (2, 2, 2)))
    expected, _ = alone.held_out(alone.state)
    found, _ = split.held_out(split.state)
    assert found == pytest.approx(expected, rel=1e-5)


def test_it_is_the_loss_of_one_batch_of_all(place, tmp_path):
    """With balanced classes too, whose weights hang on how often each comes in the batch."""
    settings = {"balance": "classes", "beta": 0.5}
    apart = built(place, tmp_path, **settings)
    together = built(place, tmp_path, batch_size=8, **settings)
    found, _ = apart.held_out(apart.state)
    held = together.held_out
    (examples,) = held._parts()
    batch = held._batch(examples, held.classes.counts(held.dialogues))
    _, metrics = together.update(together.state, batch)
    assert found["held_out_loss"] == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert found["held_out_nll"] == pytest.approx(float(metrics["nll"]), rel=1e-5)
    assert found["held_out_loss"] != pytest.approx(found["held_out_nll"], rel=1e-2)


class OneOfTwo(Hosts):
    """A process whose partner needs rooms as large as its own."""

    count = 2

    def __init__(self, index: int):
        self.index = index


@pytest.mark.parametrize("records", [7, 5])  # the second process has no row in a last batch of one
def test_shares_of_two_processes_add_up(place, tmp_path, records):
    made = built(place, tmp_path, batch_size=2)
    terms = []

    def noting(state, batch):
        terms.append(made.held_out.step(state, batch))
        return terms[-1]

    few = dataclasses.replace(made.held_out, dialogues=made.held_out.dialogues[:records])
    whole, _ = few(made.state)
    for index in range(2):
        dataclasses.replace(few, hosts=OneOfTwo(index), step=noting)(made.state)
    assert len(terms) == 4
    total, count = np.sum([[float(t.total), float(t.count)] for t in terms], axis=0)
    assert total / count == pytest.approx(whole["held_out_loss"], rel=1e-5)


def test_two_processes_log_what_one_does(place, trained, tmp_path):
    directory, _ = trained
    config = holding(place, tmp_path / "run")
    config.run.update(steps=4, export=False)
    pair = test_hosts.Pair(config, tmp_path / "pair")
    assert pair.finish() == [0, 0], pair.last_lines()
    ours, theirs = (read_jsonl(path / METRICS) for path in (pair.run, directory))
    assert [line["step"] for line in ours if "held_out_loss" in line] == [3]
    assert ours[3]["held_out_loss"] == pytest.approx(theirs[3]["held_out_loss"], rel=1e-4)
    assert {line["compiles"] for line in read_jsonl(pair.run / TIMING)} == {0}


def spoiled(place, tmp_path) -> tuple[Path, str]:
    """The world's records, one held-out one of which asks for a frame past its video's end."""
    root = tmp_path / "world"
    shutil.copytree(place.world.root, root)
    path = root / place.world.sft("train").name
    lines = path.read_text().splitlines()
    names = [json.loads(line)["metadata"]["question_id"] for line in lines]
    at = next(n for n, name in enumerate(names) if is_held_out(name, SHARE))
    assert "#t=8.0" in lines[at]
    lines[at] = lines[at].replace("#t=8.0", "#t=800.0")
    path.write_text("\n".join(lines) + "\n")
    return path, names[at]


def test_held_out_record_that_cannot_be_read(place, tmp_path):
    path, name = spoiled(place, tmp_path)
    config = holding(place, tmp_path / "skipping", path=str(path), on_bad_record="skip")
    config.run.update(steps=3, validate_every=1, export=False)
    directory, _ = run.train(config)
    lines = read_jsonl(directory / METRICS)
    assert [line["skipped_records"] for line in lines] == [0, 1, 1]  # known after the first loss
    (line,) = json.loads((directory / REPORT).read_text())["skipped_records"]
    assert name in line
    assert all(line["held_out_loss"] > 0 for line in lines)
    config = holding(place, tmp_path / "strict", path=str(path))
    config.run.validate_every = 1
    with pytest.raises(InputError, match="800") as error:
        run.train(config)
    assert error.value.record == name


def test_share_that_leaves_nothing_to_train_on_is_refused(place, policy, tmp_path):
    config = holding(place, tmp_path)
    config.data.held_out = 0.99
    message = "0.99 holds out all of 16 usable records; lower it, or set it to 0"
    with pytest.raises(InputError, match=message) as error:
        read_data(config, policy)
    assert error.value.field == "data.held_out"


def test_share_of_few_records_may_hold_out_none(place, tmp_path, capsys):
    config = holding(place, tmp_path)
    config.data.held_out = 1e-9
    config.run.update(steps=1, export=False)
    directory, _ = run.train(config)
    (line,) = read_jsonl(directory / METRICS)
    assert "held_out_loss" not in line
    assert "data.held_out=1e-09 holds out none of 16 records" in capsys.readouterr().err


def test_buckets_hold_held_out_records_and_batches_come_of_the_others(place, policy, tmp_path):
    """As `turnwise shapes` measures them."""
    records = Records.read(holding(place, tmp_path), policy)
    whole = Records.read(sft(place, tmp_path), policy)
    assert (records.plain, len(records.dialogues), whole.plain) == (9, 16, 16)
    assert not any(is_held_out(d.id, SHARE) for d in records.dialogues[:9])
    lengths = [need.length for need in whole.row_needs]
    assert max(lengths) <= records.row_shapes[-1].length < max(lengths) + 32
