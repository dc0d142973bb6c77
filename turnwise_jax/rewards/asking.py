"""What a batch needs of a judge, asked in one call: equal requests once, failures left as NaN."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from turnwise_jax.rewards.judges.protocol import (
    KINDS,
    Counts,
    Judge,
    JudgeStats,
    Request,
    counters_of,
)
from turnwise_jax.rewards.plan import Plan


def fill(plans: Sequence[Plan], judge: Judge) -> JudgeStats:
    """Ask what the plans need, each distinct request once, and write the answers into them."""
    requests = list(dict.fromkeys(request for plan in plans for _, request in plan.asks))
    before, started = counters_of(judge), time.monotonic()
    given = judge.ask(requests) if requests else []
    seconds = time.monotonic() - started
    if len(given) != len(requests):
        raise ValueError(f"the judge gave {len(given)} answers to {len(requests)} requests")
    answers = {
        request: answer if answer is not None and math.isfinite(answer) else None
        for request, answer in zip(requests, given, strict=True)
    }
    for plan in plans:
        for index, request in plan.asks:
            if (answer := answers[request]) is not None:
                plan.values[index] = answer
    done = counters_of(judge)
    done.subtract(before)
    return _stats(answers, done, seconds)


def _stats(
    answers: dict[Request, float | None], done: Counter[tuple[str, str]], seconds: float
) -> JudgeStats:
    asked = Counter(request.kind for request in answers)
    failed = Counter(request.kind for request, answer in answers.items() if answer is None)
    counts = {
        kind: Counts(asked[kind], done[kind, "cached"], failed[kind], done[kind, "retried"])
        for kind in KINDS
    }
    return JudgeStats(**counts, seconds=seconds)
