"""One tiny policy for all rollout tests, and the full forward pass that they compare with."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx
from tiny import load_policy, make_checkpoint, make_example

from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import Shapes
from turnwise_jax.rollout.stream import StreamEngine

NEW_TOKENS = 6


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    make_checkpoint(path)
    return path


@pytest.fixture(scope="session")
def policy(directory):
    return load_policy(directory)


@pytest.fixture(scope="session")
def examples():
    """Ragged: 3, 2, 4 and 1 turns, images of two sizes, a turn without frames, a video turn."""
    return [
        make_example("plain", 3, seed=1),
        make_example("text-turn", 3, seed=2, per_turn=(1, 2, 0, 1)),
        make_example("wide", 4, seed=3, size=(56, 84)),
        make_example("video", 3, seed=4, per_turn=(4, 3, 0, 4), videos=(0, 1, 3)),
        make_example("short", 1, given=0, seed=5),
    ]


def shapes_for(policy, examples, **options):
    """The buckets of these examples, in one batch unless told otherwise."""
    options = {"batch_size": len(examples), "new_tokens": NEW_TOKENS, **options}
    return Shapes.for_dialogues(
        [example.dialogue for example in examples],
        [example.grids for example in examples],
        policy,
        **options,
    )


@pytest.fixture(scope="session")
def shapes(policy, examples):
    (bucket,) = shapes_for(policy, examples)
    return bucket


@pytest.fixture(scope="session")
def engine(policy, shapes):
    return StreamEngine(policy, Sampling(temperature=1.2, top_k=10), shapes)


@pytest.fixture(scope="session")
def greedy_engine(policy, shapes):
    return StreamEngine(policy, Sampling(greedy=True), shapes)


@pytest.fixture(scope="session")
def rollouts(engine, policy, examples):
    """Three rollouts of every example; some turns are cut, some end by the marker."""
    made = engine.rollout(policy.params, examples, group_size=3, seed=11)
    real = made.length > 0
    assert made.truncated.any(), "the tests need cut turns"
    assert (real & ~made.truncated).any(), "and finished ones"
    return made


def full_pass(policy, params, vision, tokens, positions, media_index, valid):
    """float64 log-softmax-ready logits [N, T, V] of one pass over whole rows, without a cache."""

    @jax.jit
    def logits(params, vision):
        model = nnx.merge(policy.graphdef, params)
        hidden, _ = model(
            tokens,
            positions,
            media=model.encode_media(vision),
            media_index=media_index,
            valid=valid,
        )
        return hidden.astype(np.float32) @ model.head().astype(np.float32)

    return np.asarray(logits(params, vision), np.float64)


def score(policy, params, rows, vision, temperature):
    """float64 [N, A]: log-probability of every action by one teacher-forced pass; 0 if masked."""
    logits = full_pass(
        policy, params, vision, rows.tokens, rows.positions, rows.media_index, rows.valid
    )
    scaled = np.take_along_axis(logits, rows.action_pos[..., None], axis=1) / temperature
    peak = scaled.max(axis=-1, keepdims=True)
    norm = peak[..., 0] + np.log(np.exp(scaled - peak).sum(axis=-1))
    chosen = np.take_along_axis(scaled, rows.action_target[..., None], axis=2)[..., 0]
    return np.where(rows.action_mask, chosen - norm, 0.0)
