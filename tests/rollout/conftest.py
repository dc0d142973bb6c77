"""One tiny policy, ragged dialogues and their rollouts, for all rollout tests."""

from __future__ import annotations

import pytest
from rollout_checks import shapes_for
from tiny import load_policy, make_checkpoint, make_example

from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import StreamEngine


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
