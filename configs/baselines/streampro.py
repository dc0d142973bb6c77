"""StreamPro's RL on Qwen2.5-VL-3B: turn-level and trajectory-level rewards (arXiv 2605.16381).

    turnwise train --config=configs/baselines/streampro.py \
        --config.policy.checkpoint=SFT_DIR --config.data.path=rl.parquet --config.data.root=DIR \
        --config.judge.url=http://HOST:8000/v1 --config.run.dir=runs/streampro_3b

The start is the policy of configs/baselines/streampro_sft.py. Section 5.1: GRPO with veRL, one
epoch, 1e-6, 16 prompts a batch, 8 rollouts, temperature 1.0, tau 8 s, weights 0.1, 0.45, 0.45. The
text is silent on top-k, the length of a turn, KL, clipping and the mean over tokens: veRL's
defaults, no KL, 100 tokens. What the rewards leave open: see turnwise_jax/rewards/streampro.py.
Replies are plain ("NO REPLY"), as in the comparison of the TurnWise paper, which puts all methods
into one framework; --config.policy.replies=streampro is the form of its own text. Frames have that
comparison's size too.
Hardware: not timed on a TPU. Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import rl_config


def get_config() -> ConfigDict:
    config = rl_config("grpo", reward="streampro")
    config.run.dir = "runs/streampro_qwen2_5_vl_3b"
    config.data.max_pixels = 100_352  # 128 tokens of 28 x 28
    config.algorithm.reduction = "batch_token"
    config.data.batch_size = 16
    config.rollout.update(group_size=8, temperature=1.0, top_k=0)
    config.optimizer.accumulate = 16
    config.judge.kind = "openai"
    return config
