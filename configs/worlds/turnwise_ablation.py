"""TurnWise's components in the embedded world: the paper's Table 2, over three seeds.

    turnwise study --config=configs/worlds/turnwise_ablation.py

One supervised start, and from it four kinds of RL that differ in two switches: credit shared by all
turns of a trajectory or turn-level (eq. 5), and a loss that is a mean over a trajectory's tokens or
over its turns (eq. 7). The world is "redundant": windows are long, events follow each other
closely, and the teacher of the start says most answers twice, so that repetition stands next to
success and a reply out of place is often paid for by another one of the same trajectory. Leaves
tables, pictures and, under ``analysis``, training dynamics and credit redistribution in
runs/turnwise_ablation.

46 minutes on two CPU cores that had other work as well. Expected:
docs/turnwise_study.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.ablation_config import BASE, START, ablation_config
from turnwise_jax.train.config import rl_config, sft_config

UPDATES = 60  # of each RL run


def get_config() -> ConfigDict:
    config = ablation_config(
        start=_start(),
        runs={
            "grpo": _variant("shared", "trajectory_token"),
            "turn_mean": _variant("shared", "turn"),
            "credit": _variant("turn", "trajectory_token"),
            "turnwise": _variant("turn", "turn"),
        },
        labels={
            "start": "SFT",
            "grpo": "GRPO",
            "turn_mean": "GRPO + turn mean",
            "credit": "GRPO + turn credit",
            "turnwise": "TurnWise",
        },
        tables={"components": ("grpo", "turn_mean", "credit", "turnwise")},
    )
    config.dir = "runs/turnwise_ablation"
    config.world.update(kind="streamworld", name="redundant", train=250, test=50)
    config.base.update(family="qwen2_5_vl", vocab_size=512, pixels=56)
    config.base.model.update(text_initializer_range=0.1, vision_fullatt_block_indexes=(0, 1))
    config.evaluation.update(new_tokens=12, controls=("grpo", "turnwise"))
    return config


def _start() -> ConfigDict:
    config = sft_config()
    config.policy.update(checkpoint=BASE, freeze=())
    config.optimizer.update(learning_rate=4e-3, warmup_steps=30, schedule="cosine", b2=0.99)
    config.data.batch_size = 16
    config.run.steps = 400
    return _small(config)


def _variant(credit: str, reduction: str) -> ConfigDict:
    """RL from the common start; all variants make the same rollouts' worth of updates."""
    config = rl_config("turnwise")
    config.policy.checkpoint = START
    config.algorithm.update(credit=credit, reduction=reduction)
    config.optimizer.update(learning_rate=5e-4, warmup_steps=5, b2=0.99)
    config.rollout.max_new_tokens = 12
    config.run.steps = UPDATES
    return _small(config)


def _small(config: ConfigDict) -> ConfigDict:
    """What suits a tiny model on a CPU: float32, nothing recomputed."""
    config.policy.update(dtype="float32", remat="none")
    config.data.shuffle = True
    config.shapes.row_buckets = 1
    config.run.checkpoint_every = 50
    return config
