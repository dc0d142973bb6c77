"""What a configuration may hold; everything else is refused before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.data import DATASETS
from turnwise_jax.data.reply_styles import STYLES
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import JUDGES
from turnwise_jax.rewards.pauc import ON_FAILURE
from turnwise_jax.rollout.replay import DRAWS, TIERS, tier_capacities
from turnwise_jax.train.config import algorithm_settings, declared, reward_settings

CHOICES = {
    "policy.dtype": ("float32", "bfloat16"),
    "policy.param_dtype": ("float32", "bfloat16"),
    "policy.frozen_dtype": ("same", "float32", "bfloat16"),
    "policy.replies": tuple(STYLES),
    "policy.remat": ("none", "dots", "full"),
    "data.source": tuple(DATASETS),
    "data.on_bad_record": ("raise", "skip"),
    "optimizer.moments_dtype": ("float32", "bfloat16"),
    "optimizer.schedule": ("constant", "cosine"),
    "replay.draw": DRAWS,
    "judge.kind": tuple(JUDGES),
    "reward.on_failure": ON_FAILURE,
}
AT_LEAST = {
    "run.seed": 0,
    "run.steps": 0,
    "run.epochs": 1,
    "run.checkpoint_every": 1,
    "run.keep_checkpoints": 1,
    "run.validate_every": 1,
    "policy.logprob_chunk": 1,
    "policy.lora.rank": 0,
    "data.batch_size": 1,
    "data.limit": 0,
    "data.held_out": 0,
    "data.frames": 1,
    "data.max_pixels": 0,
    "data.workers": 0,
    "data.keep_mb": 0,
    "data.features_mb": 0,
    "shapes.rollout_buckets": 1,
    "shapes.row_buckets": 1,
    "optimizer.warmup_steps": 0,
    "optimizer.weight_decay": 0,
    "optimizer.b1": 0,
    "optimizer.b2": 0,
    "optimizer.accumulate": 1,
    "optimizer.inner_epochs": 1,
    "mesh.data": 1,
    "mesh.fsdp": 1,
    "mesh.tensor": 1,
    "hosts.count": 0,
    "hosts.index": 0,
    "hosts.timeout": 1,
    "compile.frames": 0,
    "compile.turns": 1,
    "compile.turn_frames": 0,
    "compile.text": 1,
    "compile.turn_text": 1,
    "compile.sound": 0,
    "rollout.group_size": 1,
    "rollout.top_k": 0,
    "rollout.max_new_tokens": 1,
    "rollout.ahead": 0,
    "rollout.show_at": 0,
    "reward.quality": 0,
    "reward.repetition": 0,
    "reward.out_of_window": 0,
    "reward.shared_prefix": 0,
    "reward.omega": 0,
    "reward.prefix_chars": 1,
    **dict.fromkeys(("reward.timing", "reward.correctness", "reward.efficiency"), 0),
    **dict.fromkeys(("reward.slack", "reward.think_tokens"), 0),
    **dict.fromkeys(("reward.window", "reward.think_step", "reward.reply_step"), 1),
    "reward.max_replies": 1,
    **dict.fromkeys(("reward.turn_f1", "reward.rubric"), 0),
    **dict.fromkeys(("reward.accuracy", "reward.format", "reward.self_consistency"), 0),
    "reward.stepwise": 0,
    "replay.samples": 0,
    "replay.capacity": 3,
    "replay.minimum": 1,
    "replay.max_age": 0,
    "replay.window": 1,
    "replay.keep_mb": 0,
    "hints.kl_at_most": 0,
    "hints.min_history": 1,
    "hints.zero_streak": 0,
}
ABOVE_ZERO = (
    *("policy.lora.alpha", "data.cache_gb"),
    *("optimizer.learning_rate", "optimizer.clip_norm", "optimizer.eps"),
    *("rollout.temperature", "rollout.top_p", "replay.temperature", "reward.tolerance"),
)
AT_MOST_ONE = ("rollout.top_p", "rollout.ahead", "rollout.show_at", "reward.omega")
BELOW_ONE = ("data.held_out", "optimizer.b1", "optimizer.b2")
MAX_SEED = 2**32 - 1


def validate(config: ConfigDict) -> None:
    """Refuse fields that are not declared and values that cannot work, a run without its files too.

    Raises:
      InputError: names the field and says what is allowed.
    """
    check_fields(config)
    _require(config.policy.checkpoint != "", "policy.checkpoint", "must name a directory")
    _require(
        config.data.path != "" or config.data.root != "",
        "data.path",
        "must name a data file, or data.root the folder that holds it",
    )


def check_fields(config: ConfigDict) -> None:
    """:func:`validate` without asking for a checkpoint and data."""
    settings = algorithm_settings(config)
    supervised = config.algorithm.name == "sft"
    if "reward" in config and "kind" in config.reward:
        _check_reward(config, settings)
    defaults = flatten(declared(config).to_dict())
    given = flatten(config.to_dict())
    _check_names(given, defaults)
    for field, value in given.items():
        _check_type(field, value, defaults[field])
        _check_value(field, value)
    _check_balance(given)
    _check_rows(given, supervised)
    _check_replay(given)
    _check_hosts(given)
    _check_lengths(given)


def _check_reward(config: ConfigDict, settings: Any) -> None:
    """A reward without prefix scores gives a trajectory one advantage and no turn its own."""
    module, _ = reward_settings(config)
    kind = config.reward.kind
    _require(
        module.PREFIX_SCORES or not settings.prefix_scores,
        "reward.kind",
        f"{kind!r} has no prefix scores, which turn-level credit is made of; use grpo, or "
        "algorithm.credit=shared",
    )


def _check_balance(given: Mapping[str, Any]) -> None:
    _require(
        given.get("algorithm.balance", "none") == "none"
        or given["policy.replies"] != "thinkstream",
        "algorithm.balance",
        "needs replies whose first tokens tell silence from speech; thinkstream begins with a "
        "think block",
    )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        out.update(flatten(value, name + ".") if isinstance(value, dict) else {name: value})
    return out


def _check_names(given: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    for field in given:
        _require(field in declared, field, "is not a field of this kind of run")
    for field in declared:
        _require(field in given, field, "is missing")


def _check_type(field: str, value: Any, default: Any) -> None:
    kinds: Any = type(default)
    if kinds is float:
        kinds = (int, float)
    elif kinds is tuple:
        kinds = (tuple, list)
    fits = isinstance(value, kinds) and (isinstance(default, bool) or not isinstance(value, bool))
    _require(fits, field, f"must be like {default!r}, is {value!r}")


def _check_value(field: str, value: Any) -> None:
    if isinstance(value, float):
        _require(math.isfinite(value), field, f"must be finite, is {value}")
    if field in CHOICES:
        allowed = CHOICES[field]
        _require(value in allowed, field, f"is {value!r}; allowed: {', '.join(allowed)}")
    if field in AT_LEAST:
        _require(value >= AT_LEAST[field], field, f"must be at least {AT_LEAST[field]}")
    _require(field not in ABOVE_ZERO or value > 0, field, "must be above 0")
    _require(field not in AT_MOST_ONE or value <= 1, field, "must be at most 1")
    _require(field not in BELOW_ONE or value < 1, field, "must be below 1")
    _require(field != "run.seed" or value <= MAX_SEED, field, "must fit 32 bits")


def _check_rows(given: Mapping[str, Any], supervised: bool) -> None:
    """A batch's rows must come apart into equal micro-batches and equal shares of devices."""
    fresh = given["data.batch_size"] * given.get("rollout.group_size", 1)
    rows = fresh + given["data.batch_size"] * given.get("replay.samples", 0)
    parts = given["mesh.data"] * given["mesh.fsdp"]
    _require(
        rows == fresh or fresh % parts == 0,
        "rollout.group_size",
        f"must make of {fresh} fresh rows equal parts for {parts} devices",
    )
    shared = f" into parts that {parts} devices can share" if parts > 1 else ""
    _require(
        rows % (given["optimizer.accumulate"] * parts) == 0,
        "optimizer.accumulate",
        f"must divide the {rows} rows of a batch{shared}",
    )
    _require(
        not supervised or given["optimizer.inner_epochs"] == 1,
        "optimizer.inner_epochs",
        "sft makes one update per batch",
    )


