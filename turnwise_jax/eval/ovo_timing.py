"""OVO-Timing: whether replies come when they are due; what they say plays no part.

The rule, line by line. Public source: ``vlmeval/dataset/ovo_timing.py`` in MCG-NJU/VideoChat3's
evaluation kit (github.com/zyuhan1999/VLMEvalKit), which the TurnWise paper's section 4.3 describes
in the same words. Times are seconds of video.

1. The video streams from 0 (REC, SSR) or from ``ask_time`` (CRR) to the last test point.
2. A reply is due at: CRR ``clue_time``; REC every ``start_times`` + 2.0; SSR every ``start_time``
   + 2.0. The reader puts these into ``target.times``.
3. Every non-silent reply is one detection, at the time of the decision. A reply with an empty body
   is none; such replies are counted.
4. For each due time in the annotation's order the first detection not used yet with |difference|
   <= 2.0 is matched to it: greedy, one to one.
5. Recall of an instance is matched / due times, precision is matched / detections; 0 where there
   are none.
6. A task has the means of recall and of precision over its instances, and F1 is the harmonic mean
   of these two means; 0 if both are 0.
7. ``f1``, ``precision`` and ``recall`` are the means over the tasks CRR, SSR and REC.

All in percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.eval.bootstrap import F1, Mean, Measure, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.subsets import apart, by_subset, named, target_of

TASKS = ("CRR", "SSR", "REC")
TOLERANCE = 2.0
RULE = (
    "timing F1: non-silent, non-empty replies matched one to one, in order, to due times within "
    "2 s (CRR clue time, REC and SSR starts + 2 s); F1 of a task from its mean precision and mean "
    "recall over instances; mean over the tasks CRR, SSR, REC that are there; content ignored"
)


class Matched(NamedTuple):
    """Counts of one dialogue: due times, detections, and how many of them met."""

    due: int
    detections: int
    matched: int

    @property
    def recall(self) -> float:
        return self.matched / self.due if self.due else 0.0

    @property
    def precision(self) -> float:
        return self.matched / self.detections if self.detections else 0.0


def report(
    predictions: Sequence[Prediction],
    judges: Judges | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of streamed instances.

    Args:
      predictions: dialogues whose ``target`` holds the task and the due times.
      judges: not asked.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction of no such task.
    """
    members = by_subset(predictions, TASKS)
    found = [match(target_of(p).times, detections(p)) for p in predictions]
    ones = np.ones(len(found))
    precision = apart([m.precision for m in found], ones, members)
    recall = apart([m.recall for m in found], ones, members)
    f1 = {name: F1(precision[name], recall[name]) for name in members}
    measures: dict[str, Measure] = {
        "f1": Mean(list(f1.values())),
        "precision": Mean(list(precision.values())),
        "recall": Mean(list(recall.values())),
        **{f"f1/{name}": measure for name, measure in f1.items()},
        **named("precision", precision),
        **named("recall", recall),
    }
    clusters = [p.cluster for p in predictions]
    return Report(
        benchmark="ovo_timing",
        rule=RULE,
        metrics={name: measure.value for name, measure in measures.items()},
        intervals=intervals(measures, clusters, resamples=resamples, seed=seed),
        counts={
            "instances": len(predictions),
            "videos": len(set(clusters)),
            "decisions": sum(len(p.times) for p in predictions),
            "due_times": sum(m.due for m in found),
            "detections": sum(m.detections for m in found),
            "matched": sum(m.matched for m in found),
            "empty_replies": sum(not reply.strip() for p in predictions for reply in p.replies),
            **{f"instances/{name}": int(member_D.sum()) for name, member_D in members.items()},
        },
    )


def detections(prediction: Prediction) -> list[float]:
    """Rule 3: the times of the replies that have a body."""
    said = zip(prediction.times, prediction.replies, prediction.replied, strict=True)
    return [time for time, reply, replied in said if replied and reply.strip()]


def match(due: Sequence[float], detected: Sequence[float]) -> Matched:
    """Rule 4: due times in order, each with the first detection that is near and still free."""
    free = list(detected)
    matched = 0
    for time in due:
        near = next((i for i, at in enumerate(free) if abs(at - time) <= TOLERANCE), None)
        if near is not None:
            del free[near]
            matched += 1
    return Matched(len(due), len(detected), matched)
