"""Published settings that several files under ``configs/`` share."""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.qa import STAGE_WEIGHTS
from turnwise_jax.train.config import avatar_config

SIZES = ("3b", "7b")


def avatar_stage(size: str, stage: str) -> ConfigDict:
    """A stage of AVATAR's RL on Qwen2.5-Omni; its facts are in ``configs/avatar``.

    Args:
      size: of the model, "3b" or "7b".
      stage: "1" visual reasoning, "2" audio-visual, "3" localisation.

    Raises:
      InputError: there is no such model or stage.
    """
    stages = {str(number): weights for number, weights in STAGE_WEIGHTS["text"].items()}
    for what, given, known in (("size", size, SIZES), ("stage", stage, tuple(stages))):
        if given not in known:
            raise InputError(f"no {what} {given!r}; known: {', '.join(known)}", field="config")
    config = avatar_config()
    config.run.dir = f"runs/avatar_qwen2_5_omni_{size}_stage{stage}"
    config.reward.update(stages[stage]._asdict())
    config.judge.update({"kind": "openai", "model": "OpenGVLab/InternVL3-2B"})
    config.data.update({"batch_size": 1, "max_pixels": 50_176})
    config.optimizer.update({"warmup_steps": 50, "accumulate": 2})
    config.policy.lora.update({"rank": 8, "alpha": 32.0})
    config.policy.freeze = ("vision", "audio")
    config.policy.frozen_dtype = "bfloat16"
    config.compile.update({"model": f"qwen2_5_omni/{size}", "frames": 32, "video": True})
    config.compile.update({"turns": 1, "turn_frames": 0, "text": 300, "sound": 30.0})
    return config
