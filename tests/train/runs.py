"""Configs of runs that end in seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.train.config import rl_config, sft_config
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import WorldFiles

WORLD = World(history_turns=1, target_turns=3)


class Place(NamedTuple):
    """Where the shared inputs lie."""

    world: WorldFiles
    policy: Path


def small(config: ConfigDict, place: Place, directory: Path) -> ConfigDict:
    """What every test run shares: float32, six steps, a checkpoint every other step."""
    config.policy.update(checkpoint=str(place.policy), dtype="float32", remat="none")
    config.run.update(dir=str(directory), steps=6, checkpoint_every=2)
    config.shapes.row_buckets = 1
    return config


def rl(place: Place, directory: Path, algorithm: str = "turnwise") -> ConfigDict:
    config = small(rl_config(algorithm), place, directory)
    config.data.update(path=str(place.world.rl("train")), batch_size=2)
    config.rollout.update(group_size=2, max_new_tokens=6)
    config.optimizer.learning_rate = 1e-3
    return config


def sft(place: Place, directory: Path) -> ConfigDict:
    config = small(sft_config(), place, directory)
    config.data.update(path=str(place.world.sft("train")), batch_size=8, workers=0)
    config.optimizer.learning_rate = 2e-3
    return config


def loss_of(reduction: str = "turn", method: str = "turnwise"):
    """A method's loss with its default settings but for the reduction."""
    algorithm = ALGORITHMS[method]
    return partial(algorithm.loss, settings=algorithm.Settings(reduction=reduction))
