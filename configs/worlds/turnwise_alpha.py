"""How strongly to correct the credit: the paper's Table 3 in the embedded world, over three seeds.

    turnwise study --config=configs/worlds/turnwise_alpha.py

TurnWise with alpha 0, 0.25, 0.5, 0.75 and 1 (eq. 5), each warmed up over the first tenth of the
updates. Alpha 0 is shared credit with the turn-mean loss, alpha 1 is TurnWise. World, start and all
else are those of ``turnwise_ablation.py``. Leaves tables, pictures and, under ``analysis``, the
dynamics of training and the redistribution of credit in runs/turnwise_alpha.

49 minutes on two CPU cores that had other work as well. Expected:
docs/turnwise_study.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.ablation_config import BASE, START, ablation_config
from turnwise_jax.train.config import rl_config, sft_config

ALPHAS = {"none": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "full": 1.0}
UPDATES = 50  # of each RL run


def get_config() -> ConfigDict:
    config = ablation_config(
        start=_start(),
        runs={name: _variant(alpha) for name, alpha in ALPHAS.items()},
        labels={"start": "SFT", **{name: f"alpha {alpha:g}" for name, alpha in ALPHAS.items()}},
        tables={"alpha": tuple(ALPHAS)},
    )
    config.dir = "runs/turnwise_alpha"
    config.world.update(kind="streamworld", name="redundant", train=250, test=50)
    config.base.update(family="qwen2_5_vl", vocab_size=512, pixels=56)
    config.base.model.update(text_initializer_range=0.1, vision_fullatt_block_indexes=(0, 1))
    config.evaluation.update(new_tokens=12, controls=("full",))
    return config


def _start() -> ConfigDict:
    config = sft_config()
    config.policy.update(checkpoint=BASE, freeze=())
    config.optimizer.update(learning_rate=4e-3, warmup_steps=30, schedule="cosine", b2=0.99)
    config.data.batch_size = 16
    config.run.steps = 400
    return _small(config)


def _variant(alpha: float) -> ConfigDict:
    config = rl_config("turnwise")
    config.policy.checkpoint = START
    config.algorithm.alpha = alpha
    config.optimizer.update(learning_rate=5e-4, warmup_steps=5, b2=0.99)
    config.rollout.max_new_tokens = 12
    config.run.steps = UPDATES
    return _small(config)


def _small(config: ConfigDict) -> ConfigDict:
    """What suits a tiny model on a CPU: float32, nothing recomputed."""
    config.policy.update(dtype="float32", remat="none")
    config.data.shuffle = True
    config.shapes.row_buckets = 1
    config.run.checkpoint_every = 50
    return config
