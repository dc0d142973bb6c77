"""The baselines: their rewards and losses in whole runs, and what they cannot be combined with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import toy
from runs import sft, small
from test_run import Crash, crash_before

from turnwise_jax.algorithms import grpo
from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.data.records import SILENCE, Dialogue, Turn, Window
from turnwise_jax.data.tokens import Vocab
from turnwise_jax.errors import InputError
from turnwise_jax.eval.predictions import read_predictions
from turnwise_jax.kernels import group_advantages
from turnwise_jax.rewards import thinkstream
from turnwise_jax.rewards.plan import TurnForm
from turnwise_jax.rewards.streaming import STREAMING_REWARDS
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train import collect, run
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.compiled import Update
from turnwise_jax.train.config import rl_config, sft_config
from turnwise_jax.train.credit import share_credit
from turnwise_jax.train.data import read_data
from turnwise_jax.train.directory import EXPORT
from turnwise_jax.train.metrics import GROUPS, METRICS, TIMING, read_jsonl
from turnwise_jax.train.reading import TurnClasses, trajectories_of
from turnwise_jax.train.validate import validate

THINKING = (
    "<think>I see a red ring now.</think><response>A red circle appears.",
    "<think>no</think><silent>",
    "<think>never closed",
    "<think></think><response>A blue square leaves.",
)


def baseline(place, directory, reward: str):
    """Two steps of GRPO with one of the rewards."""
    config = small(rl_config("grpo", reward), place, directory)
    config.data.update(path=str(place.world.rl("train")), batch_size=2)
    config.rollout.update(group_size=2, max_new_tokens=6)
    config.optimizer.learning_rate = 1e-2
    config.run.update(steps=2, checkpoint_every=1)
    if reward == "pauc":  # as configs/baselines/mmduet2.py
        config.policy.freeze = ()
        config.algorithm.reduction = "batch_token"
    if reward == "thinkstream":
        config.policy.replies = "thinkstream"
        config.algorithm.kl = 1e-3
    return config


def speak_in_turn(monkeypatch) -> None:
    """An untrained policy never keeps to a form: sampled ids stand for texts that may."""
    monkeypatch.setattr(
        StreamEngine, "_text", lambda self, ids: THINKING[int(np.sum(ids)) % len(THINKING)]
    )


@pytest.fixture(scope="module")
def thinking(place, tmp_path_factory) -> Path:
    """A finished run of ThinkStream."""
    with pytest.MonkeyPatch.context() as patch:
        speak_in_turn(patch)
        return run.train(baseline(place, tmp_path_factory.mktemp("think") / "run", "thinkstream"))[
            0
        ]


@pytest.mark.parametrize("reward", STREAMING_REWARDS)
def test_two_steps_of_every_baseline(place, tmp_path, request, reward):
    if reward == "thinkstream":
        directory = request.getfixturevalue("thinking")
    else:
        directory, finished = run.train(baseline(place, tmp_path / "run", reward))
        assert finished
    lines, groups = read_jsonl(directory / METRICS), read_jsonl(directory / GROUPS)
    assert [line["compiles"] for line in read_jsonl(directory / TIMING)] == [0, 0]
    named = set(STREAMING_REWARDS[reward].Settings._fields) & {
        "format", "timing", "correctness", "efficiency", "turn_f1", "rubric", "repetition",
    }  # fmt: skip
    for line in lines:
        own = [record for record in groups if record["step"] == line["step"]]
        for name in ("reward", *named):
            assert line[name] == pytest.approx(np.mean([r[name] for r in own]), abs=1e-6)
        assert ("pauc" in line) == (reward == "pauc")
        assert ("kl" in line) == (reward == "thinkstream")
        for pair in (own[:2], own[2:]):
            shared = group_advantages(np.asarray([r["reward"] for r in pair]))
            for record, value in zip(pair, shared, strict=True):
                np.testing.assert_allclose(record["turn_advantages"], float(value), atol=1e-5)
                assert ("prefix_scores" in record) == (reward == "pauc")
                assert ("quality" in record) == (reward == "pauc")
    before, after = Policy.load(place.policy), Policy.load(directory / EXPORT)
    assert any(line["signal"] for line in lines) or reward != "thinkstream"
    if any(line["signal"] for line in lines):
        start, end = toy.leaves(before.params), toy.leaves(after.params)
        assert any(not np.array_equal(value, end[name]) for name, value in start.items())
    if reward == "thinkstream":
        assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-6)
        assert lines[1]["kl"] > 1e-6
        check_thinking(directory, groups)


def check_thinking(directory, groups) -> None:
    """Replies are what is shown; what was sampled stands beside them, and both are read again."""
    for record in groups:
        for raw, reply in zip(record["raw"], record["replies"], strict=True):
            assert raw in THINKING
            assert reply == (raw.partition("<response>")[2] or SILENCE)
    read = read_predictions(directory / GROUPS)
    assert [list(p.raw) for p in read] == [record["raw"] for record in groups]
    assert sum(sum(p.replied) for p in read) > 0
    assert json.loads((directory / "config.json").read_text())["reward"]["kind"] == "thinkstream"


# What was said, read in a style.


def said(texts, truncated=None):
    dialogue = Dialogue(
        "d",
        tuple(Turn((), "", 2.0 * (k + 1)) for k in range(len(texts))),
        (Window(2.0, 6.0, "what?", "A red circle appears."),),
    )
    cut = np.zeros((1, 1, len(texts)), bool) if truncated is None else np.asarray([[truncated]])
    return SimpleNamespace(dialogues=[dialogue], text=[[list(texts)]], truncated=cut)


def test_trajectories_in_a_style():
    (own,) = trajectories_of(said(THINKING, [0, 1, 1, 0]), "thinkstream", lambda x: len(x.split()))
    shown = ("A red circle appears.", SILENCE, SILENCE, "A blue square leaves.")
    assert (own.replies, own.raw) == (shown, THINKING)
    # The second was cut, the third never closed: neither is well formed; tokens are words here.
    forms = [TurnForm(True, 6), TurnForm(False, 1), TurnForm(False, None), TurnForm(True, 1)]
    assert list(own.forms) == forms


def test_plain_trajectories_are_what_was_said():
    texts = ("A red circle appears.", SILENCE, "")
    (own,) = trajectories_of(said(texts))
    assert (own.replies, own.raw) == (texts, ())
    assert [form.well_formed for form in own.forms] == [True, True, False]


def test_given_replies_are_put_into_the_style_before_anything_else(place, tmp_path):
    config = sft(place, tmp_path / "run")
    policy = run.load_policy(config)
    plain = read_data(config, policy).dialogues
    config.policy.replies = "thinkstream"
    own = read_data(config, policy).dialogues
    for before, after in zip(plain, own, strict=True):
        for turn, told in zip(before.turns, after.turns, strict=True):
            mark = "<silent>" if turn.reply == SILENCE else f"<response>{turn.reply}"
            assert told.reply == f"<think></think>{mark}"


# Credit without prefix scores.


def test_shared_credit_is_the_group_advantage_of_the_reward():
    reward = np.asarray([1.0, 3.0, np.nan, 0.5, 0.5, 0.5], np.float32)
    terms = thinkstream.Terms(*[reward] * 5)
    mask = np.arange(3)[None] < np.asarray([3, 3, 3, 2, 2, 2])[:, None]
    scores = SimpleNamespace(terms=terms, turns=SimpleNamespace(mask=mask))
    credit = share_credit(
        scores, group_size=3, algorithm=grpo, settings=grpo.Settings(), step=0, total_steps=9
    )
    assert credit.prefix_scores is None
    pair = np.asarray([1.0, 3.0])
    value = (pair - pair.mean()) / (pair.std(ddof=1) + 1e-6)
    expected = np.repeat([*value, 0.0], 3).reshape(3, 3)
    np.testing.assert_allclose(credit.advantages[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(credit.advantages[1], 0.0)
    assert credit.terms.timing.shape == (2, 3)


# A reference policy behind the update.


def test_the_update_asks_the_reference_itself():
    """One step with a reference that has moved away: the gradient is that of both terms."""
    state = toy.state()
    reference = jax.tree.map(lambda x: x + 0.1, state.trained)
    state = toy.placed(state._replace(reference=reference))
    settings = grpo.Settings(kl=0.5)
    batch = toy.batch()
    none = np.zeros(toy.ROWS, bool)
    one = np.ones(toy.ROWS, np.float32)
    empty = batch._replace(mixture=Mixture(np.zeros_like(batch.old_logp_NA), none, one, one))

    def loss(actions, advantage_K):
        return grpo.loss(actions, advantage_K, settings)

    arguments = {
        "forward": toy.ToyForward(), "loss": loss, "optimizer": toy.optimizer(), "accumulate": 2,
    }  # fmt: skip
    places = jax.tree.map(lambda _: toy.layout().whole, state)
    update = Update(
        arguments, inner_epochs=1, layout=toy.layout(), shardings=places, reference=True
    )
    assert set(update.lowerings(state, empty)) == {"update", "reference"}
    ours = np.asarray(toy.logprobs(state.params, batch))
    theirs = np.asarray(toy.logprobs(state.reference_params, batch))
    mask = batch.action_mask_NA
    _, metrics = update(state, empty)
    gap = (theirs - ours)[mask].astype(np.float64)
    assert float(metrics["kl"]) == pytest.approx((np.exp(gap) - 1 - gap).mean(), rel=1e-4)


def test_the_reference_is_in_what_a_config_would_compile(place, tmp_path):
    """Ahead of time, as in the run: the log-probs of the reference, then the update."""
    config = baseline(place, tmp_path / "run", "thinkstream")
    plan = Plan.of(config, toy.layout())
    assert plan.fresh is None
    lowerings = plan.update.lowerings(plan.state, plan.batch)
    assert set(lowerings) == {"update", "reference"}
    rows = lowerings["reference"]().out_info
    assert rows.shape == plan.batch.action_mask_NA.shape
    config.algorithm.kl = 0.0
    without = Plan.of(config, toy.layout())
    assert (without.state.reference, without.batch.mixture) == (None, None)


# Supervised classes.


def test_classes_of_a_batch_and_their_weights(place):
    vocab = Vocab.from_pretrained(place.policy)
    settings = SimpleNamespace(balance="classes", beta=0.5, decision_token=0)
    classes = TurnClasses(settings, "plain", vocab)
    silent = [Turn((), "", 2.0, SILENCE), Turn((), "", 4.0, SILENCE)]
    spoken = [Turn((), "", 2.0, "A ring."), silent[1]]
    dialogues = [Dialogue("d", tuple(turns)) for turns in (silent, spoken)]
    assert classes.counts(dialogues) == [3, 1]
    low, high = 1 / 1.75, 1.0  # 1 / E
    weights = classes.weights(dialogues, [3, 1], (3, 4))
    scale = 2 / (low + high)
    expected = np.zeros((3, 4))
    expected[0, :2] = expected[1, 1] = low * scale
    expected[1, 0] = high * scale
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    off = TurnClasses(SimpleNamespace(balance="none", decision_token=0), "plain", vocab)
    assert off.counts(dialogues) == [0, 0]
    np.testing.assert_array_equal(off.weights(dialogues, [0, 0], (3, 4)), 0.0)


def test_a_token_that_both_classes_share_decides_nothing(place):
    """``</`` begins both of StreamPro's marks unless the tokenizer knows them as tokens."""
    vocab = Vocab.from_pretrained(place.policy)
    marks = vocab.encode("</Silence>"), vocab.encode("</Response>")
    shared = next(i for i, pair in enumerate(zip(*marks, strict=False)) if pair[0] != pair[1])
    assert shared > 0
    settings = {"balance": "classes", "beta": 0.9}
    TurnClasses(SimpleNamespace(**settings, decision_token=shared), "streampro", vocab)
    with pytest.raises(InputError, match="same for this tokenizer") as error:
        TurnClasses(SimpleNamespace(**settings, decision_token=0), "streampro", vocab)
    assert error.value.field == "algorithm.decision_token"


