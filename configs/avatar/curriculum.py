"""AVATAR's four stages on Qwen2.5-Omni in one command: cold start, then three stages of RL.

    turnwise train --config=configs/avatar/curriculum.py --config.dir=runs/avatar_7b \
        --config.stages.cold_start.policy.checkpoint=Qwen2.5-Omni-7B \
        --config.stages.cold_start.data.path=cold_start.jsonl \
        --config.stages.visual.data.path=visual.jsonl \
        --config.stages.audio_visual.data.path=audio_visual.jsonl \
        --config.stages.localisation.data.path=localisation.jsonl \
        --config.stages.localisation.judge.url=http://HOST:8000/v1

`curriculum.py:3b` is the same on the 3B model. Records are JSON lines of ``data.source`` "qa",
those of the cold start with a ``response``, the others with a ``hint`` where there is one
(`turnwise hints`). From the paper (figure 3): the stages and their order; its data are Video-R1-CoT
and TPO for the cold start, then Video-R1, then AVQA and AVE, then AVSBench. Stages 1 to 3 are set
as in `qwen2_5_omni_7b.py`. The paper does not say how the cold start is trained: the same adapters
here, one epoch, 32 rows an update, learning rate 1e-4 with cosine decay.
Hardware: as for a single stage, see `qwen2_5_omni_7b.py`. Not timed on a TPU.
Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import sft_config
from turnwise_jax.train.curriculum import curriculum_config
from turnwise_jax.train.recipes import avatar_stage

STAGES = {"visual": "1", "audio_visual": "2", "localisation": "3"}


def get_config(size: str = "7b") -> ConfigDict:
    stages = {name: avatar_stage(size, number) for name, number in STAGES.items()}
    config = curriculum_config({"cold_start": cold_start(stages["visual"]), **stages})
    config.dir = f"runs/avatar_qwen2_5_omni_{size}"
    return config


def cold_start(rl: ConfigDict) -> ConfigDict:
    """Supervised fine-tuning of what RL then trains on."""
    config = sft_config()
    config.policy.update(rl.policy)
    config.compile.update(rl.compile)
    config.data.update({"source": "qa", "batch_size": 32, "max_pixels": rl.data.max_pixels})
    config.optimizer.update({"learning_rate": 1e-4, "schedule": "cosine", "accumulate": 4})
    return config
