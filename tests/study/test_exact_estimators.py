"""What the exact study claims of its estimators, proved by enumeration on small problems."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.algorithms import grpo, turnwise
from turnwise_jax.algorithms.types import Actions
from turnwise_jax.study.exact_estimators import (
    WEIGHTINGS,
    Groups,
    Moments,
    Quality,
    Slopes,
    advantages,
    all_pairs,
    deviation,
    jackknife,
    pair_advantages,
    token_weights,
    total,
    values,
)
from turnwise_jax.study.exact_learning import draw
from turnwise_jax.study.exact_measure import Bench, decision_rows
from turnwise_jax.study.exact_policy import Tables, true_gradient
from turnwise_jax.study.exact_problem import FORCED, Setting, enumerate_trajectories

SMALL = Setting(times=(2.0, 4.0), windows=((2.0, 5.0),))  # 9 trajectories
LARGER = Setting(times=(2.0, 4.0, 8.0))  # 125


class Case:
    """A problem, a policy and its true gradient."""

    def __init__(self, setting: Setting, seed: int = 0, **biases: float):
        self.data = enumerate_trajectories(setting)
        self.tables = Tables(self.data)
        self.logits_S = self.tables.logits(biases, noise=0.5, seed=seed)
        self.prob_N = self.tables.probabilities(self.logits_S)
        self.truth_S = true_gradient(self.tables, self.logits_S)
        self.credit: dict[tuple[float, bool], np.ndarray] = {}
        self.slopes = {
            name: Slopes(self.tables, self.logits_S, token_weights(self.data, name), self.truth_S)
            for name in WEIGHTINGS
        }

    def mean(self, groups: Groups, reduction: str) -> np.ndarray:
        return Moments.of(groups, self.slopes[reduction]).mean_S

    def quality(self, groups: Groups, reduction: str) -> Quality:
        return Quality.of(Moments.of(groups, self.slopes[reduction]), self.truth_S)

    def pairs(self, alpha: float, *, normalised: bool = False) -> Groups:
        if (alpha, normalised) not in self.credit:
            credit = pair_advantages(self.data, alpha, normalised=normalised)
            self.credit[alpha, normalised] = credit
        return all_pairs(self.credit[alpha, normalised], self.prob_N)

    def every(self, size: int, alpha: float) -> Groups:
        """All groups of a size, credit not normalised."""
        index = np.array(list(itertools.product(range(len(self.prob_N)), repeat=size)))
        credit = deviation(self.data.score_NK1[index], alpha)
        return Groups(index, credit, self.prob_N[index].prod(axis=1))


@pytest.fixture(scope="module")
def small() -> Case:
    return Case(SMALL)


@pytest.fixture(scope="module")
def larger() -> Case:
    return Case(LARGER, seed=1, silence=0.5)


def singles(credit_NK: np.ndarray, prob_N: np.ndarray) -> Groups:
    """Every trajectory as a group of its own, with credit that needs no group."""
    return Groups(np.arange(len(prob_N))[:, None], credit_NK[:, None, :], prob_N)


def dense(case: Case, groups: Groups, reduction: str) -> np.ndarray:
    """f64[M, S]: the update of every group, built token by token."""
    weights = token_weights(case.data, reduction)
    logp_S = case.tables.log_probs(case.logits_S)
    found = np.zeros((len(groups.index_MG), case.tables.size))
    for m, (index, credit) in enumerate(zip(groups.index_MG, groups.credit_MGK, strict=True)):
        for n, credit_K in zip(index, credit, strict=True):
            for slot, turn, weight in zip(
                case.data.slot_NA[n], case.data.turn_NA[n], weights.token_NA[n], strict=True
            ):
                if slot != FORCED:
                    table = case.tables.table_S == case.tables.table_S[slot]
                    found[m, table] -= credit_K[turn] * weight * np.exp(logp_S[table])
                    found[m, slot] += credit_K[turn] * weight
        found[m] /= weights.count_N[index].sum()
    return found


# -- what an estimate is -------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["turn", "trajectory_token", "batch_token"])
@pytest.mark.parametrize("credit", ["shared", "turn"])
def test_an_estimate_is_minus_the_gradient_of_the_real_loss(larger, reduction, credit):
    """Through the methods' own `advantages` and `loss`, down to the logits."""
    data, tables = larger.data, larger.tables
    index = np.array([3, 57, 101, 8])
    settings = turnwise.Settings(credit=credit, reduction=reduction, alpha_warmup=0.0)
    method = turnwise
    if credit == "shared" and reduction == "trajectory_token":
        method, settings = grpo, grpo.Settings()
    advantage_GK = method.advantages(
        jnp.asarray(data.score_NK1[index], jnp.float32),
        jnp.ones((4, 3), bool),
        jnp.ones(4, bool),
        step=1,
        total_steps=2,
        settings=settings,
    )
    table_S, num_tables = jnp.asarray(tables.table_S), int(tables.table_S[-1]) + 1

    def loss(logits_S):
        summed = jax.ops.segment_sum(jnp.exp(logits_S), table_S, num_tables)[table_S]
        logp_S = logits_S - jnp.log(summed)

        def terms(slot_A, mask_A, turn_A, advantage_K):
            logp_A = jnp.where(slot_A == FORCED, 0.0, logp_S[slot_A])
            old_A = jax.lax.stop_gradient(logp_A)
            actions = Actions(logp_A, old_A, old_A, mask_A, turn_A)
            return method.loss(actions, advantage_K, settings)

        told = (data.slot_NA[index], data.mask_NA[index], data.turn_NA[index])
        found = jax.vmap(terms)(*map(jnp.asarray, told), advantage_GK)
        return found.total.sum() / found.count.sum()

    expected = -jax.jit(jax.grad(loss))(jnp.asarray(larger.logits_S, jnp.float32))
    alpha = {"shared": 0.0, "turn": 1.0}[credit]
    used = advantages(data.score_NK1[index][None], alpha, normalised=True)
    actual = larger.mean(Groups(index[None], used, np.ones(1)), reduction)
    assert np.abs(actual).max() > 1e-3
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_token_weights_are_those_of_equations_7_and_8(larger):
    data = larger.data
    turn, token = (token_weights(data, name) for name in ("turn", "trajectory_token"))
    batch = token_weights(data, "batch_token")
    for n in range(0, len(data.reply_NK), 9):
        length_K = data.length_NK[n]
        real, owner = data.mask_NA[n], data.turn_NA[n]
        np.testing.assert_allclose(turn.token_NA[n][real], 1 / (3 * length_K[owner[real]]), 1e-6)
        np.testing.assert_allclose(token.token_NA[n][real], 1 / length_K.sum(), 1e-6)
        assert not turn.token_NA[n][~real].any()
        assert batch.token_NA[n].sum() == batch.count_N[n] == length_K.sum()
        assert turn.count_N[n] == token.count_N[n] == 1