def test_balanced_sft_moves_the_loss_and_not_the_likelihood(place, sft_run, tmp_path):
    """The first step on the same data: another loss, the same nll."""
    config = sft(place, tmp_path / "run")
    config.algorithm.balance = "classes"
    config.run.update(steps=1, export=False)
    (line,), plain = read_jsonl(run.train(config)[0] / METRICS), read_jsonl(sft_run / METRICS)[0]
    assert plain["loss"] == pytest.approx(plain["nll"], rel=1e-5)
    assert line["nll"] == pytest.approx(plain["nll"], rel=1e-5)
    assert line["loss"] > 1.2 * line["nll"]  # text weighs 2


# What is refused.


def ready(config):
    config.policy.checkpoint, config.data.path = "policy", "data"
    return config


@pytest.mark.parametrize("reward", ["thinkstream", "streampro"])
def test_turn_credit_needs_prefix_scores(reward):
    config = ready(rl_config("turnwise", reward))
    with pytest.raises(InputError, match="no prefix scores") as error:
        validate(config)
    assert error.value.field == "reward.kind"
    config.algorithm.credit = "shared"
    validate(config)
    validate(ready(rl_config("grpo", reward)))


def test_a_reward_is_chosen_in_the_config_file():
    with pytest.raises(InputError, match="allowed: pauc, thinkstream, streampro"):
        rl_config("grpo", "bleu")
    config = ready(rl_config("grpo"))
    config.reward.kind = "streampro"
    with pytest.raises(InputError, match="has no such setting; choose the reward") as error:
        validate(config)
    assert error.value.field.startswith("reward.")
    config.reward.kind = "bleu"
    with pytest.raises(InputError, match="allowed: pauc") as error:
        validate(config)
    assert error.value.field == "reward.kind"


