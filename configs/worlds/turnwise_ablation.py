"""TurnWise's components in the embedded world: the paper's Table 2, over three seeds.

    turnwise study --config=configs/worlds/turnwise_ablation.py

One supervised start, and from it four kinds of RL that differ in two switches: credit shared by all
turns of a trajectory or turn-level (eq. 5), and a loss that is a mean over a trajectory's tokens or
over its turns (eq. 7). The world is "redundant": windows are long, events follow each other
closely, and the teacher of the start says most answers twice, so that repetition stands next to
success and a reply out of place is often paid for by another one of the same trajectory. Leaves
tables, pictures and, under ``analysis``, training dynamics and credit redistribution in
runs/turnwise_ablation.

46 minutes on two CPU cores that had other work as well. Expected:
docs/turnwise_study.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.ablation_config import START
from turnwise_jax.study.small import small_rl, streaming_ablation

UPDATES = 60  # of each RL run


def get_config() -> ConfigDict:
    config = streaming_ablation(
        runs={
            "grpo": _variant("shared", "trajectory_token"),
            "turn_mean": _variant("shared", "turn"),
            "credit": _variant("turn", "trajectory_token"),
            "turnwise": _variant("turn", "turn"),
        },
        labels={
            "grpo": "GRPO",
            "turn_mean": "GRPO + turn mean",
            "credit": "GRPO + turn credit",
            "turnwise": "TurnWise",
        },
        tables={"components": ("grpo", "turn_mean", "credit", "turnwise")},
        controls=("grpo", "turnwise"),
    )
    config.dir = "runs/turnwise_ablation"
    return config


def _variant(credit: str, reduction: str) -> ConfigDict:
    """RL from the common start; all variants make the same rollouts' worth of updates."""
    config = small_rl("turnwise", START, UPDATES)
    config.algorithm.update(credit=credit, reduction=reduction)
    return config