@pytest.mark.parametrize("reduction", WEIGHTINGS)
def test_moments_equal_those_of_updates_built_token_by_token(small, reduction):
    for groups in (small.pairs(1.0), small.every(3, 0.5)):
        updates = dense(small, groups, reduction)
        mass, truth = groups.mass_M, small.truth_S
        lengths = np.linalg.norm(updates, axis=1)
        moved = lengths > 1e-12
        cosine = np.where(
            moved, updates @ truth / np.where(moved, lengths, 1) / np.linalg.norm(truth), 0
        )
        moments = Moments.of(groups, small.slopes[reduction])
        assert moments.mass == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose(moments.mean_S, mass @ updates, atol=1e-14)
        assert moments.square == pytest.approx(mass @ lengths**2, rel=1e-10)
        assert moments.cosine == pytest.approx(mass @ cosine, rel=1e-6)
        assert moments.uphill == pytest.approx(mass @ (cosine > 0), rel=1e-6)
        assert moments.still == pytest.approx(mass @ ~moved, rel=1e-9)


def test_the_value_of_a_history_is_the_mean_of_what_follows(larger):
    data = larger.data
    value_NK = values(larger.tables, larger.logits_S)
    for n, k in ((0, 0), (17, 1), (60, 2), (124, 2)):
        same = (data.reply_NK[:, :k] == data.reply_NK[n, :k]).all(axis=1)
        mass = larger.prob_N * same
        assert value_NK[n, k] == pytest.approx(mass @ data.reward_N / mass.sum(), rel=1e-10)


