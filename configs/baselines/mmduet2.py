"""MMDuet2 on Qwen2.5-VL-3B: the PAUC reward with one advantage per trajectory.

    turnwise train --config=configs/baselines/mmduet2.py \
        --config.policy.checkpoint=SFT_DIR --config.data.path=rl.parquet --config.data.root=DIR \
        --config.judge.url=http://HOST:8000/v1 --config.run.dir=runs/mmduet2_3b

Its run scripts (PINTO0309/MMDuet2: rl/verl/recipe/proactive/run_scripts) where they speak: GRPO
with 4 rollouts, mini-batch 8, 1e-6, temperature 1.2, top-k 10, 100 new tokens a turn, no KL, vision
tower trained too, one epoch, unshuffled, about 128 tokens a frame; verl's defaults elsewhere: one
mean over all tokens of the batch, clip 0.2, dual clip 3, weight decay 0.01, gradient clip 1.0,
constant rate. Its own repetition term counts replies inside windows twice; here each counts once,
as TurnWise's text has it.
Hardware: as configs/turnwise/qwen2_5_vl_3b.py and more for the vision tower's moments; not timed on
a TPU. Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import rl_config


def get_config() -> ConfigDict:
    config = rl_config("grpo", reward="pauc")
    config.run.dir = "runs/mmduet2_qwen2_5_vl_3b"
    config.data.max_pixels = 100_352  # 128 tokens of 28 x 28
    config.policy.freeze = ()
    config.algorithm.reduction = "batch_token"
    config.judge.kind = "openai"
    config.optimizer.accumulate = 4
    return config
