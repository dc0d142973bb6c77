"""Every program that a run would compile is planned, measured and named in docs/compile.md."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest
import toy
from runs import rl

from turnwise_jax.train.aot import compile as planning
from turnwise_jax.train.aot import report
from turnwise_jax.train.aot.chips import CHIPS
from turnwise_jax.train.aot.plan import Plan

DOC = (Path(__file__).resolve().parents[2] / "docs" / "compile.md").read_text()
NO_MEMORY = dict.fromkeys(planning.KINDS, 0.0)


@pytest.fixture(scope="module")
def plan(place, tmp_path_factory) -> Plan:
    """GRPO with a KL, several updates a batch and no barrier, in bfloat16."""
    config = rl(place, tmp_path_factory.mktemp("planned") / "run", "grpo")
    config.policy.update(dtype="bfloat16", freeze=())
    config.algorithm.kl = 1e-3
    config.optimizer.inner_epochs = 2
    config.rollout.update(group_size=4, desynchronised=True)
    return Plan.of(config, toy.layout())


@pytest.fixture(scope="module")
def measured(plan) -> dict[str, planning.Measured]:
    """What is found of each program, without compiling one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", lambda lowered: lowered)
        patch.setattr(planning, "_memory", lambda compiled: NO_MEMORY)
        return {found.name: found for found in planning.measure(plan, CHIPS["TPU v5 lite"])}


def test_every_program_is_measured(measured):
    assert list(measured) == [
        *("encode", "begin", "start", "turns_2x4", "narrow_2x4", "turns_2x3", "narrow_2x3"),
        *("turns_2x2", "narrow_2x2", "turns_2x1", "narrow_2x1", "turns_1x1"),
        *("update", "old_logprobs", "reference"),
    ]
    for name, program in measured.items():
        assert (program.flops == 0) == name.startswith(("start", "narrow")), name


def test_the_reference_takes_one_pass_of_the_updates_rows(measured):
    assert measured["reference"].flops == measured["old_logprobs"].flops
    assert 3 < measured["update"].flops / measured["reference"].flops < 5


def test_what_stays_beside_a_program_is_what_it_does_not_take(plan, measured):
    state = plan.state
    sizes = {
        name: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))
        for name, part in state._asdict().items()
    }
    assert sizes["reference"] == sizes["trained"] > 0
    moments, copy = sizes["opt_state"], sizes["reference"]
    assert measured["update"].resident == 0
    assert measured["old_logprobs"].resident == moments + copy
    assert measured["reference"].resident == moments + sizes["trained"]
    # Rollouts have their kernels in bfloat16, and the float32 ones stay.
    assert 0 < measured["begin"].resident - moments - copy < copy
    assert measured["start"].resident > measured["begin"].resident


def test_what_helps_is_of_the_program_that_does_not_fit(plan, measured):
    for name in ("old_logprobs", "reference"):
        found = " ".join(report.hints([measured[name]], plan))
        assert "accumulate" not in found
        assert "remat" not in found
        assert "data.batch_size" in found
    found = " ".join(report.hints([measured["update"]], plan))
    assert "optimizer.accumulate=8" in found
    assert "remat" in found


def test_the_page_names_every_program(measured):
    named = set(re.findall(r"`([a-z_]+)(?:_PxM)?`", DOC))
    assert {re.sub(r"_\d+x\d+$", "", name) for name in measured} <= named
    assert {"turn", "encode_rows"} <= named
