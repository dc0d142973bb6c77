"""StreamPro's reward: format, turn-level F1 and trajectory-level rubric (arXiv 2605.16381, 4.2).

* format: share of well-formed turns.
* turn_f1 (eq. 6, algorithm 1): for each truth in order, of the replies not yet matched that lie
  within tau = 8 s of it, the one with the highest ``S' = S_time + S_acc``, where ``S_time = max(0,
  1 - distance / tau)``; a best score of 0 matches nothing. ``2 sum S' / (replies + truths)``, so
  that the best is 2.
* rubric (eq. 7): share of binary checkpoints that pass.
* reward (eq. 5): 0.1 format + 0.45 turn_f1 + 0.45 rubric.

What the text leaves open, and the decision here:

* Truths are the reply windows. Eq. 8 measures the distance to an interval for tasks with intervals
  and to a moment for the others; a window is an interval, 0 inside it. Windows that start after the
  last turn are skipped, as in eq. 1 of the other methods. The one-sided matching of anticipating
  tasks is left out: windows do not say that they are of that kind.
* S_acc is a grade from 0 to 5 of a language model, and an IoU in [0, 1] for grounding: a share in
  [0, 1]. Here it is the judge's score, 0 to 4, over 4.
* Nothing said where nothing is due has no denominator: it is the best, 2.
* The rubrics, 6 to 10 checkpoints that a language model writes for every sample, are not public.
  Here they are made from the record, one for each dimension and one for each window:
  coverage, for each window: all information of its answer is in the replies; no hallucination: each
  reply's information is in the answers of the record; sequencing: replies are matched, and in the
  order of their windows; granularity: at least a reply for every two windows and at most two for
  each. Silence passes the second, and all of them where there is no window.
* A judgement that fails is missing: the pair is not matched, and neither a reply nor a truth with
  a failed pair counts if it stays alone; a checkpoint that hangs on it is left out. A rollout of
  which nothing else is left has no reward (NaN).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.rewards.asking import fill
from turnwise_jax.rewards.judges.protocol import Judge, Request
from turnwise_jax.rewards.plan import Plan, ReplyWindow, Trajectory
from turnwise_jax.rewards.trajectory import Scores, unjudged

PREFIX_SCORES = False
TOP_SCORE = 4.0  # of the five-level judge


class Settings(NamedTuple):
    """Weights of eq. 5 and tau, seconds (section 5.1)."""

    format: float = 0.1
    turn_f1: float = 0.45
    rubric: float = 0.45
    tolerance: float = 8.0


class Terms(NamedTuple):
    """Float32 [N] each: the weighted sum, and the terms; turn_f1 is from 0 to 2."""

    reward: np.ndarray
    format: np.ndarray
    turn_f1: np.ndarray
    rubric: np.ndarray


class Questions(NamedTuple):
    """What one trajectory asks of the judge: accuracy [P, W] of replies within reach of a window,
    whether each answer [W] is covered, and whether each reply [P] is grounded in the answers."""

    accuracy: Plan
    covered: Plan
    grounded: Plan


class Matched(NamedTuple):
    """``score``: the sum of S'. ``times``: of each matched reply, in the truths' order. ``said``,
    ``due``: replies and truths that count. ``missing``: some do not, for want of a judgement."""

    score: float
    times: list[float]
    said: int
    due: int
    missing: bool


def score(
    trajs: Sequence[Trajectory],
    judge: Judge,
    settings: Settings,
    *,
    num_turns: int | None = None,
    num_windows: int | None = None,
) -> Scores:
    """The three terms and the reward of N trajectories."""
    turns, windows = unjudged(trajs, num_turns=num_turns, num_windows=num_windows)
    asked = [questions(trajectory, settings.tolerance) for trajectory in trajs]
    stats = fill([plan for plans in asked for plan in plans], judge)
    rows = [_terms(*pair, settings) for pair in zip(trajs, asked, strict=True)]
    columns = np.asarray(rows, np.float64).reshape(len(rows), 3).T
    weights = settings.format, settings.turn_f1, settings.rubric
    reward = sum(weight * term for weight, term in zip(weights, columns, strict=True) if weight)
    terms = Terms(*(np.asarray(c, np.float32) for c in (reward + np.zeros(len(rows)), *columns)))
    return Scores(turns, windows, terms, stats)


def truths(trajectory: Trajectory) -> list[ReplyWindow]:
    """The counted windows, the earliest first."""
    return sorted(trajectory.counted, key=lambda window: (window.start, window.end))


def distance(time: float, window: ReplyWindow) -> float:
    """Seconds from a window, 0 inside it (eq. 8, tasks with intervals)."""
    return max(window.start - time, time - window.end, 0.0)


def questions(trajectory: Trajectory, tolerance: float) -> Questions:
    """All that must be judged, before anything is."""
    windows = truths(trajectory)
    replies = list(trajectory.spoken.items())
    pairs, covered, grounded = [], [], []
    told = " ".join(text for _, text in replies)
    answers = " ".join(window.answer for window in trajectory.windows)
    for w, window in enumerate(windows):
        for p, (turn, text) in enumerate(replies):
            if distance(trajectory.times[turn], window) <= tolerance:
                request = Request("quality", window.question, window.answer, reply=text)
                pairs.append(((p, w), request))
        if replies:
            request = Request("repetition", previous=told, reply=window.answer)
            covered.append(((w,), request))
    if trajectory.windows:
        for p, (_, text) in enumerate(replies):
            grounded.append(((p,), Request("repetition", previous=answers, reply=text)))
    unknown = np.full((len(replies), len(windows)), np.nan, np.float32)
    return Questions(
        Plan(unknown, tuple(pairs)),
        Plan(_open(len(windows), covered), tuple(covered)),
        Plan(_open(len(replies), grounded), tuple(grounded)),
    )


def _open(count: int, asks: Sequence[object]) -> np.ndarray:
    """[count], unknown if it will be asked for, else 0: not passed."""
    return np.full(count, np.nan if asks else 0.0, np.float32)


def matched(trajectory: Trajectory, asked: Questions, tolerance: float) -> Matched:
    """Algorithm 1: each truth takes the best of the replies that are left."""
    windows, turns = truths(trajectory), list(trajectory.spoken)
    free, alone, total, times = set(range(len(turns))), set(range(len(windows))), 0.0, []
    for w, window in enumerate(windows):
        best, taken = 0.0, None
        for p in sorted(free):
            away = distance(trajectory.times[turns[p]], window)
            accuracy = asked.accuracy.values[p, w] / TOP_SCORE
            step = max(0.0, 1.0 - away / tolerance) + accuracy
            if away <= tolerance and step > best:  # never so for a failed judgement, which is NaN
                best, taken = float(step), p
        if taken is not None:
            free.remove(taken)
            alone.remove(w)
            times.append(trajectory.times[turns[taken]])
            total += best
    failed = [at for at, _ in asked.accuracy.asks if np.isnan(asked.accuracy.values[at])]
    replies = {p for p, _ in failed} & free
    lost = {w for p, w in failed if p in replies} & alone
    return Matched(total, times, len(turns) - len(replies), len(windows) - len(lost), bool(replies))


def _terms(
    trajectory: Trajectory, asked: Questions, settings: Settings
) -> tuple[float, float, float]:
    found = matched(trajectory, asked, settings.tolerance)
    counted = found.said + found.due
    nothing = math.nan if found.missing else 2.0
    turn_f1 = 2 * found.score / counted if counted else nothing
    return trajectory.well_formed, turn_f1, rubric(asked, found, len(truths(trajectory)))


def rubric(asked: Questions, found: Matched, due: int) -> float:
    """Eq. 7: the share of checkpoints that pass, of those that are known; NaN if none is."""
    grounded = asked.grounded.values
    said = len(grounded)
    in_order = float(found.times == sorted(found.times) and bool(found.times or not (due or said)))
    checks = [
        *asked.covered.values.tolist(),
        0.0 if (grounded == 0).any() else float(np.min(grounded, initial=1.0)),
        math.nan if found.missing and not found.times else in_order,
        float(math.ceil(due / 2) <= said <= 2 * due),
    ]
    known = [check for check in checks if not math.isnan(check)]
    return sum(known) / len(known) if known else math.nan
