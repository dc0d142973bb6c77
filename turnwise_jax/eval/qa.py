"""Questions with one answer each, over video, pictures, sound or none: accuracy by category.

1. The answer is the text of the reply's last ``<answer>`` block, or the whole reply without one.
2. What it is worth, 0 to 1, is ``rewards.accuracy`` with strict numbers. Multiple choice: 1 for the
   right letter or option text, 0 for another one, for several different ones and for none. Numbers:
   1 within 0.1 % of the truth (of a truth of 0: within 1e-5). OCR: 1 - word error rate. Free form:
   mean of ROUGE-1, ROUGE-2 and ROUGE-L F1. Exact: 1 if equal once normalised.
3. ``accuracy`` is the mean over questions, ``accuracy_macro`` the mean over categories of theirs,
   where the records have categories.
4. ``chance`` is what guessing among the options earns, over the questions that have options. A
   category in which some have none gets ``constant`` instead: what always saying its most common
   answer earns.
5. Numbers: strict accuracy and the share at most 1 off over all numeric questions, an answer
   without a number being wrong; mean absolute error and root mean squared error over the answers
   with one. Those without are counted.

Hints of the records play no part: neither the prompt nor the predictions hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.data.records import Question
from turnwise_jax.errors import InputError
from turnwise_jax.eval.bootstrap import Mean, Ratio, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.rewards.accuracy import accuracy, answer_key
from turnwise_jax.rewards.answers import final_answer, well_formed
from turnwise_jax.rewards.numbers import comparable, parse_number

RULE = (
    "accuracy: last answer block, else the whole reply; the right option alone, numbers within "
    "0.1 %, OCR 1 - word error rate, free form mean ROUGE F1, exact text; mean over questions, "
    "macro: over categories; chance: guessing among the options; constant: the most common answer; "
    "numeric errors: over answers with a number"
)
NO_CATEGORY = "(none)"
_FARTHEST = 1e15  # a number farther from the truth is as good as none: its square must add up


class Mark(NamedTuple):
    """What became of one answer.

    ``accuracy``: 0..1 by rule 2. ``well_formed``: the reply keeps to the think/answer form.
    ``read``: the rule found something to compare. ``error``: number minus truth; None where the
    question is not numeric or the answer states no number.
    """

    accuracy: float
    well_formed: bool
    read: bool
    error: float | None = None


def report(
    predictions: Sequence[Prediction],
    judges: Judges | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of answered questions.

    Args:
      predictions: one reply and one question each.
      judges: not asked.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction without a question or with other than one reply, or a numeric
        question whose truth is no number; names the record and the field.
    """
    questions = [_question(prediction) for prediction in predictions]
    marks = [mark(p.replies[0], q) for p, q in zip(predictions, questions, strict=True)]
    measured = _accuracies(questions, marks) | _numbers(questions, marks)
    levels = _levels(questions)
    clusters = [p.cluster for p in predictions]
    return Report(
        benchmark="qa",
        rule=RULE,
        metrics={name: ratio.value for name, ratio in {**measured, **levels}.items()},
        intervals=intervals(measured, clusters, resamples=resamples, seed=seed),
        counts={
            "questions": len(predictions),
            "videos": len(set(clusters)),
            **_counts(questions, marks),
        },
    )


def mark(reply: str, question: Question) -> Mark:
    """Rules 1 and 2 for one reply."""
    answer = final_answer(reply)
    worth = accuracy(answer, question, strict=True)
    form, read = well_formed(reply), answer_key(answer, question) is not None
    if question.kind != "numeric":
        return Mark(worth, form, read)
    number, truth = comparable(answer, question.answer)
    if number is None or truth is None or abs(number - truth) > _FARTHEST:
        return Mark(worth, form, False)
    return Mark(worth, form, True, number - truth)


def _question(prediction: Prediction) -> Question:
    """The question of a prediction that can be marked."""
    question = prediction.question
    if question is None:
        raise InputError(
            "is missing: this benchmark marks answers to questions",
            record=prediction.id,
            field="question",
        )
    if len(prediction.replies) != 1:
        raise InputError(
            f"has {len(prediction.replies)} entries, a question takes one",
            record=prediction.id,
            field="replies",
        )
    if question.kind == "numeric" and parse_number(question.answer) is None:
        raise InputError(
            f"is no number: {question.answer!r}", record=prediction.id, field="question.answer"
        )
    return question


