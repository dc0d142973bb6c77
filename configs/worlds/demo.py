"""The demo: SFT, GRPO and TurnWise on the embedded world, evaluated on held-out videos.

    turnwise study --config=configs/worlds/demo.py

Leaves a table, curves and pictures of dialogues in runs/demo.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.config import study_config
from turnwise_jax.study.small import MODEL, small_rl, small_start


def get_config() -> ConfigDict:
    config = study_config(
        runs={
            "sft": small_start(300),
            "grpo": small_rl("grpo", "sft", 80),
            "turnwise": small_rl("turnwise", "sft", 80),
        },
        labels={"sft": "SFT", "grpo": "GRPO", "turnwise": "TurnWise"},
    )
    config.dir = "runs/demo"
    config.base.vocab_size = 512
    config.base.model.update(MODEL)
    return config