def _check_replay(given: Mapping[str, Any]) -> None:
    if "replay.tiers" not in given:
        return
    tiers = given["replay.tiers"]
    shares = len(tiers) == 3 and all(isinstance(x, int | float) and x > 0 for x in tiers)
    _require(
        shares and math.isclose(sum(tiers), 1.0),
        "replay.tiers",
        f"must be three shares above 0 that add to 1, is {tuple(tiers)}",
    )
    room = tier_capacities(given["replay.capacity"], tiers)[TIERS.index("hard")]
    _require(
        given["replay.minimum"] <= room,
        "replay.minimum",
        f"must not be above {room}, what the hard tier of replay.capacity holds: all samples are "
        "in it while prompts earn the same",
    )


def _check_hosts(given: Mapping[str, Any]) -> None:
    count = given["hosts.count"]
    _require(given["hosts.index"] < max(count, 1), "hosts.index", "must be below hosts.count")
    _require(
        count < 2 or given["hosts.coordinator"].rpartition(":")[2].isdigit(),
        "hosts.coordinator",
        "must be HOST:PORT of process 0",
    )


def _check_lengths(given: Mapping[str, Any]) -> None:
    for field in ("shapes.rollout_lengths", "shapes.row_lengths"):
        lengths = tuple(given.get(field, ()))
        whole = all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in lengths)
        _require(
            whole and all(small < large for small, large in pairwise(lengths)),
            field,
            f"must be whole numbers above 0 in rising order, is {lengths}",
        )


def _require(condition: bool, field: str, message: str) -> None:
    if not condition:
        raise InputError(message, field=field)
