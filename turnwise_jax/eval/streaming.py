"""Streaming dialogues with annotated reply windows: eq. 1, benchmark-scale PAUC, behaviour.

Two scales stand side by side and are never mixed (facts 1.2). *Reward* numbers are eq. 1 as trained
on: five-level judge, each reply alone, omega 0.5. *PAUC* numbers follow the ProactiveVideoQA
benchmark, line by line:

1. A window is a question, a reference answer and a span ``[start, end]``, both ends included.
2. Non-silent replies inside it are taken in time order; a text already said in this window is
   passed over (only its first occurrence counts).
3. What is judged at each of them is everything distinct said so far in this window, joined by one
   space, on the three-level scale 0..2. A judgement that fails is dropped; it is not a 0.
4. Where the event's own end is known and a window has two or more scores, a score after that end
   and strictly below the last one at or before it (0 if there was none) is dropped: it probably
   answers the next event.
5. The window is worth the normalised area under the step curve of the scores that are left, from
   0.5 before the first, top score 2, reply offsets multiplied by ``1 - omega``. None left: 0.25.
6. The set is worth 100 times the mean over all windows of all dialogues, each window one vote.
   Silence is worth 25.0.

Each window's own question goes to the judge; in a benchmark file that is the first user turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.data.records import Window
from turnwise_jax.eval.bootstrap import Ratio, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.scoring import judged, reward_terms
from turnwise_jax.kernels import RewardWeights
from turnwise_jax.rewards.judges import Judge, JudgeStats, Request

RULE = (
    "PAUC: replies so far in the window joined, three-level judge, S = 2, late lower scores "
    "dropped, mean over all windows, silence 25.0; reward: eq. 1, five-level judge, mean over "
    "dialogues; rates: share of judged replies, of out-of-window decisions and of all decisions"
)
OMEGAS = {"pauc": 0.5, "pauc_omega_0": 0.0, "pauc_omega_1": 1.0}
START_SCORE, TOP_SCORE = 0.5, 2.0


class Points(NamedTuple):
    """The scored replies of one window, in time order."""

    times: tuple[float, ...]
    scores: tuple[float, ...]


def report(
    predictions: Sequence[Prediction],
    judges: Judges,
    *,
    weights: RewardWeights | None = None,
    omega: float = 0.5,
    prefix_chars: int = 50,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of finished dialogues.

    Args:
      predictions: the dialogues.
      judges: the five-level judge of the reward and the three-level one of the benchmark.
      weights, omega, prefix_chars: of eq. 1.
      resamples, seed: of the bootstrap over videos.
    """
    windows_N = [len(p.windows) for p in predictions]
    points, benchmark = benchmark_points(predictions, judges.benchmark)
    ratios, stats = _reward_ratios(predictions, judges.reward, weights, omega, prefix_chars)
    for name, value in OMEGAS.items():
        values = iter(window_values(predictions, points, omega=value))
        sums = [sum(next(values) for _ in range(count)) for count in windows_N]
        ratios[name] = Ratio(sums, windows_N, 100.0)
    ratios |= behaviour_ratios(predictions)
    clusters = [p.cluster for p in predictions]
    return Report(
        benchmark="streaming",
        rule=RULE,
        metrics={name: ratio.value for name, ratio in ratios.items()},
        intervals=intervals(ratios, clusters, resamples=resamples, seed=seed),
        counts={
            "dialogues": len(predictions),
            "videos": len(set(clusters)),
            "windows": sum(windows_N),
            "decisions": sum(len(p.times) for p in predictions),
            "replies": sum(sum(p.replied) for p in predictions),
            "failed_quality_judgements": stats.quality.failed,
            "failed_repetition_judgements": stats.repetition.failed,
            **benchmark,
        },
    )


def benchmark_points(
    predictions: Sequence[Prediction], judge: Judge
) -> tuple[list[Points], dict[str, int]]:
    """Rules 2-4 for every window, dialogue by dialogue, and how many scores they cost.

    Returns:
      one Points per window, and the counts of failed judgements and of late lower scores.
    """
    windows = [window for p in predictions for window in p.windows]
    said = [so_far(p, window) for p in predictions for window in p.windows]
    requests = [
        Request("quality", question=window.question, answer=window.answer, reply=text)
        for window, texts in zip(windows, said, strict=True)
        for _, text in texts
    ]
    asked = list(dict.fromkeys(requests))
    answers = dict(zip(asked, judge.ask(asked) if asked else [], strict=True))
    scores = iter(answers[request] for request in requests)
    points, failed, late = [], 0, 0
    for window, texts in zip(windows, said, strict=True):
        scored = [(time, next(scores)) for time, _ in texts]
        known = [(time, score) for time, score in scored if score is not None]
        kept = drop_late(known, window.event_end)
        failed += len(scored) - len(known)
        late += len(known) - len(kept)
        points.append(Points(tuple(t for t, _ in kept), tuple(s for _, s in kept)))
    return points, {"failed_benchmark_judgements": failed, "late_scores_dropped": late}


