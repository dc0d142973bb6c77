"""The majority of a prompt's own answers, and who agrees with it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from turnwise_jax.rewards.self_consistency import self_consistency


def brute_force(prompts, keys):
    """Eq. 9 and 10 read out: for each rollout, is no other answer of its prompt given more often,
    or as often and earlier?"""
    out = []
    for prompt, key in zip(prompts, keys, strict=True):
        own = [k for p, k in zip(prompts, keys, strict=True) if p == prompt and k is not None]
        best = max(own, key=lambda k: (own.count(k), -own.index(k)), default=None)
        out.append(float(key is not None and key == best))
    return out


@pytest.mark.parametrize(
    ("keys", "agrees"),
    [
        (["A", "B", "B"], [0, 1, 1]),
        (["B", "A", "A", "B"], [1, 0, 0, 1]),  # a tie: first seen
        (["A", "B", "C"], [1, 0, 0]),
        (["A"], [1]),
        (["A", "A"], [1, 1]),
        ([None, None, "A"], [0, 0, 1]),
        ([None, None], [0, 0]),
        ([], []),
    ],
)
def test_one_prompt(keys, agrees):
    out = self_consistency(["p"] * len(keys), keys)
    assert out.dtype == np.float32
    assert out.tolist() == agrees


def test_prompts_vote_apart():
    prompts, keys = ["p", "q", "p", "q", "q"], ["A", "A", "B", "B", "B"]
    assert self_consistency(prompts, keys).tolist() == [1, 0, 0, 1, 1]


def test_it_is_the_definition_on_random_batches():
    draw = random.Random(5)
    for _ in range(200):
        count = draw.randint(0, 16)
        prompts = draw.choices("pqr", k=count)
        keys = draw.choices(["A", "B", "C", None], k=count)
        assert self_consistency(prompts, keys).tolist() == brute_force(prompts, keys)


def test_other_prompts_and_their_order_make_no_difference():
    draw = random.Random(6)
    prompts = draw.choices("pq", k=12)
    keys = draw.choices("ABC", k=12)
    whole = self_consistency(prompts, keys)
    for prompt in "pq":
        own = [i for i in range(12) if prompts[i] == prompt]
        alone = self_consistency([prompt] * len(own), [keys[i] for i in own])
        assert alone.tolist() == whole[own].tolist()
