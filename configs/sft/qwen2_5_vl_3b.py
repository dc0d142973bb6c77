"""Supervised fine-tuning of Qwen2.5-VL-3B before RL (section 4.1).

    turnwise train --config=configs/sft/qwen2_5_vl_3b.py \
        --config.policy.checkpoint=Qwen2.5-VL-3B-Instruct --config.data.path=sft.jsonl \
        --config.data.root=DIR --config.run.dir=runs/sft_3b

From the paper: 100,874 examples of which 1 % are held out, one epoch, learning rate 1e-5, vision
tower frozen. Its batch size and schedule are not given: 32 rows, 3 % warm-up and cosine here. Nor
is what the held-out examples are for: here their loss is logged every 500 updates and at the end.
At most 128 tokens a frame, as in the RL that follows.
Hardware: not measured yet.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import sft_config


def get_config() -> ConfigDict:
    config = sft_config()
    config.run.dir = "runs/sft_qwen2_5_vl_3b"
    config.run.validate_every = 500
    config.data.max_pixels = 100_352  # 128 tokens of 28 x 28
    config.data.batch_size = 32
    config.data.held_out = 0.01
    config.optimizer.accumulate = 4
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 94  # 3 % of 0.99 x 100,874 / 32 updates
    return config
