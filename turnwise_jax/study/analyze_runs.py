"""A training run's logs as arrays, finished or not: its batches, and the credit of its decisions.

Everything comes from what every run leaves: ``metrics.jsonl``, ``groups.jsonl`` and
``config.json``. No policy, judge or data is needed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from turnwise_jax.errors import InputError
from turnwise_jax.kernels import turn_advantages
from turnwise_jax.study.plots import Records, credit_warmup
from turnwise_jax.train.directory import CONFIG
from turnwise_jax.train.metrics import GROUPS, METRICS, read_jsonl

_FULL = 1.0 - 1e-6  # alpha from here on is full correction


class Decisions(NamedTuple):
    """Every decision of complete trajectories under shared and under turn-level credit.

    Attributes:
      shared_N: f64[N] the trajectory's group-relative advantage (eq. 2).
      turn_N: f64[N] the turn-level advantage at alpha = 1 (eq. 4), clipped as in training.
      repetitive_N: bool[N] a reply that was judged to hold nothing new.
      trajectory_N: i64[N] which trajectory a decision is of, 0 to M - 1.
      batches: training batches that the trajectories are from.
      left_out: trajectories of these batches that are not complete: their reward, a prefix score or
        an advantage is missing, or they or another one of their group ended early.
      recomputed: the run was trained with other credit; ``turn_N`` comes from the logged prefix
        scores (the counterfactual).
    """

    shared_N: np.ndarray
    turn_N: np.ndarray
    repetitive_N: np.ndarray
    trajectory_N: np.ndarray
    batches: int
    left_out: int
    recomputed: bool


@dataclass(frozen=True, eq=False)
class Run:
    """One run's logs.

    Attributes:
      directory: where they lie.
      records: the lines of ``metrics.jsonl``.
      decisions: None for a run whose rollouts have no prefix scores.
    """

    directory: Path
    records: Records
    decisions: Decisions | None

    @property
    def warmup(self) -> int:
        """Batches in which the credit correction was still growing; 0 if it never did."""
        return credit_warmup(self.records)


def read_run(directory: str | os.PathLike[str]) -> Run:
    """Read a training run's directory.

    Raises:
      InputError: it holds no log, or one that cannot be read.
    """
    place = Path(directory)
    if not (place / METRICS).is_file():
        raise InputError(
            f"holds no {METRICS}; name the directory of a training run (run.dir)", file=place
        )
    records, groups = _lines(place / METRICS), _lines(place / GROUPS)
    if not records:
        raise InputError("has no batch yet; analyze the run later", file=place / METRICS)
    _check_metrics(records, place / METRICS)
    _check_lengths(groups, place / GROUPS)
    config = _algorithm(place / CONFIG)
    try:
        return Run(place, records, decisions_of(records, groups, config))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"is no log of this version: {error!r}", file=place / GROUPS) from error


def decisions_of(
    records: Records, groups: Records, algorithm: Mapping[str, Any]
) -> Decisions | None:
    """The credit of every decision in the logged groups.

    A run trained with turn-level credit and alpha 1 is taken from the batches after its warm-up,
    with the advantages that it was trained on. Of any other run, all batches are taken and the
    advantages recomputed.

    Args:
      records: lines of ``metrics.jsonl``.
      groups: lines of ``groups.jsonl``.
      algorithm: the section of the run's config.
    """
    if not groups or any(group.get("prefix_scores") is None for group in groups):
        return None
    trained = algorithm.get("credit") == "turn" and algorithm.get("alpha") == 1
    if trained:
        full = {record["step"] for record in records if (record.get("alpha") or 0) >= _FULL}
        groups = [group for group in groups if group["step"] in full]
    grouped = list(_grouped(groups))
    size = max(map(len, grouped), default=0)
    whole = [group for group in grouped if len(group) == size]
    turn_BGK = _logged(whole) if trained else _recomputed(whole, algorithm)
    shared, turn, repetitive, owner = [], [], [], []
    count = 0
    for b, group in enumerate(whole):
        turns = max(len(rollout["times"]) for rollout in group)
        for g, rollout in enumerate(group):
            if not (_complete(rollout, turns) and np.isfinite(turn_BGK[b, g, :turns]).all()):
                continue
            shared.append(np.full(turns, rollout["shared_advantage"], float))
            turn.append(turn_BGK[b, g, :turns])
            repetitive.append(_numbers(rollout["repetitive"]) == 1.0)
            owner.append(np.full(turns, count))
            count += 1
    return Decisions(
        shared_N=_joined(shared, float),
        turn_N=_joined(turn, float),
        repetitive_N=_joined(repetitive, bool),
        trajectory_N=_joined(owner, int),
        batches=len({group["step"] for group in groups}),
        left_out=len(groups) - count,
        recomputed=not trained,
    )


def _grouped(groups: Records) -> Iterator[list[Mapping[str, Any]]]:
    """Rollouts of one prompt in one batch, which follow each other and differ in their names."""
    group: list[Mapping[str, Any]] = []
    for rollout in groups:
        same = group and all(rollout[key] == group[0][key] for key in ("step", "group"))
        if group and not (same and rollout["id"] not in {other["id"] for other in group}):
            yield group
            group = []
        group.append(rollout)
    if group:
        yield group


def _complete(rollout: Mapping[str, Any], turns: int) -> bool:
    numbers = [rollout["reward"], rollout["shared_advantage"], *rollout["prefix_scores"]]
    return len(rollout["times"]) == turns and bool(np.isfinite(_numbers(numbers)).all())


def _logged(groups: Sequence[Sequence[Mapping[str, Any]]]) -> np.ndarray:
    """f64[B, G, K] the advantages that the run was trained on, padded with NaN."""
    return _stacked(groups, "turn_advantages", 0)


def _recomputed(
    groups: Sequence[Sequence[Mapping[str, Any]]], algorithm: Mapping[str, Any]
) -> np.ndarray:
    """f64[B, G, K] eq. 4 of the logged prefix scores."""
    if not groups:
        return np.zeros((0, 0, 0))
    score_BGK1 = _stacked(groups, "prefix_scores", 1)
    given_BGK = np.zeros((*score_BGK1.shape[:2], score_BGK1.shape[2] - 1), bool)
    for b, group in enumerate(groups):
        for g, rollout in enumerate(group):
            given_BGK[b, g, : len(rollout["times"])] = True
    score_BGK1[:, :, 1:][~given_BGK] = 0.0
    eps, clip = algorithm.get("eps", 1e-6), algorithm.get("max_advantage", 5.0)
    turn_BGK = _turn_credit(score_BGK1.astype(np.float32), given_BGK, eps=eps, clip=clip)
    return np.asarray(turn_BGK, float)


@partial(jax.jit, static_argnames=("eps", "clip"))
def _turn_credit(
    score_BGK1: jax.Array, turns_BGK: jax.Array, *, eps: float, clip: float
) -> jax.Array:
    def one(score_GK1: jax.Array, turns_GK: jax.Array) -> jax.Array:
        return turn_advantages(score_GK1, turn_mask=turns_GK, alpha=1.0, eps=eps, clip=clip)

    return jax.vmap(one)(score_BGK1, turns_BGK)


def _stacked(groups: Sequence[Sequence[Mapping[str, Any]]], name: str, more: int) -> np.ndarray:
    """f64[B, G, K + more] a list that every rollout has, NaN where it is shorter or null."""
    turns = max((len(r["times"]) for group in groups for r in group), default=0)
    size = max(map(len, groups), default=0)
    out = np.full((len(groups), size, turns + more), np.nan)
    for b, group in enumerate(groups):
        for g, rollout in enumerate(group):
            values = _numbers(rollout[name])
            out[b, g, : len(values)] = values
    return out


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], float)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _lines(path: Path) -> Records:
    """The whole lines of a log, each an object with its step."""
    try:
        records = read_jsonl(path)
    except (ValueError, RecursionError) as error:
        raise InputError(f"holds a line that is no JSON: {error}", file=path) from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not _is_number(record.get("step")):
            raise InputError(
                "is no line of a log: needs a step", file=path, record=f"line {number}"
            )
    return records


def _check_metrics(records: Records, path: Path) -> None:
    """Refuses values that are neither numbers nor missing; lists belong to no picture."""
    for number, record in enumerate(records, 1):
        for name, value in record.items():
            if not (value is None or isinstance(value, bool | list) or _is_number(value)):
                message = f"must be a number, got {str(value)[:60]!r}"
                raise InputError(message, file=path, record=f"line {number}", field=name)


def _check_lengths(groups: Records, path: Path) -> None:
    """Refuses rollouts whose lists do not have an entry for each decision."""
    for number, rollout in enumerate(groups, 1):
        times = rollout.get("times")
        turns = len(times) if isinstance(times, list) else 0
        for name, more in (("turn_advantages", 0), ("repetitive", 0), ("prefix_scores", 1)):
            values = rollout.get(name)
            if isinstance(values, list) and len(values) != turns + more:
                message = f"has {len(values)} entries for {turns} times"
                raise InputError(message, file=path, record=f"line {number}", field=name)


def _is_number(value: Any) -> bool:
    """Whether a float can hold it; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _algorithm(path: Path) -> dict[str, Any]:
    """The section of a run's config; empty where the file or the section is not there."""
    try:
        config = json.loads(path.read_text()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}", file=path) from error
    found = config.get("algorithm", {}) if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise InputError("must hold a mapping", file=path, field="algorithm")
    return found