# -- what is and what is not unbiased ------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_without_division_any_alpha_expects_the_true_gradient(small, size, alpha):
    """Exactly (G - 1) / G of it: a rollout is compared with a mean that holds itself."""
    mean_S = small.mean(small.every(size, alpha), "sum")
    np.testing.assert_allclose(mean_S, (size - 1) / size * small.truth_S, atol=1e-14)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_also_with_two_facts_and_three_decisions(larger, alpha):
    mean_S = larger.mean(larger.pairs(alpha), "sum")
    np.testing.assert_allclose(mean_S, 0.5 * larger.truth_S, atol=1e-14)


def test_any_function_of_the_history_may_be_subtracted_and_none_of_the_reply(larger):
    """Why prefix scores may: U_t-1 is known before the decision. U_t is not."""
    data = larger.data
    history_NK = np.array(
        [[hash((k, *row[:k].tolist())) % 97 / 10 for k in range(3)] for row in data.reply_NK]
    )
    reward_N1, score = data.reward_N[:, None], data.score_NK1
    for baseline_NK in (history_NK, score[:, :-1], values(larger.tables, larger.logits_S)):
        mean_S = larger.mean(singles(reward_N1 - baseline_NK, larger.prob_N), "sum")
        np.testing.assert_allclose(mean_S, larger.truth_S, atol=1e-13)
    late_S = larger.mean(singles(reward_N1 - score[:, 1:], larger.prob_N), "sum")
    assert np.abs(late_S - larger.truth_S).max() > 0.05


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_both_means_bend_the_expected_update_and_the_turn_mean_more(larger, alpha):
    alignment = {
        name: larger.quality(larger.pairs(alpha), name).alignment
        for name in ("sum", "trajectory_token", "turn")
    }
    assert alignment["sum"] == pytest.approx(1.0, abs=1e-12)
    assert alignment["turn"] < 0.97
    assert alignment["turn"] < alignment["trajectory_token"] < 0.9999


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("reduction", ["trajectory_token", "turn", "batch_token"])
def test_replies_of_one_length_are_not_bent_by_any_mean(alpha, reduction):
    even = Case(
        Setting(times=LARGER.times, silence_tokens=5, brief_tokens=5, long_tokens=5), seed=1
    )
    quality = even.quality(even.pairs(alpha), reduction)
    assert quality.alignment == pytest.approx(1.0, abs=1e-6)  # weights are float32


@pytest.mark.parametrize(("reduction", "moves"), [("sum", False), ("turn", True)])
def test_a_constant_credit_teaches_nothing_unless_lengths_divide(larger, reduction, moves):
    """Under the turn mean the baseline is part of what is expected: equal praise favours short."""
    constant = np.ones_like(larger.data.reply_NK, float)
    mean_S = larger.mean(singles(constant, larger.prob_N), reduction)
    assert (np.abs(mean_S).max() > 1e-3) == moves


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_dividing_by_the_groups_deviation_bends_it_too(larger, alpha):
    plain, divided = (
        larger.quality(larger.pairs(alpha, normalised=n), "sum") for n in (False, True)
    )
    assert plain.alignment == pytest.approx(1.0, abs=1e-12)
    assert divided.alignment < 0.99


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_that_bend_fades_with_the_size_of_the_group(larger, alpha):
    rng = np.random.default_rng(5)
    found = [larger.quality(larger.pairs(alpha, normalised=True), "sum").alignment]
    for size in (4, 16):
        index = draw(larger.prob_N, (20_000, size), rng)
        credit = advantages(larger.data.score_NK1[index], alpha, normalised=True)
        groups = Groups(index, credit, np.full(len(index), 1 / len(index)))
        found.append(larger.quality(groups, "sum").alignment)
    assert found[0] < found[1] < found[2]
    assert found[2] > 0.99


