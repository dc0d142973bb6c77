"""One small set of the default world, generated once for all tests of this folder."""

from __future__ import annotations

import pytest
from world_set import SEED, TEST, TRAIN

from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import WorldFiles, generate


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> WorldFiles:
    folder = tmp_path_factory.mktemp("world") / "set"
    return generate(folder, World(), train=TRAIN, test=TEST, seed=SEED, progress=False)
