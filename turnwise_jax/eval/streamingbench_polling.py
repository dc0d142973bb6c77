"""StreamingBench Proactive Output, the official form: asked every second whether it is time.

The rule, line by line. Public source: THUNLP-MT/StreamingBench
``src/benchmark/StreamingBenchProactive.py`` (polling) and ``src/data/count.py`` (marks).

1. From 1 s after the query, every second up to 4 s after the true moment, the policy is shown the
   clip up to then and asked, by yes or no, whether it is the right time to output the expected text
   (which the question therefore tells it).
2. The first response that contains "yes" in any case ("Yesterday" does) stops the polling. Then the
   plain question is asked on the same clip.
3. Timing is right if -2 <= time of the last record - truth <= 2 seconds.
4. The answer is right if the timing is and the expected text is a substring of the last response,
   case sensitive. Silence holds no text.
5. Without a yes the last record is the poll 4 s after the truth: too late, both wrong.
6. ``accuracy`` (answer) and ``timing_accuracy`` are shares of all questions.

Here every poll is a dialogue of its own, and so is the plain question at every poll's time, so that
they run in batches; a question's dialogues share ``target.item``, ``target.subset`` says which of
the two each is, and its one decision has the poll's time. Rule 2 then picks. A question whose first
yes has no answer beside it, because that clip could not be used, has the timing alone; such
questions are counted. All in percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.data.records import is_silent
from turnwise_jax.errors import InputError
from turnwise_jax.eval.bootstrap import Ratio, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.streamingbench_proactive import expected, on_time
from turnwise_jax.eval.subsets import by_subset, target_of

PARTS = ("poll", "output")
RULE = (
    "official polling: the first response that contains yes, any case, stops; right if the plain "
    "question's response then contains the expected text, case-sensitive, within 2 s of the truth; "
    "timing: within 2 s; shares of all questions"
)


class Item(NamedTuple):
    """One question: when and what is expected, and its responses by time of the poll."""

    moment: float
    text: str
    cluster: str
    poll: dict[float, str]
    output: dict[float, str]


class Stop(NamedTuple):
    """Where the polling of one question ended; ``time`` None: nowhere. ``response``: the answer to
    the plain question there, None if it is not among the predictions."""

    time: float | None
    response: str | None


def report(
    predictions: Sequence[Prediction],
    judges: Judges | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of polled questions.

    Args:
      predictions: polls and plain questions, one decision each, grouped by ``target.item``.
      judges: not asked.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction that is neither, without a question's name, a true moment or an
        expected text, with other than one decision, or a second one of the same kind and time; or
        two predictions of one question that expect different things.
    """
    items = gather(predictions)
    stops = [stop(item) for item in items.values()]
    timely = [
        s.time is not None and on_time(s.time, item.moment)
        for s, item in zip(stops, items.values(), strict=True)
    ]
    right = [
        in_time and answers(s.response, item.text)
        for in_time, s, item in zip(timely, stops, items.values(), strict=True)
    ]
    ones = np.ones(len(items))
    ratios = {
        "accuracy": Ratio(right, ones, 100.0),
        "timing_accuracy": Ratio(timely, ones, 100.0),
    }
    clusters = [item.cluster for item in items.values()]
    return Report(
        benchmark="streamingbench_polling",
        rule=RULE,
        metrics={name: ratio.value for name, ratio in ratios.items()},
        intervals=intervals(ratios, clusters, resamples=resamples, seed=seed),
        counts={
            "questions": len(items),
            "videos": len(set(clusters)),
            **_counts(items, stops),
        },
    )


def gather(predictions: Sequence[Prediction]) -> Mapping[str, Item]:
    """The questions by name, in the order in which they first appear."""
    by_subset(predictions, PARTS)
    items: dict[str, Item] = {}
    for prediction in predictions:
        name, kind, time, response = _one(prediction)
        moment, text = expected(prediction)
        item = items.setdefault(name, Item(moment, text, prediction.cluster, {}, {}))
        if (item.moment, item.text) != (moment, text):
            raise InputError(
                f"differs from that of the question's other dialogues ({item.moment:g} s, "
                f"{item.text!r})",
                record=prediction.id,
                field="target",
            )
        asked = item.poll if kind == "poll" else item.output
        if time in asked:
            raise InputError(
                f"question {name!r} has another {kind} at {time:g} s",
                record=prediction.id,
                field="times",
            )
        asked[time] = response
    return items


def stop(item: Item) -> Stop:
    """Rule 2: the first poll, in time, with a yes in its response."""
    for time in sorted(item.poll):
        if "yes" in item.poll[time].strip().lower():
            return Stop(time, item.output.get(time))
    return Stop(None, None)


def answers(response: str | None, text: str) -> bool:
    """Whether there is a response and it holds the expected text."""
    return response is not None and not is_silent(response) and text in response


def _one(prediction: Prediction) -> tuple[str, str, float, str]:
    """(question's name, "poll" or "output", time, response)."""
    target = target_of(prediction)
    if not target.item:
        raise InputError(
            "is missing: which question this is about", record=prediction.id, field="target.item"
        )
    if len(prediction.times) != 1:
        raise InputError(
            f"has {len(prediction.times)} entries, a poll has one decision",
            record=prediction.id,
            field="times",
        )
    return target.item, target.subset, prediction.times[0], prediction.replies[0]


def _counts(items: Mapping[str, Item], stops: Sequence[Stop]) -> dict[str, int]:
    happened: Counter[str] = Counter()
    for item, ended in zip(items.values(), stops, strict=True):
        if ended.time is None:
            happened["without_yes"] += 1
        else:
            happened["stopped_without_response"] += ended.response is None
            happened["stopped_early"] += ended.time < item.moment - 2.0
            happened["stopped_late"] += ended.time > item.moment + 2.0
    used = sum(
        sum(ended.time is None or time <= ended.time for time in item.poll)
        for item, ended in zip(items.values(), stops, strict=True)
    )
    names = ("without_yes", "stopped_early", "stopped_late", "stopped_without_response")
    return {
        "polls": sum(len(item.poll) for item in items.values()),
        "polls_used": used,
        **{name: happened[name] for name in names},
    }
