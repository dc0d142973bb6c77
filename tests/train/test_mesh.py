"""Training on meshes of simulated devices: the same losses, wherever the arrays are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
from ml_collections import ConfigDict
from runs import rl, sft

from turnwise_jax.errors import InputError
from turnwise_jax.train.collect import SupervisedCollector
from turnwise_jax.train.data import read_data
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.metrics import METRICS, TIMING, count_compiles, read_jsonl
from turnwise_jax.train.run import build, load_policy, train
from turnwise_jax.train.state import create_state

MESHES = [(8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 1)]


def mesh_fields(data: int, fsdp: int, tensor: int) -> ConfigDict:
    return ConfigDict({"data": data, "fsdp": fsdp, "tensor": tensor})


def sft_on(mesh, place, directory: Path) -> ConfigDict:
    config = sft(place, directory)
    config.mesh.update(mesh_fields(*mesh))
    return config


def test_run_that_moves_between_meshes_equals_one_on_one_device(
    place, sft_run, tmp_path, monkeypatch
):
    """Three steps on three meshes, sharing rows, parameters, or both; the rest on one device."""
    collect = SupervisedCollector.__call__

    def stop_after_this_step(collector, state, iteration):
        if iteration < 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(collector, state, iteration)

    monkeypatch.setattr(SupervisedCollector, "__call__", stop_after_this_step)
    finished = [train(sft_on(mesh, place, tmp_path / "run"))[1] for mesh in MESHES]
    assert finished == [False, False, False, True]
    ours, theirs = read_jsonl(tmp_path / "run" / METRICS), read_jsonl(sft_run / METRICS)
    for line, expected in zip(ours, theirs, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert theirs[0]["loss"] - theirs[-1]["loss"] > 0.1
    assert {line["compiles"] for line in read_jsonl(tmp_path / "run" / TIMING)} == {0}


def three_steps(mesh, place, directory: Path):
    """Losses and parameters of three updates on one batch; a rate that does not amplify rounding.

    AdamW's first steps are as long for a gradient of 1e-9 as for one of 1.
    """
    config = sft_on(mesh, place, directory)
    config.optimizer.update(learning_rate=2e-4, eps=1e-6)
    layout = Layout.of(make_mesh(config.mesh))
    policy = load_policy(config, layout.param_shardings)
    run = build(config, directory, layout, policy, read_data(config, policy))
    batch, state, losses = run.collect(run.state, 0).batch, run.state, []
    for _ in range(3):
        state, metrics = run.update(state, batch)
        losses.append(float(metrics["loss"]))
    run.collect.close()
    return losses, toy.leaves(state.params)


@pytest.fixture(scope="module")
def alone(place, tmp_path_factory):
    return three_steps((1, 1, 1), place, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("mesh", MESHES[:3])
def test_three_steps_on_a_mesh_equal_those_of_one_device(place, tmp_path, alone, mesh):
    losses, params = three_steps(mesh, place, tmp_path)
    expected, theirs = alone
    assert losses == pytest.approx(expected, abs=1e-5)
    assert expected[0] - expected[2] > 1e-3
    for name, value in params.items():
        np.testing.assert_allclose(value, theirs[name], atol=1e-5, err_msg=name)


def test_parameters_and_moments_are_split(policy):
    layout = Layout.of(make_mesh(mesh_fields(2, 2, 2)))
    state = layout.create_state(policy.params, toy.optimizer(), ("vision",), policy.config)
    toy.assert_equal(state, create_state(policy.params, toy.optimizer(), ("vision",)))
    arrays = {
        jax.tree_util.keystr(path): array
        for path, array in jax.tree_util.tree_flatten_with_path(state)[0]
    }
    mlp = [
        array
        for name, array in arrays.items()
        if "['text']['decoder']['layers']['mlp']['gate']['kernel']" in name
    ]
    assert len(mlp) == 3  # the parameter and its two moments
    for array in arrays.values():
        assert len(array.sharding.device_set) == 8
    for array in mlp:
        (layers, width, hidden) = array.shape
        assert array.addressable_shards[0].data.shape == (layers, width // 2, hidden // 2)


def test_rows_and_frames_are_split():
    layout = Layout.of(make_mesh(mesh_fields(2, 2, 1)))
    batch = toy.batch()
    batch = batch._replace(media=np.pad(batch.media, ((0, 3), (0, 0))))
    placed = layout.place(batch)
    toy.assert_equal(placed, batch)
    assert placed.tokens_NT.addressable_shards[0].data.shape == (1, toy.LENGTH)
    assert placed.media.addressable_shards[0].data.shape == (2, toy.PATCH)
    shapes = layout.shapes(batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), placed) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), shapes
    )


def test_rollouts_do_not_depend_on_the_mesh(place, policy, tmp_path):
    """Sampling under split parameters: the same tokens and, nearly, the same log-probabilities."""
    config = rl(place, tmp_path)
    batches = []
    for mesh in ((1, 1, 1), (1, 2, 2)):
        layout = Layout.of(make_mesh(mesh_fields(*mesh)))
        run = build(config, tmp_path, layout, policy, read_data(config, policy))
        for compile_part in run.collect.programs(run.state):
            compile_part()
        with count_compiles() as compiles:
            batches.append(run.collect(run.state, 0).batch)
        assert compiles.names == []
        run.collect.close()
    one, split = batches
    np.testing.assert_array_equal(one.action_target_NA, split.action_target_NA)
    np.testing.assert_allclose(one.sampler_logp_NA, split.sampler_logp_NA, atol=1e-5)


@pytest.mark.parametrize("sizes", [(9, 1, 1), (2, 2, 4), (1, 16, 1)])
def test_more_devices_than_there_are_is_refused(sizes):
    with pytest.raises(InputError, match="devices, there are 8") as error:
        make_mesh(mesh_fields(*sizes))
    assert error.value.field == "mesh"


def test_mesh_is_refused_before_anything_is_read(place, tmp_path):
    config = sft_on((9, 1, 1), place, tmp_path / "run")
    config.data.batch_size = 9
    config.policy.checkpoint = str(tmp_path / "none")
    with pytest.raises(InputError, match="needs 9 devices"):
        train(config)


def test_tensor_axis_that_tears_heads_is_refused(policy):
    layout = Layout.of(make_mesh(mesh_fields(1, 1, 4)))
    with pytest.raises(InputError, match="do not divide 2 key-value heads"):
        layout.create_state(policy.params, toy.optimizer(), (), policy.config)


def test_rows_that_the_devices_cannot_share_are_refused(place, tmp_path):
    config = sft_on((8, 1, 1), place, tmp_path / "run")
    config.data.batch_size = 4
    with pytest.raises(InputError, match="8 devices can share"):
        train(config)
