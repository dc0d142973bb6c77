"""A config becomes a judge, or one clear line."""

from __future__ import annotations

import pytest
from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.rewards import JUDGES
from turnwise_jax.rewards.judges import (
    CachedJudge,
    Counts,
    JudgeStats,
    OpenAIJudge,
    Request,
    RuleJudge,
    make_judge,
    misplaced_rule,
)

EVERY_FIELD = {
    "kind": "rule",
    "url": "http://127.0.0.1:8000/v1",
    "model": "some-model",
    "api_key_env": None,
    "concurrency": 3,
    "timeout": 9.0,
    "retries": 1,
    "backoff": 0.5,
    "max_wait": 30.0,
    "give_up_after": 7,
    "max_tokens": 99,
    "levels": 3,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    "cache": "",
}


def test_one_config_serves_every_kind():
    with make_judge(EVERY_FIELD) as judge:
        assert isinstance(judge, RuleJudge)
        assert judge.levels == 3
    with make_judge(EVERY_FIELD | {"kind": "openai"}) as judge:
        assert isinstance(judge, OpenAIJudge)
        assert (judge.name, judge.levels, judge.client.timeout) == ("some-model", 3, 9.0)
        assert (judge.client.retries, judge.client.backoff, judge.client.max_wait) == (1, 0.5, 30.0)
        assert judge.client.give_up_after == 7
        seen = judge.seen(Request("quality"))
    assert seen["max_tokens"] == 99
    assert seen["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_config_dict_serves_too():
    with make_judge(ConfigDict(EVERY_FIELD | {"kind": "openai"})) as judge:
        assert judge.seen(Request("quality"))["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_cache_is_put_before_any_judge(tmp_path):
    path = tmp_path / "run" / "judge.jsonl"
    with make_judge({"kind": "rule", "cache": str(path)}) as judge:
        assert isinstance(judge, CachedJudge)
        assert judge.path == path
        assert judge.ask([Request("quality", answer="red", reply="red")] * 2) == [4.0, 4.0]
        assert len(judge) == 1


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        ({}, "judge.kind", "one of rule, openai"),
        ({"kind": "oracle"}, "judge.kind", "got 'oracle'"),
        ({"kind": "rule", "modell": "x"}, "judge.modell", "unknown; known are api_key_env"),
        ({"kind": "openai", "model": "m"}, "judge.url", "needed for kind 'openai'"),
        ({"kind": "openai", "url": "http://h/v1", "model": ""}, "judge.model", "needed"),
        ({"kind": "rule", "levels": 2}, "judge.levels", "3 or 5"),
    ],
)
def test_what_cannot_be_used_is_refused(config, field, message):
    with pytest.raises(InputError, match=message) as caught:
        make_judge(config)
    assert caught.value.field == field


@pytest.mark.parametrize("kind", JUDGES)
def test_every_judge_can_be_cached(kind, tmp_path):
    config = EVERY_FIELD | {"kind": kind}
    with make_judge(config) as judge:
        one, other = Request("quality", reply="a"), Request("quality", reply="b")
        assert isinstance(judge.name, str)
        assert judge.seen(one) == judge.seen(one)
        assert judge.seen(one) != judge.seen(other)
        assert judge.ask([], on_answer=print) == []


def test_stats_of_batches_add():
    one = JudgeStats(quality=Counts(5, 2, 1, 3), seconds=1.5)
    both = one + JudgeStats(quality=Counts(1, 0, 0, 0), repetition=Counts(4, 4, 0, 0), seconds=0.5)
    assert both.total == Counts(asked=10, cached=6, failed=1, retried=3)
    assert both.seconds == 2.0
    assert both.quality == Counts(6, 2, 1, 3)
    assert both.repetition == Counts(4, 4, 0, 0)


@pytest.mark.parametrize(
    ("kind", "answers", "told"),
    [
        ("rule", ["A red circle appears.", "The ring turns pink."], ""),
        ("rule", [], ""),
        ("openai", ["She cuts the onion."], ""),
        ("rule", ["A red ring appears.", *["She cuts it."] * 2], "1 of 2 reference answers"),
    ],
)
def test_the_rule_judge_is_for_the_embedded_world(kind, answers, told):
    warning = misplaced_rule(kind, answers)
    assert told in warning
    assert bool(warning) == bool(told)
    assert ("--config.judge.kind=openai" in warning) == bool(told)
