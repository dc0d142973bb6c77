"""A batch of answers to questions becomes rewards (AVATAR).

All that needs a judge is asked in one call over the whole batch, equal requests once, and every
score lands at its own rollout's place, whatever shares the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.accuracy import Asked, accuracy, answer_key
from turnwise_jax.rewards.answer_format import answer_format
from turnwise_jax.rewards.answers import final_answer
from turnwise_jax.rewards.asking import fill
from turnwise_jax.rewards.judges.protocol import Judge, JudgeStats, Request
from turnwise_jax.rewards.plan import Plan
from turnwise_jax.rewards.self_consistency import self_consistency
from turnwise_jax.rewards.stepwise import stepwise_request


class AnswerWeights(NamedTuple):
    """Factors of the terms in the total; self-consistency and stepwise are only scored if theirs is
    not 0."""

    accuracy: float = 1.0
    format: float = 1.0
    self_consistency: float = 0.0
    stepwise: float = 0.0


# Weights by stage. Three sources disagree: the paper's text ("Stage 1 uses format and accuracy
# rewards, Stage 2 augments these with the self-rewarding mechanism, and Stage 3 combines format
# rewards with the stepwise reasoning judge"), our default; its table 6, where each stage keeps all
# rewards of the one before; and the README of the public code, which drops accuracy after stage 1
# and halves the format (there 1 or 0, so that half of our 1 or -1 spreads twice as far).
STAGE_WEIGHTS: dict[str, dict[int, AnswerWeights]] = {
    "text": {
        1: AnswerWeights(accuracy=1.0, format=1.0),
        2: AnswerWeights(accuracy=1.0, format=1.0, self_consistency=1.0),
        3: AnswerWeights(accuracy=0.0, format=1.0, stepwise=1.0),
    },
    "table": {
        1: AnswerWeights(accuracy=1.0, format=1.0),
        2: AnswerWeights(accuracy=1.0, format=1.0, self_consistency=1.0),
        3: AnswerWeights(accuracy=1.0, format=1.0, self_consistency=1.0, stepwise=1.0),
    },
    "code": {
        1: AnswerWeights(accuracy=1.0, format=0.5),
        2: AnswerWeights(accuracy=0.0, format=0.5, self_consistency=1.0),
        3: AnswerWeights(accuracy=0.0, format=0.5, stepwise=1.0),
    },
}


class Answered(NamedTuple):
    """One rollout: the whole reply to a question.

    ``prompt`` is equal for rollouts of one prompt and differs between prompts. ``frames`` name what
    was seen, in order, for a judge that looks (`judges.Request`).
    """

    prompt: str
    text: str
    question: Asked
    frames: tuple[str, ...] = ()


class AnswerTerms(NamedTuple):
    """The unweighted terms, float32 [N] each.

    accuracy: 0 to 1. format: 1 or -1. self_consistency: 1 or 0. stepwise: 0 to 1, NaN where the
    judge failed. The last two are 0 throughout where their weight is 0.
    """

    accuracy: npt.NDArray[np.float32]
    format: npt.NDArray[np.float32]
    self_consistency: npt.NDArray[np.float32]
    stepwise: npt.NDArray[np.float32]


def score_answers(
    answered: Sequence[Answered], judge: Judge | None, weights: AnswerWeights
) -> tuple[AnswerTerms, JudgeStats]:
    """Score N rollouts, in any order and of any number of prompts.

    Args:
      judge: answers requests of kind "stepwise"; not asked, and may be None, if that weight is 0.

    Raises:
      InputError: a question of an unknown kind or with a truth that does not fit it (``record`` is
        the prompt), or no judge where one is needed.
    """
    answers = [final_answer(item.text) for item in answered]
    none: npt.NDArray[np.float32] = np.zeros(len(answered), np.float32)
    agrees = none
    if weights.self_consistency:
        keys = [answer_key(a, item.question) for a, item in zip(answers, answered, strict=True)]
        agrees = self_consistency([item.prompt for item in answered], keys)
    plan, stats = _stepwise_plan(answered if weights.stepwise else ()), JudgeStats()
    if plan.asks:
        if judge is None:
            raise InputError("is needed to weigh stepwise reasoning", field="judge")
        stats = fill([plan], judge)
    terms = AnswerTerms(
        accuracy=np.array(
            [_accuracy(a, item) for a, item in zip(answers, answered, strict=True)], np.float32
        ),
        format=np.array([answer_format(item.text) for item in answered], np.float32),
        self_consistency=agrees,
        stepwise=plan.values if weights.stepwise else none,
    )
    return terms, stats


def total(terms: AnswerTerms, weights: AnswerWeights) -> npt.NDArray[np.float32]:
    """The weighted sum of `terms`, float32 [N]; NaN where a term with a weight is NaN."""
    out = np.zeros(terms.accuracy.shape, np.float32)
    for term, weight in zip(terms, weights, strict=True):
        if weight:
            out += np.float32(weight) * term
    return out


def _accuracy(answer: str, item: Answered) -> float:
    try:
        return accuracy(answer, item.question)
    except InputError as error:
        raise InputError(error.message, record=item.prompt, field=error.field) from None


def _stepwise_plan(answered: Sequence[Answered]) -> Plan:
    """Zero where there is no reasoning, NaN and a request elsewhere."""
    values: npt.NDArray[np.float32] = np.zeros(len(answered), np.float32)
    asks: list[tuple[tuple[int, ...], Request]] = []
    for n, item in enumerate(answered):
        request = stepwise_request(item.text, item.question, item.frames)
        if request is not None:
            values[n] = np.nan
            asks.append(((n,), request))
    return Plan(values, tuple(asks))
