"""What a final answer is worth against the truth, 0 to 1, by the kind of its question (AVATAR).

``multiple_choice``  1 if it names the right option (`choices`), else 0
``numeric``          eq. 8, 1 - min(1, |a - t| / |t|), on the number in it (`numbers`)
``ocr``              1 - word error rate, not below 0
``free_form``        mean of the F1 of ROUGE-1, ROUGE-2 and ROUGE-L
``exact``            1 if it is the truth once both are normalised, else 0

*Choices of this package.* Eq. 8 divides by the truth itself: a negative truth is taken by its
magnitude, and a truth of 0 asks for 0. The public code pays numbers 1 or 0 instead (``strict``). It
compares letters and texts as they are written; here they are read. A reference of one word has no
pair of words, so that ROUGE-2 is left out of its mean: the right answer is worth 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.choices import normalised, read_choice
from turnwise_jax.rewards.numbers import comparable, parse_number
from turnwise_jax.rewards.overlap import rouge_l, rouge_n, rouge_words, word_error_rate

RELATIVE, ABSOLUTE, ZERO = 1e-3, 1e-5, 1e-10  # the strict rule: tolerances; what counts as zero


class Asked(Protocol):
    """What is needed of a question: its kind, its true answer (for multiple choice the letter, or
    what names the option) and its options (texts without letters)."""

    @property
    def text(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def options(self) -> Sequence[str]: ...
    @property
    def sound(self) -> str: ...


def accuracy(answer: str, question: Asked, *, strict: bool = False) -> float:
    """The worth of `answer`, the final answer alone (`answers.final_answer`), in [0, 1].

    Args:
      strict: numbers are worth 1 within a relative 1e-3 (within 1e-5 where the truth is 0), else 0.

    Raises:
      InputError: an unknown kind, or a truth that does not fit it.
    """
    if question.kind not in _RULES:
        message = f"must be one of {', '.join(_RULES)}, got {question.kind!r}"
        raise InputError(message, field="question.kind")
    if question.kind == "numeric":
        return _numeric(answer, question, strict)
    return _RULES[question.kind](answer, question)


def answer_key(answer: str, question: Asked) -> str | None:
    """What makes two answers to a question the same: the letter, the number, or the normalised
    text. None for an answer that the kind cannot read, or an empty one."""
    if question.kind == "multiple_choice":
        return read_choice(answer, question.options)
    if question.kind == "numeric":
        number = parse_number(answer)
        return None if number is None else repr(number)
    return normalised(answer) or None


def _multiple_choice(answer: str, question: Asked) -> float:
    truth = read_choice(question.answer, question.options)
    if truth is None:
        message = f"must name one of its {len(question.options)} options, got {question.answer!r}"
        raise InputError(message, field="question.answer")
    return float(read_choice(answer, question.options) == truth)


def _numeric(answer: str, question: Asked, strict: bool = False) -> float:
    given, truth = comparable(answer, question.answer)
    if truth is None:
        raise InputError(f"must be a number, got {question.answer!r}", field="question.answer")
    if given is None:
        return 0.0
    error = abs(given - truth)
    if strict:
        return float(error < (ABSOLUTE if abs(truth) < ZERO else RELATIVE * abs(truth)))
    if truth == 0:
        return float(error == 0)
    return 1.0 - min(1.0, error / abs(truth))


def _ocr(answer: str, question: Asked) -> float:
    return max(0.0, 1.0 - word_error_rate(question.answer, answer))


def _free_form(answer: str, question: Asked) -> float:
    reference, said = rouge_words(question.answer), rouge_words(answer)
    scores = [rouge_n(reference, said, 1), rouge_l(reference, said)]
    if len(reference) > 1:
        scores.append(rouge_n(reference, said, 2))
    return sum(scores) / len(scores)


def _exact(answer: str, question: Asked) -> float:
    return float(normalised(answer) == normalised(question.answer))


_RULES: dict[str, Callable[[str, Asked], float]] = {
    "multiple_choice": _multiple_choice,
    "numeric": _numeric,
    "ocr": _ocr,
    "free_form": _free_form,
    "exact": _exact,
}
