"""StreamPro's supervised start on Qwen2.5-VL-3B: class-balanced loss (arXiv 2605.16381, 4.1).

    turnwise train --config=configs/baselines/streampro_sft.py \
        --config.policy.checkpoint=Qwen2.5-VL-3B-Instruct --config.data.path=sft.jsonl \
        --config.data.root=DIR --config.run.dir=runs/streampro_sft_3b

Section 5.1: one epoch, 1e-5, 512 dialogues a batch, beta 0.9999, text weight 2; projector and
language model are trained. Schedule and warm-up are not given: those of
configs/sft/qwen2_5_vl_3b.py here. Freezing goes by whole towers, so that the projector, which is
part of the vision tower, is frozen with it; an empty policy.freeze trains both. Frames have the
size that TurnWise's have.
Hardware: not timed on a TPU. Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import sft_config


def get_config() -> ConfigDict:
    config = sft_config()
    config.run.dir = "runs/streampro_sft_qwen2_5_vl_3b"
    config.data.max_pixels = 100_352  # 128 tokens of 28 x 28
    config.data.batch_size = 512
    config.algorithm.balance = "classes"
    config.optimizer.update(accumulate=64, schedule="cosine", warmup_steps=6)  # 3 % of 197
    return config
