"""The trainer's log-probabilities against the sampler's, on a real batch of rollouts."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from runs import rl

from turnwise_jax.models.media import MediaInput
from turnwise_jax.train.data import read_data
from turnwise_jax.train.forward import Forward, make_logprob_step
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.run import build

TEMPERATURE = 0.6


@pytest.fixture(scope="module")
def sampled(place, policy, tmp_path_factory):
    """(jitted log-probs, run, batch) of one iteration at a temperature below one."""
    config = rl(place, tmp_path_factory.mktemp("forward"))
    config.rollout.update(temperature=TEMPERATURE, top_k=0)
    config.policy.freeze = ()  # else the batch has encoded frames in place of pixels
    layout = Layout.of(make_mesh(config.mesh))
    run = build(config, Path(config.run.dir), layout, policy, read_data(config, policy))
    batch = run.collect(run.state, 0).batch
    run.collect.close()
    step = make_logprob_step(Forward(policy.graphdef, TEMPERATURE, 64))
    return step, run, batch


def test_trainer_agrees_with_the_sampler_below_temperature_one(sampled):
    step, run, batch = sampled
    state = run.state
    mask = batch.action_mask_NA
    gap = np.asarray(step(state, batch)) - batch.sampler_logp_NA
    assert mask.sum() > 20
    assert np.abs(np.expm1(gap[mask])).max() < 1e-3


def test_padding_changes_no_log_probability(sampled):
    step, run, batch = sampled
    state = run.state

    def pad(x, by: int, fill):
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, by)], constant_values=fill)

    wider = batch._replace(
        tokens_NT=pad(batch.tokens_NT, 29, 5),
        positions_N3T=pad(batch.positions_N3T, 29, 7),
        media_index_NT=pad(batch.media_index_NT, 29, 0),
        valid_NT=pad(batch.valid_NT, 29, False),
        action_pos_NA=pad(batch.action_pos_NA, 6, 3),
        action_target_NA=pad(batch.action_target_NA, 6, 2),
        action_mask_NA=pad(batch.action_mask_NA, 6, False),
    )
    expected = np.asarray(step(state, batch))
    logp = np.asarray(step(state, wider))
    np.testing.assert_allclose(logp[:, : expected.shape[1]], expected, atol=2e-6)
    np.testing.assert_array_equal(logp[:, expected.shape[1] :], 0.0)


def test_pixels_reach_the_log_probabilities(sampled):
    """Each row answers to its own prompt's frames, and to no other's."""
    step, run, batch = sampled
    state = run.state
    own = np.where(batch.media_index_NT[0] >= 0, batch.media_index_NT[0], 0).max()
    slice_ = own // batch.media.vision.tokens.shape[1]  # the last frame that row 0 sees
    patches = np.array(batch.media.vision.patches)
    patches[slice_] = 255 - patches[slice_]
    changed = batch._replace(media=MediaInput(batch.media.vision._replace(patches=patches)))
    moved = np.abs(np.asarray(step(state, changed)) - np.asarray(step(state, batch)))
    prompts = moved.reshape(2, 2, -1).max(axis=(1, 2))  # [B, G, A]
    assert prompts[0] > 1e-6
    assert prompts[1] == 0.0


def test_only_the_state_holds_parameters(sampled):
    """It is donated to every update; another reference would keep a second copy alive."""
    _, run, _ = sampled
    held = jax.tree.leaves(run.collect.policy.params) + jax.tree.leaves(
        run.collect.engine.policy.params
    )
    assert {type(leaf) for leaf in held} == {jax.ShapeDtypeStruct}
