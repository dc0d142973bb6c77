"""StreamingBench with options: real-time visual understanding, and sequential questions (SQA).

The rule, line by line. Public source: THUNLP-MT/StreamingBench ``src/benchmark/StreamingBench.py``
(prompt, clip) and ``src/data/count.py`` (marks).

1. The policy is shown the clip before the query (60 s of it in the main table, or all) and the
   question with its four options, and answers once.
2. Right if the *first character* of the response is the letter of the true option. "The answer is
   B" and "(B)" are wrong.
3. An empty response is left out of the total (and counted here).
4. ``accuracy`` is the share over all questions that are left, ``accuracy/TASK`` over those of one
   task type.
5. ``accuracy_of_all`` is ours: empty responses stay in the total, as wrong.

All in percent. Responses whose first character is no option's letter can never be right; how many
there are, and how many were silence, is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

import numpy as np

from turnwise_jax.data.records import Question
from turnwise_jax.errors import InputError
from turnwise_jax.eval.bootstrap import Ratio, intervals
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.subsets import answered, apart, by_subset, named

RULE = (
    "first character of the response is the right letter; empty responses left out of the total; "
    "share over all questions, and by task type; of_all: empty responses counted as wrong"
)


def report(
    predictions: Sequence[Prediction],
    judges: Judges | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """All numbers of one set of answered questions.

    Args:
      predictions: one reply and one multiple-choice question each; ``target.subset`` is the task
        type.
      judges: not asked.
      resamples, seed: of the bootstrap over videos.

    Raises:
      InputError: a prediction without a task type or a question with options, or with other than
        one reply.
    """
    members = by_subset(predictions)
    pairs = [answered(p) for p in predictions]
    for prediction, (question, _) in zip(predictions, pairs, strict=True):
        _check(prediction, question)
    responses = [text for _, text in pairs]
    right_D = np.array([text[:1] == question.answer for question, text in pairs])
    given_D = np.array([text != "" for text in responses])
    ratios = {
        "accuracy": Ratio(right_D, given_D, 100.0),
        "accuracy_of_all": Ratio(right_D, np.ones(len(pairs)), 100.0),
        **named("accuracy", apart(right_D, given_D, members)),
    }
    clusters = [p.cluster for p in predictions]
    return Report(
        benchmark="streamingbench",
        rule=RULE,
        metrics={name: ratio.value for name, ratio in ratios.items()},
        intervals=intervals(ratios, clusters, resamples=resamples, seed=seed),
        counts={
            "questions": len(predictions),
            "videos": len(set(clusters)),
            "empty_responses": int((~given_D).sum()),
            "first_character_no_letter": sum(
                text != "" and text[0] not in letters(question) for question, text in pairs
            ),
            "silent_responses": sum(sum(p.replied) == 0 for p in predictions),
            **{f"questions/{name}": int(member_D.sum()) for name, member_D in members.items()},
        },
    )


def letters(question: Question) -> str:
    """Those of its options, the benchmark's four where a prediction does not list them."""
    return ascii_uppercase[: len(question.options) or 4]


def _check(prediction: Prediction, question: Question) -> None:
    if question.answer not in tuple(letters(question)):
        raise InputError(
            f"is {question.answer!r}, this benchmark takes the letters {letters(question)}",
            record=prediction.id,
            field="question.answer",
        )
