"""Each method's file against the paper: credit, loss, schedule and the settings it refuses."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.algorithms import ALGORITHMS, grpo, sft, turnwise
from turnwise_jax.algorithms.policy_gradient import REDUCTIONS, reduce_tokens
from turnwise_jax.algorithms.types import Actions, reduce_terms

G, K, A = 4, 5, 48
EVERY = np.ones((G, K), bool)
ALL = np.ones(G, bool)


def prefix_scores(seed: int = 0) -> np.ndarray:
    """U of one group; U_0 is common, as all rollouts start from the same silence."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(G, K)) * (rng.random((G, K)) < 0.6)
    return (0.375 + np.concatenate([np.zeros((G, 1)), np.cumsum(steps, 1)], 1)).astype(np.float32)


def actions(lengths: tuple[int, ...], *, seed: int = 0) -> Actions:
    """One trajectory with that many tokens in each turn; 0 leaves a turn without tokens."""
    rng = np.random.default_rng(seed)
    turn = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    padding = A - len(turn)
    mask = np.arange(A) < len(turn)
    logp = np.where(mask, rng.uniform(-3, 0, mask.shape), np.nan).astype(np.float32)
    old = (logp - np.where(mask, rng.uniform(-1.2, 1.4, mask.shape), 0)).astype(np.float32)
    return Actions(logp, old, old, mask, np.pad(turn, (0, padding), constant_values=99))


def credit(method, scores: np.ndarray, step: int, total: int = 100, **settings) -> np.ndarray:
    chosen = method.Settings(**settings)
    chosen.check()
    return np.asarray(
        method.advantages(scores, EVERY, ALL, step=step, total_steps=total, settings=chosen)
    )


@partial(jax.jit, static_argnums=(0, 3))
def compiled_loss(method, acts: Actions, advantage, settings):
    return method.loss(acts, advantage, settings)


def loss(method, acts: Actions, advantage, **settings):
    """The loss with advantages of up to K turns; turns without tokens are in no mean."""
    full = jnp.zeros(K).at[: len(advantage)].set(jnp.asarray(advantage, jnp.float32))
    return compiled_loss(method, acts, full, method.Settings(**settings))


# Ablations of Table 2: which credit and which mean stand behind each row.


