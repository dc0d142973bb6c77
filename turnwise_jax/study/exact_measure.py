"""What is measured of the exact problem's estimators, as flat rows of numbers.

A row of ``estimator_rows`` is one estimator at one policy and group size: ``policy``, ``credit``
("shared", "turn", "alpha 0.25" .. or "critic"), ``alpha``, ``reduction``, ``normalised``,
``group``, ``exact`` (enumerated, not sampled), the fields of ``Quality`` and, where sampled, their
standard errors as ``<field>_error``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise_jax.study.exact_estimators import (
    SUM,
    WEIGHTINGS,
    Estimator,
    Groups,
    Moments,
    Quality,
    Slopes,
    Weights,
    advantages,
    all_pairs,
    jackknife,
    pair_advantages,
    token_weights,
    total,
    values,
)
from turnwise_jax.study.exact_learning import along_large_groups, along_truth, draw
from turnwise_jax.study.exact_policy import Tables, true_gradient
from turnwise_jax.study.exact_problem import KINDS, Trajectories, enumerate_trajectories

Row = dict[str, Any]
BLOCKS = 20  # of sampled groups, for their standard errors
TOKEN_MEAN, TURN_MEAN = "trajectory_token", "turn"
MEANS = (TOKEN_MEAN, TURN_MEAN)


def estimators(alphas: Sequence[float]) -> list[Estimator]:
    """All that are measured: both credits under every weighting, the alphas between under two."""
    found = []
    for normalised in (False, True):
        for reduction in WEIGHTINGS:
            found += [Estimator(alpha, reduction, normalised) for alpha in (0.0, 1.0)]
        between = [alpha for alpha in alphas if 0.0 < alpha < 1.0]
        found += [Estimator(a, name, normalised) for name in (SUM, TURN_MEAN) for a in between]
    return [*found, *(Estimator(None, reduction) for reduction in (SUM, *MEANS))]


def credit_name(alpha: float | None) -> str:
    """How rows call a strength of the correction."""
    if alpha is None:
        return "critic"
    return {0.0: "shared", 1.0: "turn"}.get(alpha, f"alpha {alpha:g}")


class Bench:
    """The problem with what all policies share: token weights and the credit of every pair."""

    def __init__(self, data: Trajectories, alphas: Sequence[float], *, pairs: bool):
        self.data, self.tables = data, Tables(data)
        self.weights: dict[str, Weights] = {name: token_weights(data, name) for name in WEIGHTINGS}
        self.pairs: dict[tuple[float, bool], np.ndarray] = {}
        if pairs:
            for alpha in sorted({0.0, 1.0, *alphas}):
                for normalised in (False, True):
                    self.pairs[alpha, normalised] = pair_advantages(
                        data, alpha, normalised=normalised
                    )

    def rows(
        self,
        policy: str,
        logits_S: np.ndarray,
        wanted: Sequence[Estimator],
        group: int,
        *,
        samples: int,
        seed: int,
        done: Callable[[], None] = lambda: None,
    ) -> list[Row]:
        """Rows of one policy and group size; ``done`` is called after each."""
        truth_S = true_gradient(self.tables, logits_S)
        prob_N = self.tables.probabilities(logits_S)
        critic_NK = self.data.reward_N[:, None] - values(self.tables, logits_S)
        exact = group == 2 and bool(self.pairs)
        index_MG = draw(prob_N, (samples, group), np.random.default_rng(seed))
        slopes = {
            name: Slopes(self.tables, logits_S, weights, truth_S)
            for name, weights in self.weights.items()
        }
        rows = []
        for estimator in wanted:
            blocks = (
                [self._pairs(estimator, prob_N, critic_NK)]
                if exact
                else self._sampled(estimator, index_MG, critic_NK)
            )
            parts = [Moments.of(block, slopes[estimator.reduction]) for block in blocks]
            row = {
                "policy": policy,
                "credit": credit_name(estimator.alpha),
                **estimator._asdict(),
                "group": group,
                "exact": exact,
            }
            if exact:
                row |= Quality.of(total(parts), truth_S)._asdict()
            else:
                quality, error = jackknife(parts, truth_S)
                row |= quality._asdict()
                row |= {f"{name}_error": value for name, value in error._asdict().items()}
            rows.append(row)
            done()
        return rows

    def _pairs(self, estimator: Estimator, prob_N: np.ndarray, critic_NK: np.ndarray) -> Groups:
        if estimator.alpha is None:
            shape = (len(prob_N), *critic_NK.shape)
            return all_pairs(np.broadcast_to(critic_NK[:, None], shape), prob_N)
        return all_pairs(self.pairs[estimator.alpha, estimator.normalised], prob_N)

    def _sampled(
        self, estimator: Estimator, index_MG: np.ndarray, critic_NK: np.ndarray
    ) -> Iterator[Groups]:
        for index in np.array_split(index_MG, BLOCKS):
            if estimator.alpha is None:
                credit = critic_NK[index]
            else:
                score = self.data.score_NK1[index]
                credit = advantages(score, estimator.alpha, normalised=estimator.normalised)
            yield Groups(index, credit, np.full(len(index), 1.0 / len(index_MG)))


def decision_rows(bench: Bench, policy: str, logits_S: np.ndarray) -> list[Row]:
    """Deviations of the three credits at each decision: reward, remaining return, critic's.

    ``best_alpha`` is the strength at which ``R - alpha C_t-1`` varies least, ``cov(R, C) / var C``:
    1 where what was accrued says nothing of what remains, less where later turns undo it or make
    up for it. The remaining return varies less than the reward if it is above 1/2. It is None where
    nothing is accrued.
    """
    data = bench.data
    prob_N = bench.tables.probabilities(logits_S)
    value_NK = values(bench.tables, logits_S)
    rows = []
    for k, time in enumerate(data.setting.times):
        accrued_N = data.score_NK1[:, k] - data.score_NK1[:, 0]
        credits = {
            "shared": data.reward_N,
            "turn": data.reward_N - data.score_NK1[:, k],
            "critic": data.reward_N - value_NK[:, k],
        }
        spread = {f"{n}_sd": _covariance(c, c, prob_N) ** 0.5 for n, c in credits.items()}
        varies = _covariance(accrued_N, accrued_N, prob_N)
        best = _covariance(data.reward_N, accrued_N, prob_N) / varies if k else None
        where = {"policy": policy, "decision": k + 1, "time": time}
        rows.append({**where, **spread, "best_alpha": best})
    return rows


def window_rows(
    problems: Mapping[str, Trajectories], policies: Mapping[str, Mapping[str, float]], noise: float
) -> list[Row]:
    """Turn against shared credit in problems with other windows, groups of two, enumerated.

    ``noise_ratio`` and ``cosine_ratio``: turn-level over shared credit; below 1 and above 1 are to
    turn-level credit's advantage. ``best_alphas``: from the second decision on, see
    :func:`decision_rows`.
    """
    rows = []
    for problem, data in problems.items():
        bench = Bench(data, (), pairs=True)
        known = set(bench.tables.names_S)
        for policy, biases in policies.items():
            logits_S = bench.tables.logits(
                {name: bias for name, bias in biases.items() if name in known}, noise=noise
            )
            wanted = [
                Estimator(alpha, name, normalised)
                for name in (SUM, TURN_MEAN)
                for normalised in (False, True)
                for alpha in (0.0, 1.0)
            ]
            found = bench.rows(policy, logits_S, wanted, 2, samples=1, seed=0)
            best = [row["best_alpha"] for row in decision_rows(bench, policy, logits_S)[1:]]
            for shared, turn in zip(found[::2], found[1::2], strict=True):
                rows.append(
                    {
                        "problem": problem,
                        "policy": policy,
                        "reduction": turn["reduction"],
                        "normalised": turn["normalised"],
                        "noise_ratio": turn["noise"] / shared["noise"],
                        "cosine_ratio": turn["cosine"] / shared["cosine"],
                        "shared_alignment": shared["alignment"],
                        "turn_alignment": turn["alignment"],
                        "best_alphas": best,
                    }
                )
    return rows


def weight_rows(bench: Bench, policy: str, logits_S: np.ndarray) -> list[Row]:
    """What a decision of each kind weighs in the loss on average, and what its choices weigh.

    ``loss``: the weight of all its tokens together, relative to an average decision's. ``choice``:
    that of its first token, where silence or a fact is chosen, relative to the average.
    """
    data = bench.data
    prob_N = bench.tables.probabilities(logits_S)
    rows = []
    for name in MEANS:
        weight_NA = bench.weights[name].token_NA
        loss_NK, choice_NK = _by_turn(data, weight_NA)
        mass_NK = np.broadcast_to(prob_N[:, None], loss_NK.shape)
        for level, kind in enumerate(KINDS):
            here = data.level_NK == level
            share = mass_NK[here].sum() / mass_NK.sum()
            row = {"policy": policy, "reduction": name, "kind": kind, "share": share}
            for title, weight_NK in (("loss", loss_NK), ("choice", choice_NK)):
                among = np.average(weight_NK[here], weights=mass_NK[here])
                row[title] = among / np.average(weight_NK, weights=mass_NK)
            rows.append(row)
    return rows


def direction_rows(bench: Bench, policy: str, logits_S: np.ndarray) -> list[Row]:
    """What the expected update does to the chance of silence, where a reply helps and where not.

    Updates are those of endless groups, all of one length. ``useful``: change of the probability of
    silence per unit of length, mean over visited decisions that lie in a window whose fact has not
    been told at length; ``useless``: over all other decisions.
    """
    tables, data = bench.tables, bench.data
    prob_N = tables.probabilities(logits_S)
    useful_K = _useful(data)
    directions = {("truth", ""): along_truth(tables)(logits_S[None])[0]}
    for name in MEANS:
        for alpha in (0.0, 1.0):
            update_S = along_large_groups(tables, alpha, bench.weights[name])(logits_S[None])[0]
            directions[credit_name(alpha), name] = update_S
    visits = np.bincount(
        data.state_NK.ravel(), np.repeat(prob_N, data.state_NK.shape[1]), len(data.states)
    )
    rows = []
    for (credit, name), update_S in directions.items():
        change = _silence_slope(tables, logits_S, update_S / np.linalg.norm(update_S))
        rows.append(
            {
                "policy": policy,
                "credit": credit,
                "reduction": name,
                "useful": np.average(change[useful_K], weights=visits[useful_K]),
                "useless": np.average(change[~useful_K], weights=visits[~useful_K]),
            }
        )
    return rows


def length_rows(
    bench: Bench, policies: Mapping[str, np.ndarray], lengths: Sequence[int]
) -> list[Row]:
    """Alignment of the expected update, before normalisation, by the length of a long reply."""
    rows = []
    for length in lengths:
        setting = dataclasses.replace(bench.data.setting, long_tokens=length)
        data = enumerate_trajectories(setting)
        tables = Tables(data)
        for name in MEANS:
            weights = token_weights(data, name)
            for alpha in (0.0, 1.0):
                for policy, logits_S in policies.items():
                    update_S = along_large_groups(tables, alpha, weights)(logits_S[None])[0]
                    truth_S = true_gradient(tables, logits_S)
                    rows.append(
                        {
                            "policy": policy,
                            "credit": credit_name(alpha),
                            "reduction": name,
                            "long_tokens": length,
                            "alignment": _cosine(update_S, truth_S),
                        }
                    )
    return rows


def _by_turn(data: Trajectories, weight_NA: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(f64[N, K] weight of a decision's tokens together, f64[N, K] weight of its first token)."""
    num_turns = data.reply_NK.shape[1]
    owned = (data.turn_NA[:, :, None] == np.arange(num_turns)) & data.mask_NA[:, :, None]
    together = (weight_NA[:, :, None] * owned).sum(axis=1)
    return together, together / data.length_NK


def _useful(data: Trajectories) -> np.ndarray:
    """bool[states]: a reply of the right fact at length would be news in an open window."""
    setting = data.setting
    return np.array(
        [
            any(
                start <= setting.times[turn] <= end and memory[fact] < 2
                for fact, (start, end) in enumerate(setting.windows)
            )
            for turn, memory in data.states
        ]
    )


def _silence_slope(tables: Tables, logits_S: np.ndarray, update_S: np.ndarray) -> np.ndarray:
    """f64[states]: derivative of each state's probability of silence along an update."""
    prob_S = np.exp(tables.log_probs(logits_S))
    mean = np.bincount(tables.table_S, prob_S * update_S)[tables.table_S]
    slope_S = prob_S * (update_S - mean)
    return slope_S[tables.names_S == "silence"]


def _covariance(one_N: np.ndarray, other_N: np.ndarray, prob_N: np.ndarray) -> float:
    return float(prob_N @ ((one_N - prob_N @ one_N) * (other_N - prob_N @ other_N)))


def _cosine(one_S: np.ndarray, other_S: np.ndarray) -> float:
    return float(one_S @ other_S / (np.linalg.norm(one_S) * np.linalg.norm(other_S)))
