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

from turnwise_jax.study.ablation_config import START
from turnwise_jax.study.small import small_rl, streaming_ablation

ALPHAS = {"none": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "full": 1.0}
UPDATES = 50  # of each RL run


def get_config() -> ConfigDict:
    config = streaming_ablation(
        runs={name: _variant(alpha) for name, alpha in ALPHAS.items()},
        labels={name: f"alpha {alpha:g}" for name, alpha in ALPHAS.items()},
        tables={"alpha": tuple(ALPHAS)},
        controls=("full",),
    )
    config.dir = "runs/turnwise_alpha"
    return config


def _variant(alpha: float) -> ConfigDict:
    config = small_rl("turnwise", START, UPDATES)
    config.algorithm.alpha = alpha
    return config
