"""What the configs of the embedded worlds' studies share: tiny policies, trained on CPUs."""

from __future__ import annotations

from collections.abc import Mapping

from ml_collections import ConfigDict

from turnwise_jax.study.ablation_config import BASE, ablation_config
from turnwise_jax.train.config import rl_config, sft_config

MODEL = {"text_initializer_range": 0.1, "vision_fullatt_block_indexes": (0, 1)}  # of `base`


def small(config: ConfigDict) -> ConfigDict:
    """Sets what suits a tiny model on a CPU: float32, nothing recomputed."""
    config.policy.update(dtype="float32", remat="none")
    config.data.shuffle = True
    config.shapes.row_buckets = 1
    return config


def small_start(steps: int, learning_rate: float = 4e-3) -> ConfigDict:
    """Supervised training of a study's untrained policy, all of it."""
    config = small(sft_config())
    config.policy.update(checkpoint=BASE, freeze=())
    config.optimizer.update(
        learning_rate=learning_rate, warmup_steps=30, schedule="cosine", b2=0.99
    )
    config.data.batch_size = 16
    config.run.steps = steps
    return config


def small_rl(algorithm: str, start: str, updates: int) -> ConfigDict:
    """RL on streaming dialogues from the policy that a study calls ``start``."""
    config = small(rl_config(algorithm))
    config.policy.checkpoint = start
    config.optimizer.update(learning_rate=5e-4, warmup_steps=5, b2=0.99)
    config.rollout.max_new_tokens = 12
    config.run.steps = updates
    return config


def streaming_ablation(
    runs: Mapping[str, ConfigDict],
    labels: Mapping[str, str],
    tables: Mapping[str, tuple[str, ...]],
    controls: tuple[str, ...],
) -> ConfigDict:
    """An ablation in the world "redundant": one supervised start of 400 steps, and RL from it.

    Args:
      runs: variant -> training config, from :func:`small_rl`.
      labels: of the variants.
      tables: table -> the variants in its rows.
      controls: variants that are also evaluated on another video's frames.
    """
    start = small_start(400)
    for run in (start, *runs.values()):
        run.run.checkpoint_every = 50
    config = ablation_config(start, runs, {"start": "SFT", **labels}, tables)
    config.world.update(kind="streamworld", name="redundant", train=250, test=50)
    config.base.update(family="qwen2_5_vl", vocab_size=512, pixels=56)
    config.base.model.update(MODEL)
    config.evaluation.update(new_tokens=12, controls=controls)
    return config
