"""The exact study's problem and policy against plain Python, and what is refused."""

from __future__ import annotations

import dataclasses

import exact_reference as reference
import numpy as np
import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.study.exact_policy import Tables, expected_reward, true_gradient
from turnwise_jax.study.exact_problem import (
    FORCED,
    Setting,
    choice_slots,
    enumerate_trajectories,
    slots_per_state,
)

TWO_FACTS = Setting(times=(2.0, 4.0, 8.0))


@pytest.fixture(scope="module")
def data():
    return enumerate_trajectories(TWO_FACTS)


@pytest.fixture(scope="module")
def tables(data):
    return Tables(data)


def spoken(data) -> list[tuple[tuple[str, ...], ...]]:
    """The trajectories in the words of the plain version."""
    words = [
        reference.SILENT
        if reply.fact is None
        else (f"fact {reply.fact + 1}", {1: "brief", 2: "long"}[reply.level])
        for reply in data.setting.replies
    ]
    return [tuple(words[r] for r in row) for row in data.reply_NK]


def by_state(tables: Tables, logits_S: np.ndarray) -> dict:
    """The policy's tables as the plain version takes them."""
    data = tables.trajectories
    found: dict = {}
    for slot, (name, state) in enumerate(zip(tables.names_S, tables.state_S, strict=True)):
        turn, levels = data.states[state]
        memory = tuple((f"fact {n + 1}", level) for n, level in enumerate(levels) if level)
        within = tables.table_S[slot] - tables.table_S[tables.state_S == state].min()
        prefix = () if within == 0 else (f"fact {within}",)
        found.setdefault((turn, memory, prefix), {})[str(name)] = float(logits_S[slot])
    return found


def test_all_trajectories_are_there_once(data):
    assert set(spoken(data)) == set(reference.trajectories(2, 3))
    assert len(data.reply_NK) == 5**3


def test_prefix_scores_equal_plain_rescoring(data):
    expected = [
        reference.prefix_scores(said, TWO_FACTS.times, TWO_FACTS.windows) for said in spoken(data)
    ]
    np.testing.assert_allclose(data.score_NK1, expected, atol=2e-6)


def test_tokens_are_counted_and_only_choices_have_a_slot(data):
    lengths = {0: 3, 1: 4, 2: 12}
    for n, row in enumerate(data.reply_NK):
        levels = [data.setting.replies[r].level for r in row]
        assert data.mask_NA[n].sum() == sum(lengths[level] for level in levels)
        assert (data.slot_NA[n] != FORCED).sum() == sum(1 + (level > 0) for level in levels)
        counts = np.bincount(data.turn_NA[n][data.mask_NA[n]], minlength=3)
        assert counts.tolist() == [lengths[level] for level in levels]
        assert counts.tolist() == data.length_NK[n].tolist()


def test_probabilities_equal_the_plain_policy_and_add_up(data, tables):
    logits_S = tables.logits({"silence": 1.0, "long": -0.5}, noise=0.7, seed=3)
    prob_N = tables.probabilities(logits_S)
    plain = by_state(tables, logits_S)
    expected = [reference.probability(said, plain) for said in spoken(data)]
    np.testing.assert_allclose(prob_N, expected, rtol=1e-12)
    assert prob_N.sum() == pytest.approx(1.0, abs=1e-12)


def test_the_true_gradient_equals_finite_differences(tables):
    logits_S = tables.logits({}, noise=0.5, seed=4)
    gradient_S = true_gradient(tables, logits_S)
    step = 1e-5
    for slot in range(0, tables.size, 7):
        nudge = step * np.eye(tables.size)[slot]
        slope = expected_reward(tables, logits_S + nudge) - expected_reward(
            tables, logits_S - nudge
        )
        assert gradient_S[slot] == pytest.approx(slope / (2 * step), abs=1e-9)


def test_scores_by_decision_are_the_gradient_of_single_trajectories(data, tables):
    logits_S = tables.logits({"brief": 0.3}, noise=0.5, seed=5)
    weight_NA = np.random.default_rng(0).random(data.slot_NA.shape)
    entry_NKQ, value_NKQ = tables.scores(weight_NA, logits_S)
    for n in range(0, len(data.reply_NK), 11):
        alone = np.where(np.arange(len(weight_NA))[:, None] == n, weight_NA, 0.0)
        together = np.bincount(entry_NKQ[n].ravel(), value_NKQ[n].ravel(), tables.size)
        np.testing.assert_allclose(together, tables.gradient(alone, logits_S), atol=1e-14)


def test_places_of_choices():
    setting = Setting()
    chosen = [choice_slots(reply, 2) for reply in setting.replies]
    assert chosen == [(0,), (1, 3), (1, 4), (2, 5), (2, 6)]
    assert slots_per_state(2) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": ()}, "problem.times.*increasing seconds"),
        ({"times": (2.0, 2.0)}, "problem.times.*increasing seconds"),
        ({"windows": ((4.0, 4.0),)}, "problem.windows.*pairs"),
        ({"long_tokens": 1}, "problem.long_tokens.*at least 2"),
        ({"silence_tokens": 0}, "problem.silence_tokens.*at least 1"),
        ({"times": tuple(range(1, 8))}, "78125|take fewer"),
        ({"tokens": 3}, "tokens.*unknown"),
    ],
)
def test_what_is_no_problem_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        Setting.from_dict({**dataclasses.asdict(Setting()), **change})


def test_an_unknown_choice_is_refused(tables):
    with pytest.raises(InputError, match=r"fact 9.*known are silence, fact 1, fact 2, brief, long"):
        tables.logits({"fact 9": 1.0})
