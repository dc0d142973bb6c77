"""A tiny world, a tiny policy, and finished runs that several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking import Asking, avatar, make_asking
from runs import WORLD, Place, rl, sft

from turnwise_jax.rollout.policy import Policy
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.run import train
from turnwise_jax.worlds.streamworld import generate


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Place:
    root = tmp_path_factory.mktemp("train")
    world = generate(root / "world", WORLD, train=8, test=1, seed=3, progress=False)
    model = {"text_num_hidden_layers": 2}
    return Place(world, make_tiny_policy(root / "policy", WORLD, vocab_size=320, model=model))


@pytest.fixture(scope="session")
def policy(place) -> Policy:
    """The tiny policy; its parameters are not to be donated."""
    return Policy.load(place.policy)


@pytest.fixture(scope="session")
def rl_run(place, tmp_path_factory) -> Path:
    """A finished TurnWise run of :func:`rl`."""
    config = rl(place, tmp_path_factory.mktemp("rl") / "run")
    return train(config)[0]


@pytest.fixture(scope="session")
def sft_run(place, tmp_path_factory) -> Path:
    """A finished SFT run of :func:`sft`."""
    config = sft(place, tmp_path_factory.mktemp("sft") / "run")
    return train(config)[0]


@pytest.fixture(scope="session")
def asking(tmp_path_factory) -> Asking:
    return make_asking(tmp_path_factory.mktemp("asking"))


@pytest.fixture(scope="session")
def avatar_run(asking, tmp_path_factory) -> Path:
    """A finished run of :func:`avatar`, with a checkpoint of every step."""
    config = avatar(asking, tmp_path_factory.mktemp("avatar") / "run")
    config.run.update(checkpoint_every=1, keep_checkpoints=6)
    return train(config)[0]
