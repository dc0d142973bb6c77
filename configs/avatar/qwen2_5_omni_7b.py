"""The on-policy part of AVATAR on Qwen2.5-Omni-7B: GRPO at that paper's setting.

    turnwise train --config=configs/avatar/qwen2_5_omni_7b.py \
        --config.policy.checkpoint=SFT_DIR --config.data.path=rl.parquet --config.data.root=DIR \
        --config.judge.url=http://HOST:8000/v1 --config.run.dir=runs/avatar_7b

AVATAR's replay buffer, hints, temporal shaping and rewards are not here: this is plain GRPO, its
reward is eq. 1 of TurnWise. From the paper: 32 frames, groups of 8. From its code where the paper
is silent: LoRA of rank 8 and alpha 32, learning rate 5e-7, temperature 1, top-k 50, 2,048 new
tokens, 50,176 pixels a frame, 8 rollouts an update. Not from it: no KL term (the code has 0.1), no
warm-up, adapters on the text decoder alone, 30 seconds of sound assumed.
Hardware: v5e:2x2 (4 chips) with --config.mesh.fsdp=4, 6.7 of 15.75 GiB a chip as compiled ahead of
time (docs/compile.md). Not timed on a TPU.
Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import rl_config


def get_config() -> ConfigDict:
    config = rl_config("grpo")
    config.run.dir = "runs/avatar_qwen2_5_omni_7b"
    config.judge.kind = "openai"
    config.data.batch_size = 1
    config.optimizer.update({"learning_rate": 5e-7, "accumulate": 2})
    config.policy.lora.update({"rank": 8, "alpha": 32.0})
    config.policy.freeze = ("vision", "audio")
    config.policy.frozen_dtype = "bfloat16"
    config.rollout.update(
        {"group_size": 8, "temperature": 1.0, "top_k": 50, "max_new_tokens": 2048}
    )
    config.compile.update(
        {"model": "qwen2_5_omni/7b", "frames": 32, "frame": (8, 8), "video": True}
    )
    config.compile.update({"turns": 1, "turn_frames": 0, "text": 300, "sound": 30.0})
    return config
