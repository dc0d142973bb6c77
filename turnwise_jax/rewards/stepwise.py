"""How well a reply's reasoning is grounded in what is heard and seen (AVATAR, fig. 8).

A frozen judge (paper: InternVL-3B) reads the reasoning and grades it from 0 to 1; what it is asked
is made here. It is shown 8 frames at most of those that the policy saw, from the middles of equal
parts, as in the public code. A reply without reasoning earns 0 and nobody is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from turnwise_jax.rewards.accuracy import Asked
from turnwise_jax.rewards.answers import final_answer, reasoning
from turnwise_jax.rewards.choices import read_choice
from turnwise_jax.rewards.judges.protocol import Request

FRAMES = 8


def stepwise_request(text: str, question: Asked, frames: Sequence[str] = ()) -> Request | None:
    """What a stepwise judge is asked about the reply `text`; None if it holds no reasoning.

    ``frames`` are all that the policy saw, in order. Options stand beside the question, and letters
    that name one beside its text ("B. left"), so that a judge need not look them up.
    """
    reasons = reasoning(text)
    if not reasons:
        return None
    options = [_option(letter, question.options) for letter in ascii_uppercase]
    return Request(
        "stepwise",
        question=" ".join([question.text, *options[: len(question.options)]]),
        answer=_in_words(question.answer, question),
        reply=_in_words(final_answer(text), question),
        sound=question.sound,
        reasoning=reasons,
        frames=middles(frames, FRAMES),
    )


def middles(frames: Sequence[str], count: int) -> tuple[str, ...]:
    """At most `count` of `frames`: those in the middle of `count` equal parts."""
    if len(frames) <= count:
        return tuple(frames)
    return tuple(frames[(2 * i + 1) * len(frames) // (2 * count)] for i in range(count))


def _in_words(answer: str, question: Asked) -> str:
    letter = read_choice(answer, question.options) if question.options else None
    return answer if letter is None else _option(letter, question.options)


def _option(letter: str, options: Sequence[str]) -> str:
    place = ascii_uppercase.index(letter)
    return f"{letter}. {options[place]}" if place < len(options) else ""