@pytest.mark.parametrize("step", [0, 7, 100])
def test_shared_credit_with_trajectory_means_is_grpo(step):
    scores, acts = prefix_scores(), actions((3, 1, 4, 1, 2))
    ablated = {"credit": "shared", "reduction": "trajectory_token"}
    advantage = credit(turnwise, scores, step, **ablated)
    np.testing.assert_array_equal(advantage, credit(grpo, scores, step))
    ours = loss(turnwise, acts, advantage[0], **ablated)
    theirs = loss(grpo, acts, advantage[0])
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_grpo_gives_every_turn_the_standardised_terminal_reward():
    scores = prefix_scores()
    reward = scores[:, -1].astype(np.float64)
    expected = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(
        credit(grpo, scores, 50), np.repeat(expected[:, None], K, 1), rtol=1e-4
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_turn_credit_is_equation_5(alpha):
    scores = prefix_scores(1).astype(np.float64)
    reward = scores[:, -1]
    scale = reward.std(ddof=1) + 1e-6
    accrued = scores[:, :-1] - scores[:, :1]
    shared = ((reward - reward.mean()) / scale)[:, None]
    expected = np.clip(shared - alpha * (accrued - accrued.mean(0)) / scale, -1.3, 1.3)
    assert (np.abs(expected) == 1.3).any()
    advantage = credit(turnwise, scores.astype(np.float32), 100, alpha=alpha, max_advantage=1.3)
    np.testing.assert_allclose(advantage, expected, atol=1e-4)


def test_turn_credit_alone_and_turn_mean_alone_differ_from_both():
    scores, acts = prefix_scores(2), actions((3, 1, 4, 1, 2))
    values = set()
    for settings in (
        {"credit": "shared", "reduction": "trajectory_token"},
        {"credit": "shared", "reduction": "turn"},
        {"credit": "turn", "reduction": "trajectory_token"},
        {"credit": "turn", "reduction": "turn"},
    ):
        advantage = credit(turnwise, scores, 100, **settings)
        values.add(round(float(loss(turnwise, acts, advantage[1], **settings).total), 5))
    assert len(values) == 4


# The schedule of alpha, eq. G.8.


@pytest.mark.parametrize("total", [6, 30, 497])
def test_alpha_starts_at_zero_and_is_whole_from_a_tenth_on(total):
    settings = turnwise.Settings()
    full = math.ceil(total / 10)
    values = [float(turnwise.alpha(settings, step, total)) for step in range(full + 2)]
    assert values[0] == 0.0
    assert values == pytest.approx([min(1.0, s / full) for s in range(full + 2)])
    assert float(turnwise.alpha(settings, full - 1, total)) < 1.0
    assert values[full] == values[full + 1] == 1.0


def test_first_update_uses_clipped_grpo_credit():
    scores = prefix_scores(3)
    np.testing.assert_allclose(credit(turnwise, scores, 0), credit(grpo, scores, 0), rtol=1e-6)


def test_alpha_settings():
    assert float(turnwise.alpha(turnwise.Settings(credit="shared"), 50, 100)) == 0.0
    assert float(turnwise.alpha(turnwise.Settings(alpha_warmup=0.0), 0, 100)) == 1.0
    assert float(turnwise.alpha(turnwise.Settings(alpha=0.5), 100, 100)) == 0.5
    assert float(turnwise.alpha(turnwise.Settings(alpha=0.5), 5, 100)) == 0.25
    assert turnwise.schedule(turnwise.Settings(), 5, 100).keys() == {"alpha"}
    assert grpo.schedule(grpo.Settings(), 5, 100) == {}


# Means.


def slope(lengths: tuple[int, ...], reduction: str) -> np.ndarray:
    """Size of d loss / d logp of every token, advantages 1 and ratios 1."""
    acts = actions(lengths)

    def value(logp):
        same = acts._replace(logp_A=logp, old_logp_A=jax.lax.stop_gradient(logp))
        return loss(turnwise, same, np.ones(K), reduction=reduction).total

    return -np.asarray(jax.grad(value)(np.nan_to_num(acts.logp_A)))[acts.mask_A]


def test_a_long_reply_and_a_silence_weigh_the_same_in_the_turn_mean():
    lengths = (40, 3)  # a reply, and NO REPLY with its marker
    grads = slope(lengths, "turn")
    assert grads[:40].sum() == pytest.approx(grads[40:].sum()) == pytest.approx(0.5)
    grads = slope(lengths, "trajectory_token")
    assert grads[:40].sum() == pytest.approx(40 / 43)


def test_a_turn_without_trained_tokens_is_left_out_of_the_mean():
    np.testing.assert_allclose(slope((2, 0, 1), "turn"), [0.25, 0.25, 0.5], rtol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_trajectory_without_trained_tokens_adds_nothing(reduction):
    acts = actions((0, 0))
    for method in (turnwise, sft):
        terms = loss(method, acts, np.ones(2), reduction=reduction)
        assert (float(terms.total), float(terms.count)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("turn", ((1 + 3 + 5) / 3 + 2.0) / 2),
        ("trajectory_token", ((1 + 1 + 3 + 5 + 5) / 5 + 2.0) / 2),
        ("batch_token", (1 + 1 + 3 + 5 + 5 + 2) / 6),
    ],
)
def test_means_by_hand(reduction, expected):
    """Two trajectories: turns (1, 1), (3), (5, 5), and a single turn (2)."""
    value = np.asarray([[1, 1, 3, 5, 5, 9], [2, 9, 9, 9, 9, 9]], np.float32)
    mask = np.asarray([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]], bool)
    turn = np.asarray([[0, 0, 1, 2, 2, 0], [0] * 6], np.int32)
    parts = [
        reduce_tokens(*row, num_turns=3, reduction=reduction)
        for row in zip(value, mask, turn, strict=True)
    ]
    total, count = (sum(float(part[i]) for part in parts) for i in range(2))
    assert total / count == pytest.approx(expected)


