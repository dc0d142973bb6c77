"""``run_exact(config)``: credit and reductions against the true gradient of a tiny problem.

Nothing is trained and no video is made: all trajectories of a streaming problem are enumerated and
scored by the real kernels, so that bias and variance of every estimator are known, for groups of
two to the last digit. What it leaves in ``config.dir``::

    tables.md                     what is worth reading, as tables
    estimators.csv learning.csv   a line for each estimator and policy, and for each learner
    exact.json                    all of it, the learning curves included
    estimators.png sweeps.png learning.png
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from turnwise_jax.files import write_text
from turnwise_jax.progress import ProgressBar
from turnwise_jax.study.exact_config import HALF_TRAINED, check, other_settings, setting_of
from turnwise_jax.study.exact_learning import (
    Behaviour,
    Direction,
    Learner,
    along_large_groups,
    along_pairs,
    along_samples,
    along_truth,
    climb,
    summary,
)
from turnwise_jax.study.exact_measure import (
    MEANS,
    TURN_MEAN,
    Bench,
    Row,
    credit_name,
    decision_rows,
    direction_rows,
    estimators,
    length_rows,
    weight_rows,
    window_rows,
)
from turnwise_jax.study.exact_plots import write_pictures
from turnwise_jax.study.exact_problem import enumerate_trajectories
from turnwise_jax.study.exact_tables import comma_separated, markdown


def run_exact(config: ConfigDict, *, console: Console | None = None) -> Path:
    """Compute everything anew and write it; returns the directory.

    Args:
      config: from ``study.exact_config.exact_config``, with overrides applied.
      console: where the end is told.

    Raises:
      InputError: a value that cannot be used.
    """
    check(config)
    results = compute(config)
    directory = Path(config.dir)
    write_text(directory / "tables.md", markdown(results))
    for name in ("estimators", "learning"):
        write_text(directory / f"{name}.csv", comma_separated(results[name]))
    write_text(directory / "exact.json", json.dumps(results, indent=1) + "\n")
    write_pictures(directory, results)
    console = console or Console()
    console.print(f"tables and pictures are in {directory}")
    return directory


def compute(config: ConfigDict) -> dict[str, Any]:
    """Every number of the study as plain values; the keys are ``exact.json``'s."""
    data = enumerate_trajectories(setting_of(config))
    wanted = estimators(config.alphas)
    learners = [Learner(None, ""), *_learners(config.alphas)]
    rounds = (len(config.policies) + 1) * len(config.groups)
    with ProgressBar("exact study", rounds * len(wanted) + 3 * len(learners)) as bar:
        bench = Bench(
            data, config.alphas, pairs=setting_of(config).num_trajectories ** 2 <= config.max_pairs
        )
        policies = _policies(config, bench)
        rows: list[Row] = []
        for policy, logits_S in policies.items():
            for group in config.groups:
                rows += bench.rows(
                    policy,
                    logits_S,
                    wanted,
                    group,
                    samples=config.samples,
                    seed=config.seed,
                    done=bar.update,
                )
        learning = _learning(config, bench, learners, bar.update)
    each = [(bench, policy, logits_S) for policy, logits_S in policies.items()]
    return {
        "problem": _problem(config, bench),
        "policies": {
            name: Behaviour.of(bench.tables, logits_S)._asdict()
            for name, logits_S in policies.items()
        },
        "estimators": rows,
        "decisions": [row for one in each for row in decision_rows(*one)],
        "weights": [row for one in each for row in weight_rows(*one)],
        "directions": [row for one in each for row in direction_rows(*one)],
        "lengths": length_rows(bench, policies, config.lengths),
        "windows": window_rows(
            {n: enumerate_trajectories(other) for n, other in other_settings(config).items()},
            config.policies,
            config.noise,
        ),
        "learning": learning,
    }


def _problem(config: ConfigDict, bench: Bench) -> dict[str, Any]:
    reward_N = bench.data.reward_N
    return {
        **config.problem.to_dict(),
        "trajectories": len(reward_N),
        "parameters": bench.tables.size,
        "best_reward": float(reward_N.max()),
        "worst_reward": float(reward_N.min()),
        "silent_reward": float(bench.data.score_NK1[0, 0]),
    }


def _policies(config: ConfigDict, bench: Bench) -> dict[str, np.ndarray]:
    """f64[S] logits by name, those of the config and the half-trained one."""
    tables, learning = bench.tables, config.learning
    policies = {
        name: tables.logits(biases, noise=config.noise, seed=config.seed)
        for name, biases in config.policies.items()
    }
    _, trained_RS = climb(
        tables,
        policies[learning.start][None],
        along_truth(tables),
        updates=learning.half_trained,
        length=learning.length,
    )
    return {**policies, HALF_TRAINED: trained_RS[0]}


def _learners(alphas: tuple[float, ...]) -> list[Learner]:
    """Shared and turn credit under either mean, and the other alphas under the turn mean."""
    between = [Learner(alpha, TURN_MEAN) for alpha in alphas if 0.0 < alpha < 1.0]
    return [*(Learner(alpha, name) for name in MEANS for alpha in (0.0, 1.0)), *between]


def _learning(
    config: ConfigDict, bench: Bench, learners: list[Learner], done: Callable[[], None]
) -> list[Row]:
    """One row for each learner and kind of update: ``curve`` and what ``summary`` says of it."""
    best = float(bench.data.reward_N.max())
    rows = []
    for learner in learners:
        for kind, direction in _directions(config, bench, learner).items():
            curves_RU1 = _curves(config, bench, direction)
            rows.append(
                {
                    "updates_by": kind,
                    "credit": "truth" if learner.alpha is None else credit_name(learner.alpha),
                    **learner._asdict(),
                    **summary(curves_RU1, best),
                    "means": curves_RU1.mean(axis=1).tolist(),
                    "curve": curves_RU1.mean(axis=0).tolist(),
                }
            )
            done()
    return rows


def _directions(config: ConfigDict, bench: Bench, learner: Learner) -> dict[str, Direction]:
    """What a learner's updates follow, by kind of update."""
    tables, learning = bench.tables, config.learning
    if learner.alpha is None:
        return {"truth": along_truth(tables)}
    weights = bench.weights[learner.reduction]
    found = {"large groups": along_large_groups(tables, learner.alpha, weights)}
    if bench.pairs:
        found["pairs"] = along_pairs(tables, bench.pairs[learner.alpha, True], weights)
    found["sampled"] = along_samples(
        tables,
        learner.alpha,
        weights,
        groups=learning.groups,
        group_size=learning.group_size,
        seeds=range(config.seed, config.seed + learning.runs),
    )
    return found


def _curves(config: ConfigDict, bench: Bench, direction: Direction) -> np.ndarray:
    """f64[R, U+1]: expected rewards of runs whose starts differ in the noise of their logits."""
    learning = config.learning
    starts = [
        bench.tables.logits(
            config.policies[learning.start], noise=config.noise, seed=config.seed + run
        )
        for run in range(learning.runs)
    ]
    rewards_RU1, _ = climb(
        bench.tables,
        np.array(starts),
        direction,
        updates=learning.updates,
        length=learning.length,
    )
    return rewards_RU1
