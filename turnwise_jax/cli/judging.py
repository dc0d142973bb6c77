"""The judge's flags, shared by commands that score text."""

from __future__ import annotations

from typing import Any

from absl import flags

from turnwise_jax.rewards.judges import JUDGES


def define_judge(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_enum("judge", "rule", sorted(JUDGES), "who grades replies", **at)
    flags.DEFINE_string("judge_url", "", "OpenAI-compatible endpoint, .../v1", **at)
    flags.DEFINE_string("judge_model", "", "the endpoint's model", **at)
    flags.DEFINE_string("judge_key_env", "", "environment variable that holds the API key", **at)
    flags.DEFINE_string("judge_cache", "", "JSONL file that keeps the endpoint's answers", **at)
    flags.DEFINE_integer("judge_concurrency", 32, "requests under way at once", **at)


def judge_fields(values: flags.FlagValues) -> dict[str, Any]:
    """The flags as the mapping that ``make_judge`` takes."""
    return {
        "kind": values.judge,
        "url": values.judge_url,
        "model": values.judge_model,
        "api_key_env": values.judge_key_env,
        "concurrency": values.judge_concurrency,
        "cache": values.judge_cache,
    }
