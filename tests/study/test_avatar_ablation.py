"""The config of AVATAR's ablations: the paper's comparisons, at equal numbers of rollouts."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from turnwise_jax.study.ablation_config import check

FILE = Path(__file__).resolve().parents[2] / "configs" / "worlds" / "avatar_soundworld.py"
# variant -> (fresh, replayed, shape, hints)
VARIANTS = {
    "grpo": (8, 0, "uniform", False),
    "tas": (8, 0, "u", False),
    "replay": (4, 4, "uniform", False),
    "avatar_nohint": (4, 4, "u", False),
    "avatar": (4, 4, "u", True),
    "decay": (4, 4, "linear_decay", True),
    "incline": (4, 4, "linear_incline", True),
    "uniform": (4, 4, "uniform", True),
    "split_8_0": (8, 0, "u", True),
    "split_6_2": (6, 2, "u", True),
    "split_2_6": (2, 6, "u", True),
}


@pytest.fixture(scope="module")
def config():
    return runpy.run_path(str(FILE))["get_config"]()


def test_it_can_be_run(config):
    check(config)
    assert config.seeds == (0, 1, 2)
    assert set(config.labels) == {*VARIANTS, "start"}


def test_variants_differ_in_what_they_are_named_after_and_in_nothing_else(config):
    assert config.order == tuple(VARIANTS)
    (reference,) = {tuple(config.tables[t]) for t in ("components",)}
    assert reference == ("grpo", "tas", "replay", "avatar_nohint", "avatar")
    assert set(config.tables.shapes) == {"avatar", "decay", "incline", "uniform"}
    assert set(config.tables.splits) == {"avatar", "split_8_0", "split_6_2", "split_2_6"}
    for name, (fresh, replayed, shape, hints) in VARIANTS.items():
        run = config.runs[name]
        assert (run.rollout.group_size, run.replay.samples) == (fresh, replayed)
        assert (run.algorithm.tas_shape, run.hints.use) == (shape, hints)
        other = config.runs.avatar.to_dict()
        other["rollout"]["group_size"], other["replay"]["samples"] = fresh, replayed
        other["algorithm"]["tas_shape"], other["hints"]["use"] = shape, hints
        other["run"]["steps"] = run.run.steps
        assert run.to_dict() == other


def test_all_variants_generate_equally_many_rollouts(config):
    generated = {
        run.run.steps * run.data.batch_size * run.rollout.group_size for run in config.runs.values()
    }
    assert len(generated) == 1