def test_advantage_of_a_turn_reaches_its_own_tokens_only():
    acts = actions((2, 3, 1))

    def value(logp, advantage):
        same = acts._replace(logp_A=logp, old_logp_A=jax.lax.stop_gradient(logp))
        return loss(turnwise, same, advantage).total

    for turn in range(3):
        advantage = np.eye(K)[turn]
        grads = np.asarray(jax.grad(value)(np.nan_to_num(acts.logp_A), advantage))
        np.testing.assert_array_equal(grads != 0, acts.mask_A & (acts.turn_id_A == turn))


# Masks and extremes.


@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_extreme_ratios_give_the_clipped_loss_and_no_gradient(log_ratio, advantage):
    old = np.full(A, -1000.0 if log_ratio > 0 else 0.0, np.float32)
    acts = actions((1,))._replace(old_logp_A=old)

    def value(logp):
        return loss(turnwise, acts._replace(logp_A=logp), [advantage]).total

    result, grad = jax.value_and_grad(value)(acts.old_logp_A + np.float32(log_ratio))
    if advantage > 0:
        # A tiny ratio is not clipped from below: min(rho A, 0.8 A) = rho A.
        expected = -1.2 if log_ratio > 0 else 0.0
    else:
        expected = 3.0 if log_ratio > 0 else 0.8
    assert float(result) == pytest.approx(expected, abs=1e-6)
    np.testing.assert_array_equal(grad, 0.0)


def test_statistics_of_a_split_batch_add_up():
    """Sums and counts are carried: any split gives the same means and maxima."""
    parts = [loss(turnwise, actions((i + 1, 2), seed=i), np.ones(2)) for i in range(3)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *[jax.tree.map(np.asarray, p) for p in parts])
    whole = reduce_terms(stacked)
    for name, (total, count) in whole.means.items():
        assert float(count) == sum(float(p.means[name][1]) for p in parts)
        assert float(total) == pytest.approx(sum(float(p.means[name][0]) for p in parts))
    for name, value in whole.maxima.items():
        assert float(value) == max(float(p.maxima[name]) for p in parts)


def test_sft_loss_is_the_mean_negative_log_likelihood():
    acts = actions((3, 2))
    terms = loss(sft, acts, np.zeros(2))
    expected = -acts.logp_A[acts.mask_A].astype(np.float64).sum()
    assert float(terms.total) == pytest.approx(expected, rel=1e-6)
    assert float(terms.count) == 5
    assert [float(x) for x in terms.means["nll"]] == pytest.approx([expected, 5], rel=1e-6)


# What is refused.

CLIPPED = [turnwise, grpo]


@pytest.mark.parametrize("method", CLIPPED)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dual_clip", 1.0, "c > 1"),
        ("dual_clip", 0.5, "c > 1"),
        ("dual_clip", math.nan, "c > 1"),
        ("clip_low", -0.1, "clip range"),
        ("clip_low", 1.0, "clip range"),
        ("clip_high", -0.1, "clip range"),
        ("clip_high", math.nan, "clip range"),
        ("eps", 0.0, "eps"),
        ("reduction", "tokens", "reduction"),
    ],
)
def test_impossible_settings_are_refused(method, field, value, message):
    with pytest.raises(ValueError, match=message):
        method.Settings(**{field: value}).check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("credit", "token"),
        ("alpha", 1.5),
        ("alpha", -0.1),
        ("alpha", math.nan),
        ("alpha_warmup", -0.1),
        ("alpha_warmup", 1.1),
        ("max_advantage", 0.0),
        ("max_advantage", math.nan),
    ],
)
def test_impossible_settings_of_turnwise_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        turnwise.Settings(**{field: value}).check()


def test_sft_refuses_an_unknown_reduction():
    with pytest.raises(ValueError, match="reduction"):
        sft.Settings(reduction="tokens").check()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_allowed_and_are_the_papers(name):
    settings = ALGORITHMS[name].Settings()
    settings.check()
    if name != "sft":
        assert (settings.clip_low, settings.clip_high) == (0.2, 0.2)
        assert settings.dual_clip == (0.0 if name == "avatar" else 3.0)
