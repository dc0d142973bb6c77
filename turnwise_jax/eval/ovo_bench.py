"""OVO-Bench, the official accuracy form: one question at every test point of a video cut there.

The rule, line by line. Public source: JoeLeelyf/OVO-Bench ``utils/OVOBenchScore.py`` (answers,
tasks, groups) and ``utils/OVOBench.py`` (prompts); of 7: johncaged/ThinkStream
``thinkstream/eval/ovo_bench/eval_ovo.py``.

1. EPM, ASI, HLD, STU, OJR, ATR, ACR, OCR, FPD (choice): right if the letter of the true option
   occurs anywhere in the response, as a substring, in this case.
2. REC (count): all digits of the response put together must be the true count as written: "1 or 2"
   reads 12.
3. SSR, CRR (yes or no): right if "Yes" or "No", whichever is true, occurs in the response, case
   sensitive; the whole response "Y" or "N" counts too.
4. No response is worth 0, and neither is silence one: that its words hold an "E" says nothing. Test
   points left out because their media could not be used are not in
   the predictions and are counted beside the report's numbers.
5. A task's accuracy is the mean over all test points of all its records, not over records first.
6. A group is the mean of its tasks: backward (EPM, ASI, HLD), realtime (STU, OJR, ATR, ACR, OCR,
   FPD), forward (REC, SSR, CRR). ``accuracy`` is the mean of the three groups, as in the paper's
   table. The repository's script (commit 19677d2) prints the mean over the twelve tasks as its
   total (see its issue 7): ``accuracy_over_tasks``.
7. ``accuracy_strict`` asks instead that the response *starts* with the answer (letter, number or
   Yes/No): a letter inside another word is no answer then. The same averages.

All in percent. Right responses that do not start with the answer are counted
(``right_only_as_substring``), and so are those in which the task's rule finds nothing it could
compare (``without_letter``, ``without_digit``, ``without_yes_or_no``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.data.records import Question, is_silent
from turnwise_jax.errors import InputError
from turnwise_jax.eval.bootstrap import Mean, Measure, Ratio, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.subsets import answered, apart, by_subset, named

GROUPS = {
    "backward": ("EPM", "ASI", "HLD"),
    "realtime": ("STU", "OJR", "ATR", "ACR", "OCR", "FPD"),
    "forward": ("REC", "SSR", "CRR"),
}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)
YES_NO = ("SSR", "CRR")
RULE = (
    "accuracy at every test point: option letter anywhere in the response; REC all digits joined "
    "equal the count; SSR, CRR Yes/No contained, case-sensitive, or a bare Y/N; silence is no "
    "response; task: mean over test points, group: over tasks, accuracy: over the groups that are "
    "there; strict: the response starts with the answer"
)


class Mark(NamedTuple):
    """One response. ``read``: it holds something that its task's rule could compare."""

    right: bool
    strict: bool
    read: bool


def report(
    predictions: Sequence[Prediction],
    judges: Judges | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of answered test points.

    Args:
      predictions: one reply and one question each; ``target.subset`` is the task.
      judges: not asked.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction of no such task, without a question, with other than one reply, or
        with a true answer that its task cannot have.
    """
    members = by_subset(predictions, TASKS)
    tasks = [p.target.subset for p in predictions if p.target]
    pairs = [answered(p) for p in predictions]
    for prediction, task, (question, _) in zip(predictions, tasks, pairs, strict=True):
        _check(prediction, task, question)
    marks = [mark(task, text, q.answer) for task, (q, text) in zip(tasks, pairs, strict=True)]
    ones = np.ones(len(marks))
    right = apart([m.right for m in marks], ones, members)
    strict = apart([m.strict for m in marks], ones, members)
    measures: dict[str, Measure] = {
        **_averages("accuracy", right),
        **_averages("accuracy_strict", strict),
        **named("accuracy", right),
        **named("accuracy_strict", strict),
    }
    clusters = [p.cluster for p in predictions]
    return Report(
        benchmark="ovo_bench",
        rule=RULE,
        metrics={name: measure.value for name, measure in measures.items()},
        intervals=intervals(measures, clusters, resamples=resamples, seed=seed),
        counts={
            "test_points": len(predictions),
            "records": len({p.target.item or p.id for p in predictions if p.target}),
            "videos": len(set(clusters)),
            **_dropped(tasks, marks, [text for _, text in pairs]),
            **{f"test_points/{name}": int(member_D.sum()) for name, member_D in members.items()},
        },
    )


def mark(task: str, response: str, truth: str) -> Mark:
    """Rules 1-4 and 7 for one response; ``truth`` is a letter, a count or Yes/No."""
    if is_silent(response):
        return Mark(False, False, False)
    strict = response[: len(truth)] == truth
    if task == "REC":
        digits = "".join(re.findall(r"\d+", response))
        return Mark(digits == truth, strict, bool(digits))
    if task in YES_NO:
        bare = response == truth[0]
        read = "Yes" in response or "No" in response or response in ("Y", "N")
        return Mark(bare or truth in response, strict, read)
    return Mark(truth in response, strict, re.search("[A-E]", response) is not None)


def _averages(name: str, tasks: dict[str, Measure] | dict[str, Ratio]) -> dict[str, Measure]:
    """Rule 6 over the tasks that are there."""
    groups: dict[str, Measure] = {}
    for group, members in GROUPS.items():
        parts = [tasks[task] for task in members if task in tasks]
        if parts:
            groups[group] = Mean(parts)
    return {
        name: Mean(list(groups.values())),
        f"{name}_over_tasks": Mean(list(tasks.values())),
        **{f"{name}/{group}": measure for group, measure in groups.items()},
    }


def _check(prediction: Prediction, task: str, question: Question) -> None:
    """The truth must be what the task's rule compares with."""
    form = {"REC": r"\d+", "SSR": "Yes|No", "CRR": "Yes|No"}.get(task, "[A-Z]")
    if not re.fullmatch(form, question.answer):
        raise InputError(
            f"is {question.answer!r}, {task} takes {form}",
            record=prediction.id,
            field="question.answer",
        )


def _dropped(
    tasks: Sequence[str], marks: Sequence[Mark], responses: Sequence[str]
) -> dict[str, int]:
    """Responses that the rules could not read, or read kindly."""
    kinds = ["digit" if t == "REC" else "yes_or_no" if t in YES_NO else "letter" for t in tasks]
    unread = Counter(kind for kind, m in zip(kinds, marks, strict=True) if not m.read)
    return {
        "empty_responses": sum(not response.strip() for response in responses),
        "silent_responses": sum(map(is_silent, responses)),
        **{f"without_{kind}": unread[kind] for kind in ("letter", "digit", "yes_or_no")},
        "right_only_as_substring": sum(m.right and not m.strict for m in marks),
    }
