"""TurnWise on Qwen3-VL-4B at the paper's setting, which is that of qwen2_5_vl_3b.py.

A token of this model covers 32 x 32 pixels instead of 28 x 28, so that 128 of them are more pixels.

    turnwise train --config=configs/turnwise/qwen3_vl_4b.py \
        --config.policy.checkpoint=SFT_DIR --config.data.path=rl.parquet --config.data.root=DIR \
        --config.judge.url=http://HOST:8000/v1 --config.run.dir=runs/turnwise_4b

``...qwen3_vl_4b.py:grpo`` is the baseline with one advantage per trajectory.
Hardware: v5e:4x4 (16 chips) with --config.mesh.fsdp=16, 12.4 of 15.75 GiB a chip as compiled ahead
of time (docs/compile.md). Not timed on a TPU.
Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import rl_config


def get_config(algorithm: str = "turnwise") -> ConfigDict:
    config = rl_config(algorithm)
    config.run.dir = f"runs/{algorithm}_qwen3_vl_4b"
    config.data.max_pixels = 131_072  # 128 tokens of 32 x 32
    config.judge.kind = "openai"
    config.optimizer.accumulate = 2
    config.compile.model = "qwen3_vl/4b"
    return config
