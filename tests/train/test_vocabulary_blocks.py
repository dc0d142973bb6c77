"""Whole programs of an update take the vocabulary in blocks: no array has actions times ids.

What a program holds is read from its text before XLA, forward and backward passes included.
"""

from __future__ import annotations

import json
import re

import pytest
import toy

from turnwise_jax.models.qwen2_5_vl import Config
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.config import rl_config

VOCAB, BLOCK = 1009, 97  # of no other size in the model
PROGRAMS = {
    "turnwise": {"update", "old_logprobs"},
    "grpo": {"update", "old_logprobs", "reference"},
    "avatar": {"update", "old_logprobs", "reference"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a config.json, which is all that a plan reads."""
    place = tmp_path_factory.mktemp("blocks")
    (place / "config.json").write_text(json.dumps(Config.tiny(VOCAB).to_hf()))
    return place


def plan(model, method: str, block: int) -> Plan:
    """Of two epochs over a batch of two prompts."""
    config = rl_config(method)
    config.compile.update({"frames": 6, "frame": (4, 4), "turns": 2, "text": 33})
    config.data.batch_size, config.rollout.group_size = 2, 2
    config.rollout.max_new_tokens = 13
    config.policy.update(checkpoint=str(model), logprob_chunk=block)
    config.optimizer.inner_epochs = 2
    if method == "grpo":
        config.algorithm.kl = 0.1
    if method == "avatar":
        config.compile.turns = 1
        config.replay.samples = 2
    return Plan.of(config, toy.layout())


def programs(made: Plan) -> dict[str, str]:
    wanted = PROGRAMS[made.config.algorithm.name]
    return {name: low.as_text() for name, low in made.lowerings() if name in wanted}


def others(text: str, size: int) -> set[tuple[int, ...]]:
    """What stands beside an axis of ``size`` in any array of a program, axes of 1 left out."""
    found = set()
    for digits in re.findall(r"tensor<((?:\d+x)+)[a-z]", text):
        shape = [int(axis) for axis in digits[:-1].split("x")]
        if size in shape:
            shape.remove(size)
            found.add(tuple(axis for axis in shape if axis > 1))
    return found


def sizes(made: Plan) -> tuple[int, int]:
    """(actions of all rows, width of the model); tokens of a row are neither."""
    rows, actions = made.batch.action_mask_NA.shape
    width = made.policy.config.text.hidden_size
    assert len({rows * actions, width, actions, made.batch.tokens_NT.shape[1]}) == 4
    return rows * actions, width


@pytest.mark.parametrize("method", PROGRAMS)
def test_no_program_of_an_update_has_actions_times_vocabulary(model, method):
    made = plan(model, method, BLOCK)
    texts = programs(made)
    assert set(texts) == PROGRAMS[method]
    count, width = sizes(made)
    fresh = count if made.fresh is None else made.fresh.action_mask_NA.size
    for name, text in texts.items():
        assert others(text, VOCAB) <= {(), (width,)}, name  # embedding, head, and their like
        assert others(text, BLOCK) <= {(), (width,), (count,), (fresh,)}, name
        assert {(count,), (fresh,)} & others(text, BLOCK), name  # logits of one block


def test_one_block_for_all_would_be_seen(model):
    made = plan(model, "turnwise", VOCAB)
    count, _ = sizes(made)
    assert all((count,) in others(text, VOCAB) for text in programs(made).values())
