"""Judges answer the questions of the rewards that need reading (`protocol.Request`).

``protocol``  requests, what a judge is, how its work is counted
``rule``      deterministic key-point rule for the embedded world
``openai``    a language model behind an OpenAI-compatible endpoint
``client``    its calls: threads, retries, when to give up; the hint teacher's too
``prompts``   its instructions and the reading of its answers
``cache``     keeps any judge's answers in a file

A new judge is one file and one line in ``JUDGES``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.cache import CachedJudge
from turnwise_jax.rewards.judges.openai import OpenAIJudge
from turnwise_jax.rewards.judges.protocol import (
    CacheableJudge,
    Counts,
    Judge,
    JudgeStats,
    Request,
)
from turnwise_jax.rewards.judges.rule import RuleJudge, of_other_worlds

__all__ = [
    "JUDGES",
    "CacheableJudge",
    "CachedJudge",
    "Counts",
    "Judge",
    "JudgeStats",
    "OpenAIJudge",
    "Request",
    "RuleJudge",
    "judge_fields",
    "make_judge",
    "misplaced_rule",
]

JUDGES = {
    "rule": RuleJudge,
    "openai": OpenAIJudge,
}


def judge_fields() -> dict[str, Any]:
    """The fields of a config's ``judge`` section with their defaults (paper 4.1: gpt-oss-20b)."""
    return {
        "kind": "rule",  # "rule": embedded world; "openai": any OpenAI-compatible endpoint
        "url": "http://127.0.0.1:8000/v1",
        "model": "openai/gpt-oss-20b",
        "api_key_env": "",  # environment variable that holds the key
        "concurrency": 32,
        "timeout": 60.0,  # seconds
        "retries": 3,
        "max_tokens": 2048,
        "cache": "",  # JSONL file of answers
    }


def make_judge(
    config: Mapping[str, Any], picture: Callable[[str], bytes] | None = None
) -> RuleJudge | OpenAIJudge | CachedJudge:
    """The judge of a config.

    ``kind`` names it in ``JUDGES``; ``cache``, a path, wraps it in a `CachedJudge`; every other
    field is an argument of its class. So that one config can hold the settings of every kind,
    fields of *other* kinds are passed over, and None or an empty string counts as not given. A
    field that no judge has, an unknown kind, a missing or impossible value: InputError.

    ``picture`` gives judges that look at frames the JPEG file of one by its name (`Request`).
    """
    fields = {name: _plain(config[name]) for name in config}
    kind, cache = fields.pop("kind", None), fields.pop("cache", None)
    if kind not in JUDGES:
        raise InputError(f"must be one of {', '.join(JUDGES)}, got {kind!r}", field="judge.kind")
    known = {name: _arguments(judge) for name, judge in JUDGES.items()}
    for name in fields:
        if not any(name in arguments for arguments in known.values()):
            every = sorted({"kind", "cache"}.union(*known.values()))
            raise InputError(f"unknown; known are {', '.join(every)}", field=f"judge.{name}")
    given = {n: v for n, v in fields.items() if n in known[kind] and v is not None and v != ""}
    for name, parameter in known[kind].items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise InputError(f"is needed for kind {kind!r}", field=f"judge.{name}")
    if picture is not None and "picture" in inspect.signature(JUDGES[kind]).parameters:
        given["picture"] = picture
    judge = JUDGES[kind](**given)
    return CachedJudge(judge, cache) if cache else judge


def misplaced_rule(kind: str, answers: Iterable[str], field: str = "--config.judge.kind") -> str:
    """A warning where the rule judge is to grade against answers of no embedded world, else "".

    Args:
      kind: of the judge.
      answers: the reference answers of all reply windows.
      field: with which another judge is chosen.
    """
    distinct = list(dict.fromkeys(answers))
    other = of_other_worlds(distinct) if kind == "rule" else []
    if not other:
        return ""
    return (
        f"the rule judge compares words and is made for the embedded world, but {len(other)} of "
        f"{len(distinct)} reference answers are not of it ({other[0]!r}); its grades of them mean "
        f"little: choose a language model with {field}=openai"
    )


def _arguments(judge: type) -> dict[str, inspect.Parameter]:
    """The parameters of `judge` that a config can hold."""
    parameters = inspect.signature(judge).parameters
    return {name: parameter for name, parameter in parameters.items() if name != "picture"}


def _plain(value: Any) -> Any:
    """`value` with mappings (a ConfigDict, say) as plain dicts."""
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return {name: _plain(value[name]) for name in value}
    return value
