"""Every configuration field, declared once, with the papers' values as defaults.

A file under ``configs/`` calls :func:`rl_config` or :func:`sft_config`, changes what its experiment
changes and returns the result; the command line overrides single fields
(``--config.optimizer.learning_rate=1e-5``) and refuses names that are not declared here.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import judge_fields


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
            "remat": "full",  # "none" or "full": recompute a decoder layer in the backward pass
            "logprob_chunk": 8192,  # vocabulary entries per block of the log-prob kernel
        },
        "data": {
            "source": "mmduet2_rl",
            "path": "",
            "user_turns": "",  # companion JSON; empty: found beside `path`
            "root": "",  # folder that image and video paths are relative to
            "on_bad_record": "raise",  # or "skip": counted and listed in the run's report
            "shuffle": False,
            "batch_size": 8,
            "workers": 2,  # decoding threads
        },
        "shapes": {
            # Static shapes are measured from the data before the first step; these say how many.
            "rollout_buckets": 1,  # contexts up to the longest, half of it, a quarter, ...
            "row_buckets": 3,  # training rows with all, half, a quarter of the sampled tokens
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
            "accumulate": 1,  # micro-batches per update; does not change the gradient
            "inner_epochs": 1,  # updates per batch of rollouts
        },
        "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
    }


def rl_config(algorithm: str = "turnwise") -> ConfigDict:
    """Defaults of RL: the TurnWise paper's section 4.1 where it speaks, MMDuet2's recipe elsewhere.

    Args:
      algorithm: a key of ``ALGORITHMS`` other than ``"sft"``.
    """
    config = _shared()
    config["algorithm"] = {"name": algorithm, **_settings(algorithm)}
    config["rollout"] = {
        "group_size": 4,
        "temperature": 1.2,
        "top_k": 10,
        "top_p": 1.0,
        "max_new_tokens": 100,
    }
    config["reward"] = {
        "quality": 3.0,
        "repetition": 2.0,
        "out_of_window": 0.5,
        "shared_prefix": 2.0,
        "omega": 0.5,
        "prefix_chars": 50,
    }
    config["judge"] = judge_fields()
    return ConfigDict(config)


def sft_config() -> ConfigDict:
    """Defaults of supervised fine-tuning (paper 4.1: one epoch, 1e-5, vision tower frozen)."""
    config = _shared()
    config["algorithm"] = {"name": "sft", **_settings("sft")}
    config["data"]["source"] = "mmduet2_sft"
    config["data"]["shuffle"] = True
    config["optimizer"]["learning_rate"] = 1e-5
    return ConfigDict(config)


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
                f"{name} has no such setting; choose the algorithm in the config file, as in "
                f"--config=configs/turnwise/streamworld.py:{name}",
                field=f"algorithm.{field}",
            )
    settings = ALGORITHMS[name].Settings(**fields)
    try:
        settings.check()
    except ValueError as error:
        raise InputError(str(error), field="algorithm") from error
    return settings


def validate(config: ConfigDict) -> None:
    """Refuse values that cannot work before anything is loaded.

    Raises:
      InputError: names the field and says what is allowed.
    """
    algorithm_settings(config)
    positive = [
        *("data.batch_size", "optimizer.accumulate", "optimizer.inner_epochs"),
        *("run.checkpoint_every", "run.keep_checkpoints", "policy.logprob_chunk"),
        *("shapes.row_buckets", "shapes.rollout_buckets"),
        *("mesh.data", "mesh.fsdp", "mesh.tensor"),
    ]
    if "rollout" in config:
        positive += ["rollout.group_size", "rollout.max_new_tokens"]
        _require(config.rollout.temperature > 0, "rollout.temperature", "must be above 0")
        _require(0 < config.rollout.top_p <= 1, "rollout.top_p", "must be in (0, 1]")
        _require(config.rollout.top_k >= 0, "rollout.top_k", "must be 0 (off) or more")
        _require(0 <= config.reward.omega <= 1, "reward.omega", "must be in [0, 1]")
    for name in positive:
        section, field = name.split(".")
        _require(config[section][field] >= 1, name, "must be at least 1")
    _require(config.policy.checkpoint != "", "policy.checkpoint", "must name a directory")
    _require(config.data.path != "", "data.path", "must name a data file")
    _require(config.run.steps >= 0, "run.steps", "must be 0 (whole epochs) or more")
    _choice(config.policy.remat, "policy.remat", ("none", "full"))
    _choice(config.policy.dtype, "policy.dtype", ("float32", "bfloat16"))
    _choice(config.policy.param_dtype, "policy.param_dtype", ("float32", "bfloat16"))
    _choice(config.data.on_bad_record, "data.on_bad_record", ("raise", "skip"))
    _choice(config.optimizer.schedule, "optimizer.schedule", ("constant", "cosine"))
    _require(config.optimizer.learning_rate > 0, "optimizer.learning_rate", "must be above 0")
    _require(config.optimizer.clip_norm > 0, "optimizer.clip_norm", "must be above 0")
    rows = config.data.batch_size * (config.rollout.group_size if "rollout" in config else 1)
    parts = config.mesh.data * config.mesh.fsdp
    _require(
        rows % (config.optimizer.accumulate * parts) == 0,
        "optimizer.accumulate",
        f"must divide the {rows} rows of a batch"
        + (f" into parts that {parts} devices can share" if parts > 1 else ""),
    )
    _require(
        config.algorithm.name != "sft" or config.optimizer.inner_epochs == 1,
        "optimizer.inner_epochs",
        "sft makes one update per batch",
    )


def _require(condition: bool, field: str, message: str) -> None:
    if not condition:
        raise InputError(message, field=field)


def _choice(value: str, field: str, allowed: tuple[str, ...]) -> None:
    _require(value in allowed, field, f"is {value!r}; allowed: {', '.join(allowed)}")
