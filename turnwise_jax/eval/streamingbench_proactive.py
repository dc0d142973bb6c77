"""StreamingBench Proactive Output, streamed: say the expected text when the moment has come.

The benchmark's own form polls (``eval.streamingbench_polling``); a policy that streams speaks when
it decides to, so this form needs a rule of its own for which reply counts. Line by line. Public
source of the marks (3-5): THUNLP-MT/StreamingBench ``src/data/count.py``.

1. The video streams from the query, which stands in the first turn, to 4 s after the true moment or
   to the video's end.
2. What counts is the first non-silent reply after the query, at the time of its decision. Which
   reply the TurnWise paper takes is not known; later ones do not mend an early one here.
3. On time: -2 <= time - truth <= 2 seconds, both ends included.
4. Right: on time, and the expected text is a substring of that reply, case sensitive.
5. ``accuracy`` (right) and ``timing_accuracy`` (on time) are shares of all questions, also of those
   that no reply came to.
6. ``accuracy_of_any`` is ours: right if any reply at all is on time and holds the text.

All in percent. Questions that nothing was said to, and first replies that came too early or too
late, are counted; so are those on time without the expected text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from turnwise_jax.data.records import Target
from turnwise_jax.errors import InputError
from turnwise_jax.eval.bootstrap import Ratio, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.subsets import target_of

TOLERANCE = 2.0
RULE = (
    "streamed: the first non-silent reply after the query is within 2 s of the truth and contains "
    "the expected text, case-sensitive; timing: within 2 s; any: some reply does both; shares of "
    "all questions"
)
OUTCOMES = ("right", "wrong_text", "early", "late", "silent")


def report(
    predictions: Sequence[Prediction],
    judges: Judges | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of streamed questions.

    Args:
      predictions: dialogues whose ``target`` holds the true moment and the expected text.
      judges: not asked.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction without exactly one true moment, or without an expected text.
    """
    found = [outcome(p) for p in predictions]
    ones = np.ones(len(found))
    ratios = {
        "accuracy": Ratio([o == "right" for o in found], ones, 100.0),
        "timing_accuracy": Ratio([o in ("right", "wrong_text") for o in found], ones, 100.0),
        "accuracy_of_any": Ratio([any_right(p) for p in predictions], ones, 100.0),
    }
    clusters = [p.cluster for p in predictions]
    happened = Counter(found)
    return Report(
        benchmark="streamingbench_proactive",
        rule=RULE,
        metrics={name: ratio.value for name, ratio in ratios.items()},
        intervals=intervals(ratios, clusters, resamples=resamples, seed=seed),
        counts={
            "questions": len(predictions),
            "videos": len(set(clusters)),
            "decisions": sum(len(p.times) for p in predictions),
            "replies": sum(sum(p.replied) for p in predictions),
            **{f"first_reply_{name}": happened[name] for name in OUTCOMES[:-1]},
            "without_reply": happened["silent"],
        },
    )


def outcome(prediction: Prediction) -> str:
    """Rules 2-4: which of ``OUTCOMES`` the first reply is."""
    moment, text = expected(prediction)
    for time, reply, replied in zip(
        prediction.times, prediction.replies, prediction.replied, strict=True
    ):
        if replied:
            if not on_time(time, moment):
                return "early" if time < moment else "late"
            return "right" if text in reply else "wrong_text"
    return "silent"


def any_right(prediction: Prediction) -> bool:
    """Rule 6."""
    moment, text = expected(prediction)
    said = zip(prediction.times, prediction.replies, prediction.replied, strict=True)
    return any(replied and on_time(time, moment) and text in reply for time, reply, replied in said)


def on_time(time: float, moment: float) -> bool:
    """Rule 3."""
    return -TOLERANCE <= time - moment <= TOLERANCE


def expected(prediction: Prediction) -> tuple[float, str]:
    """The true moment and the expected text; InputError if the target lacks either."""
    target: Target = target_of(prediction)
    if len(target.times) != 1:
        raise InputError(
            f"has {len(target.times)} entries, this benchmark has one true moment",
            record=prediction.id,
            field="target.times",
        )
    if not target.text:
        raise InputError(
            "is missing: the text that is expected", record=prediction.id, field="target.text"
        )
    return target.times[0], target.text
