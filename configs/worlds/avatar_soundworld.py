"""AVATAR's ablations in the embedded audio-visual world: its tables 3 and 4 and its figure 5.

    turnwise study --config=configs/worlds/avatar_soundworld.py

Variants of AVATAR, each trained with three seeds from one supervised start, on clips of shapes that
sound. All variants generate the same number of rollouts: those that replay more make more updates
of equally many samples. A batch has 8 samples of each prompt, K_on fresh ones and K_off replayed
ones. Table "components" takes AVATAR apart, "shapes" varies the weights over an answer, "splits"
the share of replay. Leaves tables and pictures in runs/avatar_ablation.

Two and a half hours on two CPU cores that had other work as well. Expected: docs/avatar_study.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.ablation_config import START, ablation_config
from turnwise_jax.study.small import MODEL, small, small_start
from turnwise_jax.train.config import avatar_config

GENERATED = 3840  # rollouts of each run
PROMPTS = 8  # in a batch
PRACTICE = 96  # questions that RL trains on, so that each comes back several times
FRAMES = 6  # of a clip of 3 s
REPLY = 40  # tokens of an answer, at most


def get_config() -> ConfigDict:
    config = ablation_config(
        start=_start(),
        runs={
            "grpo": _variant(8, shape="uniform", hints=False),
            "tas": _variant(8, hints=False),
            "replay": _variant(4, shape="uniform", hints=False),
            "avatar_nohint": _variant(4, hints=False),
            "avatar": _variant(4),
            "decay": _variant(4, shape="linear_decay"),
            "incline": _variant(4, shape="linear_incline"),
            "uniform": _variant(4, shape="uniform"),
            "split_8_0": _variant(8),
            "split_6_2": _variant(6),
            "split_2_6": _variant(2),
        },
        labels={
            "start": "SFT",
            "grpo": "GRPO",
            "tas": "GRPO + TAS",
            "replay": "GRPO + replay",
            "avatar_nohint": "AVATAR, no hints",
            "avatar": "AVATAR",
            "decay": "linear decay",
            "incline": "linear incline",
            "uniform": "no shaping",
            "split_8_0": "8 fresh, 0 replayed",
            "split_6_2": "6 fresh, 2 replayed",
            "split_2_6": "2 fresh, 6 replayed",
        },
        tables={
            "components": ("grpo", "tas", "replay", "avatar_nohint", "avatar"),
            "shapes": ("avatar", "decay", "incline", "uniform"),
            "splits": ("avatar", "split_8_0", "split_6_2", "split_2_6"),
        },
    )
    config.dir = "runs/avatar_ablation"
    config.world.update(train=1200, test=100)
    config.base.model.update(MODEL, text_num_hidden_layers=3)
    config.evaluation.new_tokens = REPLY
    config.evaluation.controls = ("grpo", "avatar")
    return config


def _start() -> ConfigDict:
    return _clips(small_start(800, learning_rate=3e-3))


def _variant(fresh: int, *, shape: str = "u", hints: bool = True) -> ConfigDict:
    """AVATAR with ``fresh`` of the 8 samples of a prompt from the current policy."""
    config = _clips(small(avatar_config()))
    config.policy.update(checkpoint=START, freeze=("vision", "audio"))
    config.algorithm.tas_shape = shape
    config.hints.use = hints
    config.optimizer.update(learning_rate=5e-4, warmup_steps=5, b2=0.99)
    config.data.update(batch_size=PROMPTS, limit=PRACTICE)
    config.rollout.update(group_size=fresh, max_new_tokens=REPLY)
    config.replay.update(samples=8 - fresh, capacity=1000)
    config.run.steps = GENERATED // (PROMPTS * fresh)
    return config


def _clips(config: ConfigDict) -> ConfigDict:
    """What all runs have in common."""
    config.data.frames = FRAMES
    config.run.checkpoint_every = 50
    return config
