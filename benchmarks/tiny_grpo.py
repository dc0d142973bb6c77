"""GRPO of a tiny policy in the embedded world: what `input.py` and `pipelining.py` time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from turnwise_jax.study.small import small
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.config import rl_config
from turnwise_jax.worlds import streamworld
from turnwise_jax.worlds.settings import WORLDS


class TinyGrpo(NamedTuple):
    """A folder with a world of 24 videos and an untrained policy."""

    root: Path
    records: Path
    policy: Path

    @classmethod
    def make(cls, root: Path) -> TinyGrpo:
        world = WORLDS["demo"]
        files = streamworld.generate(root / "world", world, train=24, test=1, progress=False)
        return cls(root, files.rl("train"), make_tiny_policy(root / "policy", world))

    def config(self, name: str, steps: int) -> ConfigDict:
        """Of a run in the folder ``name`` that leaves its logs alone."""
        config = small(rl_config("grpo"))
        config.policy.checkpoint = str(self.policy)
        config.data.update(path=str(self.records), shuffle=False)
        config.rollout.max_new_tokens = 12
        config.run.update(
            dir=str(self.root / name), steps=steps, checkpoint_every=steps, export=False
        )
        return config