def so_far(prediction: Prediction, window: Window) -> list[tuple[float, str]]:
    """(time, everything distinct said in the window up to then) at each new reply in it."""
    told: list[str] = []
    out = []
    for time, reply, replied in zip(
        prediction.times, prediction.replies, prediction.replied, strict=True
    ):
        text = reply.strip()
        if replied and window.start <= time <= window.end and text not in told:
            told.append(text)
            out.append((time, " ".join(told)))
    return out


def drop_late(
    scored: Sequence[tuple[float, float]], event_end: float | None
) -> list[tuple[float, float]]:
    """Rule 4: without the scores after the event that are lower than the last one within it."""
    if event_end is None or len(scored) < 2:
        return list(scored)
    within = [score for time, score in scored if time <= event_end]
    reference = within[-1] if within else 0.0
    return [(time, score) for time, score in scored if time <= event_end or score >= reference]


def window_values(
    predictions: Sequence[Prediction], points: Sequence[Points], *, omega: float
) -> list[float]:
    """Rule 5: the value, 0..1, of every window in the order of ``points``, in float64."""
    windows = [window for p in predictions for window in p.windows]
    return [area(found, window, omega) for window, found in zip(windows, points, strict=True)]


def area(points: Points, window: Window, omega: float) -> float:
    """The area under one window's step curve over the largest one.

    What ``kernels.window_quality`` is in training, with the doubles and in the order of the public
    scorer. A window without length is worth its last score.
    """
    length = window.end - window.start
    if not points.scores:
        return START_SCORE / TOP_SCORE
    if length == 0:
        return points.scores[-1] / TOP_SCORE
    edges = [(1.0 - omega) * (time - window.start) for time in points.times]
    heights = [START_SCORE, *points.scores]
    widths = zip([0.0, *edges], [*edges, length], strict=True)
    covered = sum((b - a) * h for (a, b), h in zip(widths, heights, strict=True))
    return covered / (length * TOP_SCORE)


def _reward_ratios(
    predictions: Sequence[Prediction],
    judge: Judge,
    weights: RewardWeights | None,
    omega: float,
    prefix_chars: int,
) -> tuple[dict[str, Ratio], JudgeStats]:
    """Eq. 1 and its four terms as means over dialogues; repetition as a share of judged replies."""
    turns, windows, stats = judged(predictions, judge, prefix_chars=prefix_chars)
    terms = reward_terms(turns, windows, weights or RewardWeights(), omega=omega)
    ones = np.ones(len(predictions))
    ratios = {name: Ratio(value_N, ones) for name, value_N in terms._asdict().items()}
    repetitive_NK = np.asarray(turns.repetitive)
    judged_NK = np.asarray(turns.mask) & np.asarray(turns.replied) & np.isfinite(repetitive_NK)
    repeats_N = np.where(judged_NK, repetitive_NK, 0.0).sum(1)
    ratios["repetition_rate"] = Ratio(repeats_N, judged_NK.sum(1), 100.0)
    return ratios, stats


def behaviour_ratios(predictions: Sequence[Prediction]) -> dict[str, Ratio]:
    """When and how much the policy speaks; needs no judge."""
    outside = [
        [not any(w.start <= time <= w.end for w in p.windows) for time in p.times]
        for p in predictions
    ]
    stray = [
        sum(out and said for out, said in zip(flags, p.replied, strict=True))
        for flags, p in zip(outside, predictions, strict=True)
    ]
    replies = [sum(p.replied) for p in predictions]
    letters = [
        sum(len(r.strip()) for r, said in zip(p.replies, p.replied, strict=True) if said)
        for p in predictions
    ]
    return {
        "out_of_window_rate": Ratio(stray, [sum(flags) for flags in outside], 100.0),
        "non_silent_share": Ratio(replies, [len(p.times) for p in predictions], 100.0),
        "reply_characters": Ratio(letters, replies),
    }
