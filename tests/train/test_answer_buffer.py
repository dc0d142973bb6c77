"""What AVATAR's collector asks, remembers and replays, with a stub in place of the sampler."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asking import avatar, built, stubbed, write_questions
from ml_collections import ConfigDict

from turnwise_jax.data.hints import is_hinted
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import Request
from turnwise_jax.train.answers import AnswerCollector
from turnwise_jax.train.collect import Collected
from turnwise_jax.train.run import train
from turnwise_jax.train.validate import validate

GOOD = "<think>t</think><answer>{}</answer>"


@pytest.fixture
def config(asking, tmp_path) -> ConfigDict:
    """Of a run without a reference, so that nothing is compiled for its log-probabilities."""
    config = avatar(asking, tmp_path / "run")
    config.algorithm.kl = 0.0
    config.rollout.max_new_tokens = 40
    config.run.steps = 20
    return config


def collector(config: ConfigDict, reply: Callable[[str, int, int], str]) -> AnswerCollector:
    return stubbed(built(config), reply)


def digits(name: str, g: int, step: int) -> str:
    """Another reward for every rollout of a group."""
    return GOOD.format(3 + (g + step) % 4)


def run(made: AnswerCollector, steps: int, first: int = 0) -> list[Collected]:
    """Batches of the steps; the stub needs no parameters."""
    nothing: Any = SimpleNamespace(params=None)
    return [made(nothing, iteration) for iteration in range(first, first + steps)]


def test_the_first_batch_has_room_for_replayed_answers_and_none_of_them(config):
    made = collector(config, digits)
    (first, second) = run(made, 2)
    assert first.metrics["replayed"] == 0
    assert not first.batch.action_mask_NA[4:].any()
    assert not first.batch.valid_NT[4:].any()
    assert first.batch.mixture.weight.tolist() == [1.0] * 4 + [0.0] * 4
    assert first.batch.mixture.kl_weight.tolist() == [1.0] * 4 + [0.0] * 4
    assert second.metrics["replayed"] == 4
    assert second.batch.mixture.weight.tolist() == [2.0] * 8  # two means of four rows each
    assert [len(names) for names in made.engine.asked] == [2, 2]


def test_nothing_is_replayed_below_the_minimum(config):
    config.replay.update(capacity=30, minimum=9)
    made = collector(config, digits)
    assert [step.metrics["replayed"] for step in run(made, 4)] == [0, 0, 0, 4]


def test_a_batch_that_wants_more_than_the_buffer_holds(config):
    """Three samples at most: the rest of its rows stay empty and count for nothing."""
    config.replay.update(capacity=3, minimum=1, samples=4)
    made = collector(config, digits)
    steps = run(made, 6)
    for step in steps[1:]:
        drawn = step.metrics["replayed"]
        assert 1 <= drawn <= 3
        batch = step.batch
        assert batch.action_mask_NA.any(axis=1).tolist() == [True] * (4 + drawn) + [False] * (
            8 - drawn
        )
        whole = 4 + drawn
        np.testing.assert_allclose(batch.mixture.weight[:4], whole / 4, rtol=1e-6)
        np.testing.assert_allclose(batch.mixture.weight[4:whole], whole / drawn, rtol=1e-6)
        assert not batch.mixture.weight[whole:].any()
        assert len(made.buffer) <= 3
        assert len(step.groups) == whole


@pytest.mark.parametrize("draw", ["priority", "fifo", "uniform"])
def test_every_way_to_draw_replays_answers_of_earlier_steps(config, draw):
    config.replay.draw = draw
    config.hints.use = False
    made = collector(config, digits)
    for number, step in enumerate(run(made, 6)):
        old = [group for group in step.groups if group["replayed"]]
        assert len(old) == (4 if number else 0)
        assert all(group["sampled"] < number for group in old)
        keys = [(group["sampled"], group["group"], group["reward"]) for group in old]
        assert len(set(keys)) == len(keys)  # without replacement


def test_answers_that_are_too_old_are_not_replayed(config):
    config.replay.update(max_age=1, capacity=40)
    made = collector(config, digits)
    for number, step in enumerate(run(made, 8)):
        ages = [number - group["sampled"] for group in step.groups if group["replayed"]]
        assert set(ages) == ({1} if number else set())
        assert len(made.buffer) <= 8


def test_replayed_advantages_are_of_the_averages_before_this_batch(config):
    """VCRS as the code reads it: (reward - moving average) / (deviation + 1e-4)."""
    config.hints.use = False
    made = collector(config, digits)
    rewards: dict[str, list[float]] = {}
    for step in run(made, 6):
        old = [group for group in step.groups if group["replayed"]]
        if old:
            values = np.array([group["reward"] for group in old])
            spread = values.std(ddof=1) if np.ptp(values) else 1.0
            averages = [np.mean(rewards[group["group"]][-20:]) for group in old]
            expected = (values - averages) / (spread + 1e-4)
            np.testing.assert_allclose(
                [group["advantage"] for group in old], expected, rtol=1e-4, atol=1e-5
            )
        for group in step.groups:
            if not group["replayed"]:
                rewards.setdefault(group["group"], []).append(group["reward"])


# a judge that fails


class FailingJudge:
    """Has no value for the second answer of every group."""

    def ask(self, requests: list[Request]) -> list[float | None]:
        return [None if "fails" in request.reasoning else 0.5 for request in requests]

    def close(self) -> None:
        pass


def fails(name: str, g: int, step: int) -> str:
    return f"<think>{'fails' if g == 1 else 'works'} {g}</think><answer>{3 + step % 3}</answer>"


def test_an_answer_without_a_reward_is_not_learnt_from_and_never_stored(config):
    config.reward.stepwise = 1.0
    config.rollout.group_size = 3
    config.replay.update(samples=1)
    made = collector(config, fails)
    made.judge = FailingJudge()
    for step in run(made, 5):
        fresh = [group for group in step.groups if not group["replayed"]]
        lost = [math.isnan(group["reward"]) for group in fresh]
        assert lost == [False, True, False] * 2
        assert step.metrics["invalid_rewards"] == 2
        assert step.metrics["judge_failed"] == 2
        assert np.isfinite(step.metrics["reward"])
        assert np.isfinite(step.batch.advantage_NK).all()
        assert step.batch.advantage_NK[[1, 4], 0].tolist() == [0.0, 0.0]
        drawn = step.metrics["replayed"]
        trained = [True, False, True] * 2 + [True] * drawn + [False] * (2 - drawn)
        assert step.batch.action_mask_NA.any(axis=1).tolist() == trained
        fresh_weight = (4 + drawn) / 4  # a mean over the four that are known
        weights = np.where(trained, fresh_weight, 0.0)[:6]
        np.testing.assert_allclose(step.batch.mixture.weight[:6], weights, rtol=1e-6)
        np.testing.assert_allclose(step.batch.mixture.kl_weight[:6], weights, rtol=1e-6)
        assert all(np.isfinite(g["reward"]) for g in step.groups if g["replayed"])
    held = made.buffer.state()
    assert int(held["size"][0]) == len(made.buffer) > 0
    assert np.isfinite(held["reward"].view(np.float64)).all()
    assert all(np.isfinite(list(made.stats.averages().values())))


def test_a_batch_in_which_every_judgement_fails(config):
    config.reward.stepwise = 1.0
    made = collector(config, lambda name, g, step: "<think>fails</think><answer>3</answer>")
    made.judge = FailingJudge()
    (step,) = run(made, 1)
    assert step.metrics["reward"] is None
    assert step.metrics["zero_signal"] == 1
    assert not step.batch.advantage_NK.any()
    assert len(made.buffer) == 0
    assert made.stats.averages() == {}
    assert made.stats.seen("q0") == 0


# hints


def asked_names(made: AnswerCollector) -> list[list[str]]:
    return [list(names) for names in made.engine.asked]


def wrong_unless(*right: str) -> Callable[[str, int, int], str]:
    """Only answers to these prompts are right."""

    def reply(name: str, g: int, step: int) -> str:
        return GOOD.format(int(name[1]) + 3 if name in right else 99)

    return reply


def test_a_stuck_question_is_asked_with_its_hint_and_then_plainly_again(config):
    """q0 is helped by its hint, q1 is not, q2 needs none, q3 has none."""
    config.hints.update(reward_at_most=-9.0, zero_streak=2)
    made = collector(config, wrong_unless("q0+hint", "q2"))
    run(made, 8)
    assert asked_names(made) == [
        ["q0", "q1"], ["q2", "q3"],
        ["q0+hint", "q1+hint"], ["q2", "q3"],
        ["q0", "q1+hint"], ["q2", "q3"],
        ["q0+hint", "q1+hint"], ["q2", "q3"],
    ]  # fmt: skip
    assert made.stats.average("q0+hint") == 2.0
    assert made.stats.average("q0") == 1.0
    assert [made.stats.seen(name) for name in ("q0", "q0+hint", "q1", "q1+hint")] == [4, 4, 2, 6]


def test_a_low_average_asks_for_a_hint_as_soon_as_it_is_known_well_enough(config):
    config.hints.update(reward_at_most=1.0, zero_streak=0, min_history=4)
    made = collector(config, wrong_unless("q2", "q3"))
    run(made, 6)
    assert asked_names(made)[::2] == [["q0", "q1"], ["q0", "q1"], ["q0+hint", "q1+hint"]]


def test_the_hint_is_in_the_prompt_and_in_the_replayed_row(config):
    config.replay.update(capacity=40)
    made = collector(config, wrong_unless())
    vocab = made.engine.policy.vocab
    seen = {True: 0, False: 0}
    for step in run(made, 8):
        for row, group in enumerate(step.groups):
            tokens = step.batch.tokens_NT[row][step.batch.valid_NT[row]]
            text = vocab.decode(tokens)
            hint = is_hinted(group["group"])
            assert ("Hint: Listen to the end." in text) == hint
            if group["replayed"]:
                seen[hint] += 1
    assert min(seen.values()) > 2


def test_without_hints_none_is_shown(config):
    config.hints.update(use=False, zero_streak=1)
    made = collector(config, wrong_unless())
    for step in run(made, 6):
        assert step.metrics["hinted"] == 0
    assert not any(is_hinted(name) for names in asked_names(made) for name in names)
    assert not any(is_hinted(name) for name in made.asked)


# the same from its memory


@pytest.mark.parametrize("at", [1, 3, 7])
def test_a_collector_goes_on_from_its_memory(config, at):
    whole = run(collector(config, digits), 9)
    first = collector(config, digits)
    run(first, at)
    second = collector(config, digits)
    memory = {name: array.copy() for name, array in first.memory().items()}
    assert all(array.size for array in memory.values())
    second.seek([first.position()], memory, at)
    for ours, theirs in zip(run(second, 9 - at, at), whole[at:], strict=True):
        assert ours.groups == theirs.groups
        assert ours.metrics == theirs.metrics
        np.testing.assert_array_equal(ours.batch.advantage_NK, theirs.batch.advantage_NK)
        np.testing.assert_array_equal(ours.batch.tokens_NT, theirs.batch.tokens_NT)


def test_memory_stays_bounded_over_a_long_run(config):
    """Three hundred batches, 1,200 samples: the buffer turns over many times."""
    config.run.steps = 300
    config.replay.update(capacity=60, window=4)
    made = collector(config, digits)
    tracemalloc.start()
    try:
        held = []
        for first in (0, 100, 200):
            for iteration in range(first, first + 100):
                run(made, 1, iteration)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert made.buffer.sizes()["hard"] == made.buffer.capacities[-1]
    assert held[0] > 100_000  # what is held is measured, clips included
    assert held[2] - held[1] < 30_000


def test_media_that_are_not_kept_are_read_again_with_the_same_result(config):
    batches = []
    for kept in (64, 0):
        config.replay.keep_mb = kept
        made = collector(config, digits)
        batches.append(run(made, 4))
        assert (made.kept.nbytes > 0) == (kept > 0)
    for one, other in zip(*batches, strict=True):
        for a, b in ((one.batch.media.vision.patches, other.batch.media.vision.patches),
                     (one.batch.media.audio.mel, other.batch.media.audio.mel)):  # fmt: skip
            np.testing.assert_array_equal(a, b)


# what is refused


def test_two_records_of_one_name_are_refused(config, tmp_path):
    rows = [{"id": "twice", "question": "How many?", "answer": n} for n in range(4)]
    write_questions(tmp_path / "twice.jsonl", rows)
    config.data.path = str(tmp_path / "twice.jsonl")
    with pytest.raises(InputError, match="another record has the same name") as caught:
        built(config)
    assert caught.value.record == "twice"
    assert caught.value.field == "id"


def test_a_name_that_another_record_has_with_its_hint_is_refused(config, tmp_path):
    rows = [
        {"id": name, "question": "How many?", "answer": 3, "hint": "Count."}
        for name in ("a", "a+hint", "b", "c")
    ]
    write_questions(tmp_path / "names.jsonl", rows)
    config.data.path = str(tmp_path / "names.jsonl")
    with pytest.raises(InputError, match=r"\+hint") as caught:
        built(config)
    assert caught.value.record == "a+hint"


@pytest.mark.parametrize(
    ("section", "values", "field", "message"),
    [
        ("replay", {"minimum": 9}, "replay.minimum", "above 3, what the hard tier"),
        ("replay", {"tiers": (0.5, 0.5)}, "replay.tiers", "three shares"),
        ("replay", {"tiers": (0.5, 0.5, 0.5)}, "replay.tiers", "add to 1"),
        ("replay", {"tiers": (0.0, 0.5, 0.5)}, "replay.tiers", "above 0"),
        ("replay", {"draw": "newest"}, "replay.draw", "priority"),
        ("replay", {"capacity": 2}, "replay.capacity", "at least 3"),
        ("replay", {"samples": -1}, "replay.samples", "at least 0"),
        ("optimizer", {"accumulate": 3}, "optimizer.accumulate", "8 rows"),
        ("mesh", {"data": 8}, "rollout.group_size", "4 fresh"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(config, section, values, field, message):
    config[section].update(values)
    with pytest.raises(InputError, match=message) as caught:
        validate(config)
    assert caught.value.field == field


def test_records_that_are_no_questions_are_refused(config, tmp_path, place):
    config.data.update(source="mmduet2_rl", path=str(place.world.rl("train")))
    with pytest.raises(InputError, match="avatar learns from questions with an answer"):
        train(config)


def test_questions_that_have_their_reply_are_refused(config, tmp_path):
    rows = [
        {"id": f"r{n}", "question": "How many?", "answer": 3, "response": GOOD.format(3)}
        for n in range(4)
    ]
    write_questions(tmp_path / "replies.jsonl", rows)
    config.data.path = str(tmp_path / "replies.jsonl")
    with pytest.raises(InputError, match="nothing is left to decide"):
        train(config)
