"""What planning says of batches beside a program, against what a run has on its device."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace

import jax
import pytest
import toy
from runs import rl, sft

from turnwise_jax.rollout.features import Encoder
from turnwise_jax.rollout.prompts import empty_batch
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train import run
from turnwise_jax.train.ahead import Ahead
from turnwise_jax.train.aot import compile as planning
from turnwise_jax.train.aot import report
from turnwise_jax.train.aot.chips import CHIPS
from turnwise_jax.train.aot.other_batches import other_batches
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.compiled import Update

CHIP = CHIPS["TPU v5 lite"]
NO_MEMORY = dict.fromkeys(planning.KINDS, 0.0)
PROGRAMS = ("encode", "begin", "turn", "reference", "update")


def config_of(place, directory, *, ahead=0, workers=2, freeze=("vision",)):
    config = rl(place, directory)
    config.run.update(steps=4, export=False)
    config.policy.freeze = freeze
    config.rollout.ahead, config.data.workers = ahead, workers
    return config


def planned(place, directory, **changes) -> Plan:
    return Plan.of(config_of(place, directory, **changes), toy.layout())


def size(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def sizes(plan: Plan) -> tuple[int, int, int]:
    """Bytes of frames, of their features and of rows."""
    media = empty_batch(plan.policy, plan.rooms).media
    rooms, config = plan.rooms, plan.policy.config
    width = config.text.hidden_size * 4  # bytes of a float32 row
    features = rooms.slices * rooms.slots.tokens * width
    return size(media), features, size(plan.batch._replace(media=None))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_kept_with_frozen_towers(place, tmp_path, workers):
    plan = planned(place, tmp_path, workers=workers)
    frames, features, rows = sizes(plan)
    early = frames if workers else 0
    assert other_batches(plan, PROGRAMS) == {
        "encode": early,
        "begin": early + frames,
        "turn": early + frames,
        "reference": early,
        "update": early,
    }
    plan = planned(place, tmp_path, workers=workers, ahead=1)
    assert other_batches(plan, PROGRAMS) == {
        "encode": early + rows + features,
        "begin": early + frames + rows + features,
        "turn": early + frames + rows + features,
        "reference": early,
        "update": early + features,
    }


def test_trained_towers_keep_frames_where_others_keep_features(place, tmp_path):
    plan = planned(place, tmp_path, ahead=1, freeze=())
    frames, _, rows = sizes(plan)
    found = other_batches(plan, PROGRAMS)
    assert found["update"] == 2 * frames
    assert found["turn"] == 3 * frames + rows
    assert found["encode"] == 2 * frames + rows


def test_supervised_batches_are_placed_one_early(place, tmp_path):
    config = sft(place, tmp_path)
    assert other_batches(Plan.of(config, toy.layout()), ["update"]) == {"update": 0}
    config.data.workers = 2
    plan = Plan.of(config, toy.layout())
    assert other_batches(plan, ["update"]) == {"update": size(plan.batch.media)}


def measured(plan, monkeypatch) -> list[planning.Measured]:
    """What is found of each program, without compiling one."""
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered: lowered)
    monkeypatch.setattr(planning, "_memory", lambda compiled: NO_MEMORY)
    return list(planning.measure(plan, CHIP))


def test_the_verdict_counts_what_is_sampled_ahead(place, tmp_path, monkeypatch):
    at_once, ahead = (
        measured(planned(place, tmp_path, ahead=number), monkeypatch) for number in (0, 1)
    )
    plan = planned(place, tmp_path, ahead=1)
    _, features, rows = sizes(plan)
    more = {b.name: b.total - a.total for a, b in zip(at_once, ahead, strict=True)}
    assert more == {
        "encode": features + rows,
        "begin": features + rows,
        "turn": features + rows,
        "update": features,
    }
    tight = replace(CHIP, usable=max(program.total for program in at_once))
    assert report.verdict(at_once, plan, tight).startswith("fits")
    refused = report.verdict(ahead, plan, tight)
    assert refused.startswith("does not fit: begin")
    assert "--config.rollout.ahead=0" in refused
    head = report.table(ahead).splitlines()[1]
    assert head.split()[6:9] == ["resident", "batches", "total"]


def test_a_run_has_as_many_batches_on_its_device(place, tmp_path, monkeypatch):
    """Counted as rollouts end and as an update begins, in the middle of a run.

    One of the features each time is the program's own argument, all else is beside it.
    """
    plan = planned(place, tmp_path, ahead=1)
    media = empty_batch(plan.policy, plan.rooms).media
    shown = Encoder(plan.policy, plan.layout).shapes(plan.policy.params, media)
    kinds = {
        "frames": (media.vision.patches.shape, media.vision.patches.dtype),
        "features": (shown.features.shape, shown.features.dtype),
    }
    counts = {"turn": [], "update": []}

    def count(where):
        gc.collect()
        live = Counter((array.shape, array.dtype) for array in jax.live_arrays())
        counts[where].append({name: live[kind] for name, kind in kinds.items()})

    after, turns, update = Ahead.__next__, StreamEngine._all_turns, Update.__call__

    def read(self):
        made = after(self)
        self._next.exception()  # the one that is read early is there
        return made

    def run_turns(self, *args, **options):
        out = turns(self, *args, **options)
        count("turn")
        return out

    def run_update(self, *args, **options):
        count("update")
        return update(self, *args, **options)

    monkeypatch.setattr(Ahead, "__next__", read)
    monkeypatch.setattr(StreamEngine, "_all_turns", run_turns)
    monkeypatch.setattr(Update, "__call__", run_update)
    run.train(config_of(place, tmp_path / "run", ahead=1))
    assert counts["turn"][2] == {"frames": 2, "features": 1 + 1}
    assert counts["update"][1] == {"frames": 1, "features": 1 + 1}
