"""Training adapters: the base stays, the optimizer holds adapters only, resuming is exact."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from runs import sft

from turnwise_jax.models.lora import is_adapter
from turnwise_jax.models.params import named
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.convert import convert_run
from turnwise_jax.train.directory import EXPORT, REPORT
from turnwise_jax.train.loop import CHECKPOINTS, restored
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.run import load_policy, train
from turnwise_jax.train.state import create_state


def lora_config(place, directory):
    config = sft(place, directory)
    config.policy.lora.rank = 2
    config.policy.frozen_dtype = "bfloat16"
    config.optimizer.learning_rate = 1e-2
    return config


def last_state(config):
    """The newest checkpoint's."""
    policy = load_policy(config)
    like = create_state(policy.params, make_optimizer(config.optimizer, 1), config.policy.freeze)
    saved = Checkpointer(f"{config.run.dir}/{CHECKPOINTS}", read_only=True)
    state, _ = restored(saved, saved.latest_step(), like)
    saved.close()
    return policy, state


@pytest.fixture(scope="module")
def config(place, tmp_path_factory):
    """Of a finished run."""
    config = lora_config(place, tmp_path_factory.mktemp("lora") / "run")
    assert train(config)[1]
    return config


def test_adapters_alone_are_trained_and_have_moments(config):
    policy, state = last_state(config)
    start = named(policy.params)
    trained, frozen = named(state.trained), named(state.frozen)
    assert all(is_adapter(path) for path in trained)
    assert not any(is_adapter(path) for path in frozen)
    assert trained.keys() | frozen.keys() == start.keys()
    for path, leaf in frozen.items():
        assert leaf.dtype == jnp.bfloat16
        np.testing.assert_array_equal(leaf, start[path])
    for path, leaf in trained.items():
        assert leaf.dtype == jnp.float32
        assert not np.array_equal(leaf, start[path])
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert sum(x.size for x in moments) == 2 * sum(x.size for x in jax.tree.leaves(state.trained))


def test_the_exported_policy_is_the_adapted_one_and_differs_from_its_base(config, place):
    exported = named(Policy.load(f"{config.run.dir}/{EXPORT}").params)
    base = named(Policy.load(place.policy).params)
    assert exported.keys() == base.keys()
    changed = {
        "/".join(path)
        for path, leaf in exported.items()
        if np.abs(leaf.astype(np.float32) - base[path]).max() > 0.01
    }
    assert changed
    assert all(name.startswith("text/decoder/layers/") for name in changed)


def test_convert_merges(config, tmp_path):
    convert_run(config.run.dir, tmp_path / "out")
    toy.assert_equal(
        Policy.load(tmp_path / "out").params, Policy.load(f"{config.run.dir}/{EXPORT}").params
    )


def test_resuming_is_exact(config, place, tmp_path):
    again = lora_config(place, tmp_path / "run")
    shutil.copytree(config.run.dir, again.run.dir)
    shutil.rmtree(Path(again.run.dir, CHECKPOINTS, "6"))
    Path(again.run.dir, REPORT).unlink()
    assert last_state(again)[1].step == 4
    assert train(again)[1]
    toy.assert_equal(last_state(again)[1], last_state(config)[1])