@pytest.mark.parametrize(
    ("reward", "field", "value"),
    [
        ("thinkstream", "timing", -0.1), ("thinkstream", "correctness", -0.1),
        ("thinkstream", "efficiency", -0.1), ("thinkstream", "format", -0.1),
        ("thinkstream", "slack", -1.0), ("thinkstream", "window", 0),
        ("thinkstream", "think_tokens", -1), ("thinkstream", "think_step", 0),
        ("thinkstream", "reply_step", 0), ("thinkstream", "max_replies", 0),
        ("streampro", "format", -0.1), ("streampro", "turn_f1", -0.1),
        ("streampro", "rubric", -0.1), ("streampro", "tolerance", 0.0),
    ],
)  # fmt: skip
def test_impossible_values_of_a_reward_are_refused(reward, field, value):
    config = ready(rl_config("grpo", reward))
    config.reward[field] = value
    with pytest.raises(InputError) as error:
        validate(config)
    assert error.value.field == f"reward.{field}"


def test_styles_are_known_and_balance_needs_a_deciding_token():
    config = ready(sft_config())
    config.policy.replies = "morse"
    with pytest.raises(InputError, match="allowed: plain") as error:
        validate(config)
    assert error.value.field == "policy.replies"
    config.policy.replies = "thinkstream"
    validate(config)
    config.algorithm.balance = "classes"
    with pytest.raises(InputError, match="think block") as error:
        validate(config)
    assert error.value.field == "algorithm.balance"


def test_a_baseline_is_taken_up_where_it_was_killed(place, thinking, tmp_path, monkeypatch):
    """The reference policy is the one that the run began with, also after a restart."""
    speak_in_turn(monkeypatch)
    config = baseline(place, tmp_path / "run", "thinkstream")
    crash_before(monkeypatch, collect.RolloutCollector, 1)
    with pytest.raises(Crash):
        run.train(config)
    crash_before(monkeypatch, collect.RolloutCollector, None)
    assert run.train(config)[1]
    for name in (METRICS, f"{EXPORT}/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (thinking / name).read_bytes()
