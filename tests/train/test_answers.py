"""AVATAR's batches: what is in a row, and what its log-probabilities are compared with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from asking import CLIPS, Asking, avatar, built, write_questions
from flax import nnx

from turnwise_jax.data.hints import plain_id
from turnwise_jax.data.records import Dialogue, Frame, Question, Turn
from turnwise_jax.rewards.qa import AnswerWeights, score_answers
from turnwise_jax.rollout.replay import Sample
from turnwise_jax.train import answers
from turnwise_jax.train.collect import Collected
from turnwise_jax.train.forward import make_logprob_step
from turnwise_jax.train.loop import Run
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.state import Batch, TrainState

STEPS = 6


class Step(NamedTuple):
    """What one step was made of; ``before``: the state that sampled it."""

    before: TrainState
    collected: Collected
    fresh: list[Sample]
    drawn: list[Sample]
    metrics: dict[str, Any]

    @property
    def batch(self) -> Batch:
        return self.collected.batch


def steps_of(run: Run, count: int, monkeypatch) -> list[Step]:
    """The first steps of a run, as the training loop makes them, with copies of all states."""
    parts = []
    mixed = answers.mixed

    def seen(fresh, drawn, stats, **options):
        parts.append((list(fresh), list(drawn)))
        return mixed(fresh, drawn, stats, **options)

    monkeypatch.setattr(answers, "mixed", seen)
    steps, state = [], run.state
    for iteration in range(count):
        collected = run.collect(state, iteration)
        before = jax.tree.map(jnp.copy, state)
        state, metrics = run.update(state, collected.batch)
        steps.append(Step(before, collected, *parts[-1], jax.device_get(metrics)))
    run.collect.close()
    return steps


@pytest.fixture(scope="module")
def made(asking, tmp_path_factory) -> tuple[Run, list[Step]]:
    config = avatar(asking, tmp_path_factory.mktemp("answers"))
    config.optimizer.update(learning_rate=3e-4, eps=1e-8)
    run = built(config)
    with pytest.MonkeyPatch.context() as patch:
        return run, steps_of(run, STEPS, patch)


@pytest.fixture(scope="module")
def current(made):
    """Jitted (state, batch) -> log-probabilities under the state, whoever sampled the rows."""
    run, _ = made
    step = make_logprob_step(run.update.forward)
    return lambda state, batch: np.asarray(step(state, batch._replace(mixture=None)))


def text_alone(asking: Asking, folder: Path) -> Asking:
    """The same questions without their clips: compiled sooner."""
    rows = [json.loads(line) for line in asking.questions.read_text().splitlines()]
    for row in rows:
        row.pop("video", None)
    write_questions(folder / "text.jsonl", rows)
    return asking._replace(questions=folder / "text.jsonl")


def fresh_place(steps: list[Step], sample: Sample) -> int:
    """The row in which a sample was trained when it was fresh."""
    return next(n for n, other in enumerate(steps[sample.step].fresh) if other is sample)


def test_the_steps_reach_every_case(made):
    _, steps = made
    drawn = [sample for step in steps for sample in step.drawn]
    names = {sample.prompt for sample in drawn}
    assert any("+hint" in name for name in names)
    assert any(plain_id(name) in {f"q{n}" for n in CLIPS} for name in names)
    assert {bool(sample.truncated) for sample in drawn} == {True, False}
    assert any(step.collected.metrics["signal"] for step in steps)
    shares_a_clip = [
        {plain_id(s.prompt) for s in step.fresh if s.prompt.endswith("+hint")}
        & {s.prompt for s in step.drawn}
        & {f"q{n}" for n in CLIPS}
        for step in steps
    ]
    assert any(shares_a_clip)
    assert [len(step.drawn) for step in steps] == [0, 4, 4, 4, 4, 4]


def test_a_replayed_row_is_the_row_that_it_was_when_fresh(made):
    """Whatever else is in the batch: tokens, positions, actions, and the features it looks at."""
    run, steps = made
    encode = jax.jit(run.update.forward.media)
    params = steps[0].before.params
    features = [np.asarray(encode(params, step.batch.media).features) for step in steps]
    compared = 0
    for now, step in enumerate(steps):
        for place, sample in enumerate(step.drawn, len(step.fresh)):
            then, row = sample.step, fresh_place(steps, sample)
            for name in (
                "tokens_NT", "positions_N3T", "valid_NT", "action_pos_NA", "action_target_NA",
                "action_mask_NA", "turn_id_NA", "sampler_logp_NA",
            ):  # fmt: skip
                ours = getattr(step.batch, name)[place]
                np.testing.assert_array_equal(ours, getattr(steps[then].batch, name)[row], name)
            ours, theirs = step.batch.media_index_NT[place], steps[then].batch.media_index_NT[row]
            np.testing.assert_array_equal(ours < 0, theirs < 0)
            shown = ours >= 0
            assert shown.any() == (plain_id(sample.prompt) in {f"q{n}" for n in CLIPS})
            np.testing.assert_allclose(
                features[now][ours[shown]], features[then][theirs[shown]], atol=1e-5
            )
            compared += 1
    assert compared == 20


def test_hinted_and_plain_answers_share_their_clip(made):
    _, steps = made
    for step in steps:
        names = {plain_id(sample.prompt) for sample in (*step.fresh, *step.drawn)}
        clips = len(names & {f"q{n}" for n in CLIPS})
        frames = np.asarray(step.batch.media.vision.patches)
        used = np.unique(step.batch.media_index_NT[step.batch.media_index_NT >= 0])
        assert frames.any(axis=tuple(range(1, frames.ndim))).sum() == clips
        assert (len(used) > 0) == (clips > 0)


def test_trainer_and_buffer_agree_at_the_sampling_parameters(made, current):
    """The stored log-probabilities are those that the trainer finds at the parameters of then."""
    _, steps = made
    moved = 0
    for step in steps:
        for place, sample in enumerate(step.drawn, len(step.fresh)):
            count = len(sample.tokens)
            then = current(steps[sample.step].before, step.batch)[place, :count]
            np.testing.assert_allclose(then, sample.logp, atol=1e-4)
            np.testing.assert_array_equal(step.batch.old_logp_NA[place, :count], sample.logp)
            now = current(step.before, step.batch)[place, :count]
            moved += bool(np.abs(now - sample.logp).max() > 1e-2)
    assert moved > 10


def test_ratios_of_fresh_answers_are_one_and_those_of_replayed_ones_are_not(made):
    _, steps = made
    assert steps[0].metrics["replay_ratio"] == 0  # nothing replayed yet
    for step in steps:
        assert step.metrics["ratio"] == 1
        assert step.metrics["ratio_off_one_max"] == 0
        assert step.metrics["sampler_gap_max"] < 1e-4
    assert all(abs(step.metrics["replay_ratio"] - 1) > 1e-3 for step in steps[1:])


def test_the_reference_is_the_policy_of_the_first_step(made, current):
    """Its log-probabilities go into the buffer with the sample, and are used as they are."""
    _, steps = made
    start = steps[0].before
    toy.assert_equal(start.reference, start.trained)
    for step in steps[1:]:
        toy.assert_equal(step.before.reference, start.trained)
        expected = current(start, step.batch)
        for place, sample in enumerate([*step.fresh, *step.drawn]):
            count = len(sample.tokens)
            np.testing.assert_allclose(sample.ref_logp, expected[place, :count], atol=1e-4)
            used = step.batch.mixture.ref_logp_A[place]
            np.testing.assert_array_equal(used[:count], sample.ref_logp)
            assert not used[count:].any()
            gap = np.mean(sample.logp - sample.ref_logp, dtype=np.float64)
            assert sample.kl == pytest.approx(gap, abs=1e-6)
    assert steps[-1].metrics["kl"] > 1e-3


def test_every_step_samples_whole_groups_and_no_more(made):
    _, steps = made
    for number, step in enumerate(steps):
        assert len(step.fresh) == 4
        assert [sample.step for sample in step.fresh] == [number] * 4
        assert step.fresh[0].prompt == step.fresh[1].prompt != step.fresh[2].prompt
        assert step.batch.tokens_NT.shape[0] == 8
        assert step.batch.mixture.replayed.tolist() == [False] * 4 + [True] * 4
        assert len(step.collected.groups) == 4 + len(step.drawn)


def test_adapters_have_the_bare_policy_as_their_reference(asking, tmp_path, monkeypatch):
    config = avatar(text_alone(asking, tmp_path), tmp_path)
    config.policy.lora.rank = 2
    config.optimizer.learning_rate = 1e-2
    run = built(config)
    steps = steps_of(run, 3, monkeypatch)
    step = make_logprob_step(run.update.forward)
    bare = jax.tree.map(jnp.zeros_like, steps[0].before.trained)
    for made in steps:
        batch = made.batch._replace(mixture=None)
        reference = np.asarray(step(made.before._replace(trained=bare), batch))
        for place, sample in enumerate([*made.fresh, *made.drawn]):
            expected = reference[place, : len(sample.tokens)]
            np.testing.assert_allclose(sample.ref_logp, expected, atol=1e-4)
    assert steps[-1].metrics["kl"] > 1e-4
    toy.assert_equal(steps[-1].before.reference, steps[0].before.trained)


def test_without_replay_reference_and_shape_a_run_is_grpo(asking, tmp_path, monkeypatch):
    """Every update against the policy gradient of the logged rewards, at the ratio 1."""
    config = avatar(text_alone(asking, tmp_path), tmp_path)
    config.algorithm.update(kl=0.0, tas_shape="uniform")
    config.replay.samples = 0
    config.rollout.group_size = 4
    config.hints.use = False
    config.optimizer.update(learning_rate=1e-3, eps=1e-3)  # of updates well above rounding
    run = built(config)
    forward = run.update.forward
    steps = steps_of(run, 3, monkeypatch)
    optimizer = make_optimizer(config.optimizer, 3)
    after = [*(step.before for step in steps[1:]), None]

    @jax.jit
    def gradient(state, batch, advantage_N):
        def objective(trained):
            params = nnx.merge_state(trained, state.frozen)
            logp = forward.logprobs(params, forward.media(params, batch.media), batch)
            mean = logp.sum(axis=1) / batch.action_mask_NA.sum(axis=1)
            return -(advantage_N * mean).mean()

        return jax.grad(objective)(state.trained)

    signals = 0
    for step, following in zip(steps, after, strict=True):
        assert step.before.reference is None
        assert not step.drawn
        groups = np.array([g["reward"] for g in step.collected.groups]).reshape(2, 4)
        spread = groups.std(axis=1, ddof=1, keepdims=True)
        advantage = ((groups - groups.mean(axis=1, keepdims=True)) / (spread + 1e-4)).reshape(-1)
        signals += int((spread > 0).sum())
        found = gradient(step.before, step.batch, advantage.astype(np.float32))
        norm = float(optax.tree.norm(found))
        assert step.metrics["grad_norm"] == pytest.approx(norm, rel=1e-3, abs=1e-5)
        updates, _ = optimizer.update(found, step.before.opt_state, step.before.trained)
        if following is not None:
            toy.assert_close(
                jax.tree.map(jnp.subtract, following.trained, step.before.trained), updates, 2e-2
            )
    assert signals > 2


# what a judge is shown


@pytest.mark.parametrize(
    ("frames", "expected"),
    [(32, range(2, 32, 4)), (5, range(5)), (0, ())],
)
def test_a_judge_looks_at_the_middles_of_equal_parts_of_what_the_policy_saw(frames, expected):
    requests = []

    class Judge:
        def ask(self, asked):
            requests.extend(asked)
            return [0.5] * len(asked)

    weights = AnswerWeights(stepwise=1.0)
    clip = tuple(Frame("v.mp4", float(n)) for n in range(frames))
    question = Question("What?", "A", "multiple_choice", ("left", "right"))
    dialogue = Dialogue("q", (Turn(clip, "What?", 32.0),), question=question)
    text = "<think>It is there.</think><answer>A</answer>"
    said = SimpleNamespace(dialogues=[dialogue], text=[[[text], [text]]])
    score_answers(answers.answered(said, weights), Judge(), weights)
    names = tuple(f"v.mp4#t={n}" for n in expected)
    assert {request.frames for request in requests} == {names}
    assert answers.answered(said, AnswerWeights())[0].frames == ()