def _accuracies(questions: Sequence[Question], marks: Sequence[Mark]) -> dict[str, Ratio | Mean]:
    """Overall, mean over categories, share of well-formed replies; then each category's."""
    value_D = np.array([m.accuracy for m in marks])
    by_category = {
        name: Ratio(value_D * member_D, member_D, 100.0)
        for name, member_D in _categories(questions).items()
    }
    found: dict[str, Ratio | Mean] = {"accuracy": Ratio(value_D, np.ones(len(marks)), 100.0)}
    if by_category:
        found["accuracy_macro"] = Mean(list(by_category.values()))
    found["well_formed"] = Ratio([m.well_formed for m in marks], np.ones(len(marks)), 100.0)
    return found | {f"accuracy/{name}": ratio for name, ratio in by_category.items()}


def _levels(questions: Sequence[Question]) -> dict[str, Ratio]:
    """Rule 4: what knowing nothing earns, overall and in each category."""
    has_options_D = np.array([bool(q.options) for q in questions])
    guess_D = np.array([1.0 / len(q.options) if q.options else 0.0 for q in questions])
    found = {}
    if has_options_D.any():
        found["chance"] = Ratio(guess_D, has_options_D, 100.0)
    for name, member_D in _categories(questions).items():
        if has_options_D[member_D].all():
            found[f"chance/{name}"] = Ratio(guess_D * member_D, member_D, 100.0)
            continue
        truths = [_truth(q) for q, inside in zip(questions, member_D, strict=True) if inside]
        ((_, times),) = Counter(truths).most_common(1)
        found[f"constant/{name}"] = Ratio([times], [len(truths)], 100.0)
    return found


def _truth(question: Question) -> str:
    if question.kind == "multiple_choice":
        return question.options[ord(question.answer) - ord("A")].casefold()
    if question.kind == "numeric":
        return str(parse_number(question.answer))
    return question.answer.strip().casefold()


def _categories(questions: Sequence[Question]) -> dict[str, np.ndarray]:
    """Name -> bool ``[D]``, by name; nothing at all if no question has a category."""
    names_D = np.array([q.category or NO_CATEGORY for q in questions], dtype=object)
    if not any(q.category for q in questions):
        return {}
    return {name: names_D == name for name in sorted(set(names_D))}


def _numbers(questions: Sequence[Question], marks: Sequence[Mark]) -> dict[str, Ratio]:
    """Rule 5; nothing without a numeric question, no errors without an answer that has one."""
    numeric_D = np.array([q.kind == "numeric" for q in questions])
    if not numeric_D.any():
        return {}
    stated_D = np.array([m.error is not None for m in marks])
    error_D = np.array([m.error or 0.0 for m in marks])
    right_D = np.array([m.accuracy for m in marks]) * numeric_D
    near_D = stated_D & (np.abs(error_D) <= 1.0 + 1e-9)
    found = {
        "numeric_accuracy": Ratio(right_D, numeric_D, 100.0),
        "numeric_off_by_one": Ratio(near_D, numeric_D, 100.0),
    }
    if stated_D.any():
        found["numeric_mae"] = Ratio(np.abs(error_D), stated_D)
        found["numeric_rmse"] = Ratio(error_D**2, stated_D, root=True)
    return found


def _counts(questions: Sequence[Question], marks: Sequence[Mark]) -> Mapping[str, int]:
    """Questions of each kind and category, and answers that their rule could not read."""
    kinds = Counter(q.kind for q in questions)
    unread = Counter(q.kind for q, m in zip(questions, marks, strict=True) if not m.read)
    found: dict[str, int] = {}
    for kind, count in sorted(kinds.items()):
        found[kind] = count
        found[f"{kind}_unread"] = unread[kind]
    for name, member_D in _categories(questions).items():
        found[f"questions/{name}"] = int(member_D.sum())
    return found
