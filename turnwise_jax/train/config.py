"""Every configuration field, declared once, with the papers' values as defaults.

``train/validate.py`` refuses values that cannot work.

A file under ``configs/`` calls :func:`rl_config` or :func:`sft_config`, changes what its experiment
changes and returns the result; the command line overrides single fields
(``--config.optimizer.learning_rate=1e-5``) and refuses names that are not declared here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.errors import InputError
from turnwise_jax.models.lora import DECODER
from turnwise_jax.rewards.judges import judge_fields
from turnwise_jax.rewards.qa import AnswerWeights
from turnwise_jax.rewards.streaming import STREAMING_REWARDS

EXAMPLES = {  # algorithm -> a config of it
    "turnwise": "configs/turnwise/qwen2_5_vl_3b.py",
    "grpo": "configs/turnwise/qwen2_5_vl_3b.py:grpo",
    "avatar": "configs/avatar/qwen2_5_omni_7b.py",
    "sft": "configs/sft/qwen2_5_vl_3b.py",
}
REPLIES = "plain"  # how silence and replies are written; or another of data.reply_styles


def _shared() -> dict[str, Any]:
    return {
        "run": {
            "dir": "runs/default",
            "seed": 0,
            "steps": 0,  # 0: `epochs` passes over the data, last partial batch dropped
            "epochs": 1,
            "checkpoint_every": 15,
            "keep_checkpoints": 2,
            "export": True,  # write a Hugging Face directory to <dir>/policy at the end
        },
        "policy": {
            "checkpoint": "",  # Hugging Face directory
            "dtype": "bfloat16",  # compute
            "param_dtype": "float32",  # master weights and moments
            "freeze": ("vision",),  # top-level parameter groups left untouched
            "frozen_dtype": "same",  # of untrained parameters; "bfloat16" halves a frozen base
            # Adapters on these projections are trained instead, all else is frozen; rank 0: none.
            "lora": {"rank": 0, "alpha": 16.0, "targets": DECODER},
            "remat": "full",  # recomputed backwards: "none", "full", or "dots", all but those
            "logprob_chunk": 8192,  # vocabulary entries per block of the log-prob kernel
        },
        "data": {
            "source": "mmduet2_rl",
            "path": "",  # empty: the one file of the source's format in `root`
            "user_turns": "",  # companion JSON; empty: found beside `path`
            "root": "",  # folder that image and video paths are relative to
            "limit": 0,  # train on the first so many records; 0: on all
            "frames": 32,  # of a question-answering record's clip, spread evenly over it
            "sound": True,  # and its audio track, if it has one
            "max_pixels": 0,  # of a frame as the policy sees it; 0: what the checkpoint says
            "on_bad_record": "raise",  # or "skip": counted and listed in the run's report
            "shuffle": False,
            "batch_size": 8,
            "workers": 2,  # decoding threads
            "keep_mb": 512,  # memory for decoded frames that later epochs need not decode again
            "cache_dir": "",  # the same on disk, for later runs and other processes too; "": none
            "cache_gb": 50.0,  # most 10^9 bytes there; what was used longest ago goes first
            # Memory for features that later epochs need not encode again, where towers are not
            # trained; 0: none. It should hold those of all data.
            "features_mb": 0,
        },
        "shapes": {
            # Static shapes are measured from the data before the first step; this says how many.
            "row_buckets": 3,  # training rows for all, half, a quarter of the length
            # Instead of halvings, the tokens that each bucket holds, as `turnwise shapes` chooses
            # them: of a row for sft, otherwise those that the policy samples in a rollout.
            "row_lengths": (),
        },
        "optimizer": {
            "learning_rate": 1e-6,
            "schedule": "constant",  # or "cosine": to zero over the run
            "warmup_steps": 0,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
            "b1": 0.9,
            "b2": 0.999,
            "eps": 1e-8,
            "moments_dtype": "float32",  # AdamW's two moments as they are kept
            "accumulate": 1,  # micro-batches per update; same gradient, less memory, faster on CPUs
            "inner_epochs": 1,  # updates per batch of rollouts
        },
        "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
        # Processes that share the run, one per host; batches, meshes and steps count all of them.
        "hosts": {
            "count": 1,  # 0: as many as a TPU pod, SLURM or MPI says, who then says the rest too
            "index": 0,  # which of them this is
            "coordinator": "",  # "host:port" of process 0
            "timeout": 60.0,  # seconds of silence after which a process counts as dead
        },
        # What `turnwise compile` assumes where no checkpoint or no data is given; nothing else
        # reads it. The defaults are the TurnWise paper's setting: about 10k tokens of context.
        "compile": {
            "model": "qwen2_5_vl/3b",  # family/size, a published architecture
            "frames": 90,  # of a prompt, all turns together
            # Tokens of a frame, high and wide; (): the most that `data.max_pixels` lets a frame
            # have that is up to twice as wide as high, without it (8, 16).
            "frame": (),
            "video": False,  # frames come in pairs that share their tokens, as a video's do
            "turns": 8,  # decisions; for sft, replies
            "turn_frames": 2,  # of each later turn; the rest is in the context
            "text": 800,  # other tokens of the context: instructions, question, past replies
            "turn_text": 16,  # other tokens of a later turn
            "sound": 0.0,  # seconds in the context
        },
    }


def rl_config(algorithm: str = "turnwise", reward: str = "pauc") -> ConfigDict:
    """Defaults of RL: the TurnWise paper's section 4.1 where it speaks, MMDuet2's recipe elsewhere.

    Args:
      algorithm: a key of ``ALGORITHMS`` other than ``"sft"``; ``"avatar"`` has the fields of
        :func:`avatar_config`.
      reward: a key of ``STREAMING_REWARDS``; AVATAR has a reward of its own.
    """
    if algorithm == "avatar":
        return avatar_config()
    config = _shared()
    config["policy"]["replies"] = REPLIES
    config["algorithm"] = {"name": algorithm, **_settings(algorithm)}
    config["rollout"] = {
        "group_size": 4,
        "temperature": 1.2,
        "top_k": 10,
        "top_p": 1.0,
        "max_new_tokens": 100,
        "ahead": 0,  # 1: sample the next batch while this one is judged, one batch off policy
        "desynchronised": False,  # no barrier after a turn: rollouts go on while others speak
        "show_at": 0.0,  # then, share of rows that wait before turns are shown; 0: one row
    }
    # Row buckets halve the sampled tokens only, rollout buckets the context.
    config["shapes"]["rollout_buckets"] = 1
    config["shapes"]["rollout_lengths"] = ()  # instead, most tokens of a whole rollout in each
    config["shapes"]["shared_context"] = True  # the update computes it once for all G rollouts
    config["reward"] = {"kind": reward, **_reward_kind(reward).Settings()._asdict()}
    config["judge"] = judge_fields()
    return ConfigDict(config).lock()


def avatar_config() -> ConfigDict:
    """Defaults of AVATAR: its authors' code where the paper gives no value (facts in its configs).

    Questions with an answer instead of streaming dialogues: other rewards, a replay buffer, hints.
    """
    config = _shared()
    config["data"]["source"] = "qa"
    config["optimizer"]["learning_rate"] = 5e-7
    config["algorithm"] = {"name": "avatar", **_settings("avatar")}
    config["rollout"] = {
        "group_size": 4,  # K_on: fresh samples of each prompt
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "max_new_tokens": 2048,
        "desynchronised": False,  # rows that have ended are left out while others go on
        "show_at": 0.0,  # of dialogues with further turns
    }
    config["shapes"]["rollout_buckets"] = 1
    config["shapes"]["rollout_lengths"] = ()  # instead, most tokens of a whole rollout in each
    config["replay"] = {
        "samples": 4,  # K_off: replayed samples for each prompt of a batch; 0: no replay
        "capacity": 10_000,  # samples
        "minimum": 10,  # samples in the buffer before any is drawn
        "tiers": (0.25, 0.35, 0.4),  # easy, medium, hard: shares of capacity, draw and prompts
        "draw": "priority",  # or "fifo", "uniform"
        "temperature": 1.0,  # of the priorities
        "max_age": 0,  # batches since a sample was fresh beyond which it is dropped; 0: none
        "window": 20,  # rewards of a prompt in its moving average
        "keep_mb": 512,  # memory for decoded media of replayed prompts; decoded again beyond
    }
    config["hints"] = {
        "use": True,
        "reward_at_most": 1.0,  # moving average; a well-formed wrong answer is worth 1
        "kl_at_most": 0.05,  # nats a token, policy from reference
        "min_history": 8,  # rewards of a prompt before its average counts as low
        "zero_streak": 3,  # samples in a row that earned no accuracy; 0: no such rule
    }
    config["reward"] = AnswerWeights()._asdict()
    config["judge"] = judge_fields()
    return ConfigDict(config).lock()


def sft_config() -> ConfigDict:
    """Defaults of supervised fine-tuning (paper 4.1: one epoch, 1e-5, vision tower frozen)."""
    config = _shared()
    config["policy"]["replies"] = REPLIES
    config["algorithm"] = {"name": "sft", **_settings("sft")}
    config["data"]["source"] = "mmduet2_sft"
    config["data"]["shuffle"] = True
    config["data"]["held_out"] = 0.0  # share of the records kept from training, for their loss
    config["run"]["validate_every"] = 100  # updates between two of it, beside the one at the end
    config["optimizer"]["learning_rate"] = 1e-5
    return ConfigDict(config).lock()


def _settings(algorithm: str) -> dict[str, Any]:
    if algorithm not in ALGORITHMS:
        raise InputError(
            f"unknown algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}",
            field="algorithm.name",
        )
    return ALGORITHMS[algorithm].Settings()._asdict()


def algorithm_settings(config: ConfigDict) -> Any:
    """The checked ``Settings`` of ``config.algorithm``."""
    fields = dict(config.algorithm)
    name = fields.pop("name")
    known = _settings(name)
    for field in fields:
        if field not in known:
            raise InputError(
                f"{name} has no such setting; choose the algorithm by the config file, for "
                f"instance --config={EXAMPLES[name]}",
                field=f"algorithm.{field}",
            )
    settings = ALGORITHMS[name].Settings(**fields)
    try:
        settings.check()
    except ValueError as error:
        raise InputError(str(error), field="algorithm") from error
    return settings


def declared(config: ConfigDict) -> ConfigDict:
    """The defaults of a run with this config's method and reward."""
    name = config.algorithm.name
    if name == "sft":
        return sft_config()
    return avatar_config() if name == "avatar" else rl_config(name, config.reward.kind)


def _reward_kind(kind: str) -> ModuleType:
    if kind not in STREAMING_REWARDS:
        raise InputError(
            f"is {kind!r}; allowed: {', '.join(STREAMING_REWARDS)}", field="reward.kind"
        )
    return STREAMING_REWARDS[kind]


def reward_settings(config: ConfigDict) -> tuple[ModuleType, Any]:
    """The kind of ``config.reward``, of a run on streaming dialogues, and its ``Settings``."""
    fields = dict(config.reward)
    kind = fields.pop("kind")
    module = _reward_kind(kind)
    known = module.Settings()._asdict()
    for field in fields:
        if field not in known:
            raise InputError(
                f"the reward {kind!r} has no such setting; choose the reward in the config file, "
                "as the files in configs/baselines do",
                field=f"reward.{field}",
            )
    return module, module.Settings(**fields)