def test_equal_rewards_are_no_signal_even_where_turns_differ(larger):
    """Two ways to one reward: the kernels give such a group nothing, the remaining returns do."""
    data = larger.data
    first, second = next(
        (a, b)
        for a, b in itertools.combinations(range(len(data.reward_N)), 2)
        if data.reward_N[a] == data.reward_N[b]
        and np.abs(data.score_NK1[a] - data.score_NK1[b]).max() > 0.1
    )
    pair = data.score_NK1[[first, second]][None]
    assert not advantages(pair, 1.0, normalised=True).any()
    assert np.abs(deviation(pair, 1.0)).max() > 0.05
    plain = larger.quality(larger.pairs(1.0), "sum").still
    assert plain < larger.quality(larger.pairs(1.0, normalised=True), "sum").still


# -- noise ---------------------------------------------------------------------------------------


def test_turn_credit_is_less_noisy_with_two_windows_and_noisier_with_one():
    """The accrued reward is a control variate that may miss: nothing guarantees a gain."""
    ratio = {}
    for name, setting in {"one": Setting(LARGER.times, ((2.0, 10.0),)), "two": LARGER}.items():
        case = Case(setting)
        shared, turn = (case.quality(case.pairs(alpha), "sum").noise for alpha in (0.0, 1.0))
        ratio[name] = turn / shared
    assert ratio["two"] < 0.9
    assert ratio["one"] > 1.2


@pytest.mark.parametrize("windows", [((2.0, 10.0),), LARGER.windows])
def test_the_remaining_return_varies_less_where_the_best_alpha_is_above_a_half(windows):
    bench = Bench(enumerate_trajectories(Setting(LARGER.times, windows)), (), pairs=False)
    seen = set()
    for seed in range(6):
        rows = decision_rows(bench, "", bench.tables.logits({}, noise=1.0, seed=seed))
        assert rows[0]["best_alpha"] is None
        assert rows[0]["shared_sd"] == pytest.approx(rows[0]["turn_sd"], rel=1e-12)
        for row in rows[1:]:
            assert (row["turn_sd"] < row["shared_sd"]) == (row["best_alpha"] > 0.5)
            assert row["critic_sd"] < min(row["shared_sd"], row["turn_sd"])
            seen.add(row["best_alpha"] > 0.5)
    assert seen == {True, False}


@pytest.mark.parametrize("seed", range(4))
def test_an_ideal_critic_is_less_noisy_than_either(seed):
    case = Case(LARGER, seed=seed)
    credit_NK = case.data.reward_N[:, None] - values(case.tables, case.logits_S)
    shape = (len(case.prob_N), *credit_NK.shape)
    critic = all_pairs(np.broadcast_to(credit_NK[:, None], shape), case.prob_N)
    best = case.quality(critic, "sum").noise
    assert all(best < case.quality(case.pairs(alpha), "sum").noise for alpha in (0.0, 1.0))


def test_sampled_groups_agree_with_all_pairs_within_their_errors(larger):
    index = draw(larger.prob_N, (20_000, 2), np.random.default_rng(3))
    parts = []
    for block in np.array_split(index, 20):
        credit = advantages(larger.data.score_NK1[block], 1.0, normalised=True)
        groups = Groups(block, credit, np.full(len(block), 1 / len(index)))
        parts.append(Moments.of(groups, larger.slopes["turn"]))
    exact = larger.quality(larger.pairs(1.0, normalised=True), "turn")
    sampled, error = jackknife(parts, larger.truth_S)
    assert total(parts).mass == pytest.approx(1.0)
    for name in Quality._fields:
        gap, allowed = (getattr(x, name) for x in (sampled, error))
        assert abs(gap - getattr(exact, name)) < 4 * allowed
        assert 0 < allowed < 0.2 * abs(getattr(exact, name))
