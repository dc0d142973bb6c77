"""The demo: SFT, GRPO and TurnWise on the embedded world, evaluated on held-out videos.

    turnwise study --config=configs/worlds/demo.py

Leaves a table, curves and pictures of dialogues in runs/demo.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.config import BASE, study_config
from turnwise_jax.train.config import rl_config, sft_config


def get_config() -> ConfigDict:
    config = study_config(
        runs={"sft": _sft(), "grpo": _rl("grpo"), "turnwise": _rl("turnwise")},
        labels={"sft": "SFT", "grpo": "GRPO", "turnwise": "TurnWise"},
    )
    config.dir = "runs/demo"
    config.base.vocab_size = 512
    config.base.model.update(text_initializer_range=0.1, vision_fullatt_block_indexes=(0, 1))
    return config


def _sft() -> ConfigDict:
    config = sft_config()
    config.policy.checkpoint = BASE
    config.policy.freeze = ()
    config.optimizer.update(learning_rate=4e-3, warmup_steps=30, schedule="cosine", b2=0.99)
    config.data.batch_size = 16
    config.run.steps = 300
    return _small(config)


def _rl(algorithm: str) -> ConfigDict:
    config = rl_config(algorithm)
    config.policy.checkpoint = "sft"
    config.optimizer.update(learning_rate=5e-4, warmup_steps=5, b2=0.99)
    config.rollout.max_new_tokens = 12
    config.run.steps = 80
    return _small(config)


def _small(config: ConfigDict) -> ConfigDict:
    """What suits a tiny model on a CPU: float32, nothing recomputed."""
    config.policy.dtype = "float32"
    config.policy.remat = "none"
    config.data.shuffle = True
    config.shapes.row_buckets = 1
    return config
