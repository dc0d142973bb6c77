"""ProactiveVideoQA: PAUC and repetition in each of four subsets, and their equal means.

The rule, line by line. Public source of 1-5: the port ``vlmeval/dataset/proactive_videoqa.py`` in
MCG-NJU/VideoChat3's evaluation kit (github.com/zyuhan1999/VLMEvalKit) of the benchmark's own
``pauc/judge_llm_scores_openai.py``; of 6 and 7: the TurnWise paper, section 4.3 and eq. 1.

1. A window is one annotated answer with its ``reply_timespan``, both ends included. Non-silent
   replies in it count in time order, a text said before in this window only once.
2. The judge is shown the first user turn, the reference answer, and all distinct replies so far in
   this window joined by one space; it grades 1 to 3, minus 1: 0 to 2. What it fails to grade is
   dropped and counted, not a 0.
3. In a window with two or more scores, one after the end of ``related_timespan`` that is strictly
   below the last one up to there (0 if none) is dropped and counted: it answers the next event.
4. The window is worth the area under the step curve of its scores: 0.5 before the first reply, the
   latest score afterwards, offsets multiplied by 1 - omega, divided by length times 2. A window
   without a score is worth 0.5 / 2 whatever omega: silence earns exactly 25.0.
5. A subset is worth 100 times the mean over all windows of all its videos, each window one vote.
6. ``pauc`` (omega 0.5, the paper's number), ``pauc_omega_0`` and ``pauc_omega_1`` are the means of
   the subsets' values, each subset one vote, however many windows it has.
7. ``repetition_rate`` is the share of non-silent replies, inside windows or not, whose information
   earlier replies hold already (verbatim copies without asking the judge; replies that the judge
   failed on leave both counts); again the mean of the subsets' rates.

Rules 1-4 are the functions of ``eval.streaming``. Beside them stand, over all dialogues: the share
of decisions out of every window that were replies, the share of all decisions that were, and the
length of replies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise_jax.eval.bootstrap import Mean, Measure, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.streaming import OMEGAS, behaviour_ratios, benchmark_points, window_values
from turnwise_jax.eval.subsets import Members, apart, by_subset, named
from turnwise_jax.rewards import repetition
from turnwise_jax.rewards.asking import fill
from turnwise_jax.rewards.judges import Judge
from turnwise_jax.rewards.plan import Plan, Settings

SUBSETS = ("EGO", "TV", "VAD", "WEB")
RULE = (
    "PAUC at omega 0.5, 0 and 1: distinct replies so far in the window joined, three-level judge, "
    "S = 2, late lower scores dropped, mean over a subset's windows, silence 25.0; repetition: "
    "share of judged replies; both: equal mean over the subsets EGO, TV, VAD, WEB that are there"
)


def report(
    predictions: Sequence[Prediction], judges: Judges, *, resamples: int = 2000, seed: int = 0
) -> Report:
    """All numbers of one set of streamed dialogues.

    Args:
      predictions: dialogues whose ``target.subset`` is one of ``SUBSETS``.
      judges: the three-level one grades, the other says what is repetitive.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction of no such subset.
    """
    members = by_subset(predictions, SUBSETS)
    windows_D = [len(p.windows) for p in predictions]
    points, dropped = benchmark_points(predictions, judges.benchmark)
    repeats_D, judged_D, failed = repeated(predictions, judges.reward)
    means: dict[str, Measure] = {}
    parts: dict[str, Measure] = {}
    for name, omega in OMEGAS.items():
        values = iter(window_values(predictions, points, omega=omega))
        total_D = [sum(next(values) for _ in range(count)) for count in windows_D]
        _add(means, parts, name, total_D, windows_D, members)
    _add(means, parts, "repetition_rate", repeats_D, judged_D, members)
    measures = means | parts | behaviour_ratios(predictions)
    clusters = [p.cluster for p in predictions]
    return Report(
        benchmark="proactive_videoqa",
        rule=RULE,
        metrics={name: measure.value for name, measure in measures.items()},
        intervals=intervals(measures, clusters, resamples=resamples, seed=seed),
        counts={
            "dialogues": len(predictions),
            "videos": len(set(clusters)),
            "windows": sum(windows_D),
            "decisions": sum(len(p.times) for p in predictions),
            "replies": sum(sum(p.replied) for p in predictions),
            "failed_repetition_judgements": failed,
            **dropped,
            **{f"dialogues/{name}": int(member_D.sum()) for name, member_D in members.items()},
            **{
                f"windows/{name}": int(np.sum(windows_D, where=member_D))
                for name, member_D in members.items()
            },
        },
    )


def repeated(predictions: Sequence[Prediction], judge: Judge) -> tuple[np.ndarray, np.ndarray, int]:
    """Rule 7's two sums of every dialogue, ``f64[D]`` each, and how many judgements failed.

    Judgements that a prediction carries are used, those that it lacks count as failed; the judge is
    asked about the others alone.
    """
    plans = [_plan(prediction) for prediction in predictions]
    stats = fill(plans, judge)
    known_D = [np.isfinite(plan.values) for plan in plans]
    repeats_D = [float(np.sum(p.values, where=k)) for p, k in zip(plans, known_D, strict=True)]
    failed = stats.repetition.failed + sum(p.missing_verdicts for p in predictions)
    return np.array(repeats_D), np.array([float(k.sum()) for k in known_D]), failed


def _plan(prediction: Prediction) -> Plan:
    if prediction.repetitive is None:
        return repetition.plan(prediction.trajectory(), Settings())
    given = zip(prediction.repetitive, prediction.replied, strict=True)
    return Plan(np.array([v if said and v is not None else np.nan for v, said in given]))


def _add(
    means: dict[str, Measure],
    parts: dict[str, Measure],
    name: str,
    total_D: Sequence[float],
    count_D: Sequence[float],
    members: Members,
) -> None:
    """One number of every subset, and their mean."""
    ratios = apart(total_D, count_D, members)
    means[name] = Mean(list(ratios.values()))
    parts.update(named(name, ratios))
