"""Supervised fine-tuning of Qwen2.5-VL-3B before RL (section 4.1).

    turnwise train --config=configs/sft/qwen2_5_vl_3b.py \
        --config.policy.checkpoint=Qwen2.5-VL-3B-Instruct --config.data.path=sft.jsonl \
        --config.data.root=DIR --config.run.dir=runs/sft_3b

From the paper: 100,874 examples, one epoch, learning rate 1e-5, vision tower frozen. Its batch size
and schedule are not given: 32 rows, 3 % warm-up and cosine here.
Hardware: not measured yet.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import sft_config


def get_config() -> ConfigDict:
    config = sft_config()
    config.run.dir = "runs/sft_qwen2_5_vl_3b"
    config.data.batch_size = 32
    config.optimizer.accumulate = 4
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 95  # 3 % of 100,874 / 32 updates
    return config
