"""A deterministic judge for the embedded world: compares key points, needs no model.

**Key points** of a text are its content words: lower-case words without those of ``STOP_WORDS``,
a final s dropped ("appears" = "appear"). The word after "turns", "becomes" or "changes to" is what
something turns *into* and is a key point of its own, so "the blue square turns green" and "the
green square turns blue" differ although their words agree. Otherwise the order of words, upper and
lower case, punctuation and repeated words make no difference.

**Quality.** With A the key points of the reference answer and C those of the reply,

    net = (|A & C| - |C - A|) / |A|

is the share of key points covered, less what the reply says beside or against them; a wrong word in
place of a right one costs twice, and a reply that lists everything covers all and is still wrong.

    score   (0..4)                        (0..2)
    4       A = C                         2
    3       C holds A, net >= 1/2         2
    2       net >= 1/2                    1
    1       net > 0                       0
    0       anything else                 0

following the rubric of `facts` 1.2: all key points; all with slips; some right; a little relevant;
irrelevant or contradicted. An empty reference has no key points and is answered by nothing.

**Repetition.** A *statement* is a stretch of text up to ``. ! ? ;`` or a line break. A reply is
repetitive if each of its statements has all its key points within *one* statement of the previous
text. (Pooling the words of all earlier replies would call "The red circle leaves." old once a red
circle had appeared and a blue square had left.) A reply without key points says nothing new: yes.

**Stepwise.** The mean of up to three shares, each of key points that the reasoning names:

    heard   of the sound caption
    true    of the true answer
    place   of the words for a place (``PLACES``) in caption and answer, less one such word for each
            place that the reasoning names and they do not; not below 0

A share of nothing is left out; without any the score is 0. A number word and its digits are one key
point ("2" = "two"); "yes", "no" and the letter of an option ("B. red") are none, and the mark of a
change is left off. The frames and the final answer are not looked at: the reasoning is scored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import Closing, OnAnswer, Request
from turnwise_jax.rewards.numbers import WORD_VALUES

# fmt: off
STOP_WORDS = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "i", "you", "we", "he", "she", "it", "they",
    "its", "there", "and", "or", "but", "then", "so", "as", "now", "just", "is", "are", "was",
    "were", "be", "been", "being", "has", "have", "had", "do", "does", "did", "will", "on", "in",
    "at", "of", "to", "into", "onto", "from", "by", "with", "for",
})
# fmt: on
CHANGES = frozenset({"turn", "become", "change"})
PLACES = frozenset(
    {"left", "right", "top", "bottom", "middle", "center", "centre", "upper", "lower"}
)
# fmt: off
WORLD_WORDS = frozenset({  # key points of all answers in worlds/script.py
    "appear", "turn", "leave", "here",
    "red", "green", "blue", "yellow", "purple", "white", "cyan", "pink",
    "square", "ring", "cross", "triangle", "circle",
})
# fmt: on
RULE_VERSION = 1  # of quality and repetition
STEPWISE_VERSION = 1

_WORD = re.compile(r"[^\W_]+")
_STATEMENT_END = re.compile(r"[.!?;\n]+")
_DIGITS = {word: f"{value:g}" for word, value in WORD_VALUES.items()}
_OPTION_LETTER = re.compile(r"\A\s*[A-Z][.)]\s+")


def key_points(text: str) -> frozenset[str]:
    """Content words of `text`; the word after a change ("turns green") is marked ``>green``."""
    points = []
    changed = False
    for word in _WORD.findall(text.casefold()):
        if word in STOP_WORDS:
            continue
        if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
            word = word[:-1]
        points.append(">" + word if changed else word)
        changed = word in CHANGES
    return frozenset(points)


def statements(text: str) -> list[frozenset[str]]:
    """Key points of each statement of `text`; statements without any are left out."""
    return [points for part in _STATEMENT_END.split(text) if (points := key_points(part))]


def of_other_worlds(answers: Iterable[str]) -> list[str]:
    """Those of the reference answers that hold words which no answer of the embedded world has."""
    return [
        answer
        for answer in answers
        if {point.removeprefix(">") for point in key_points(answer)} - WORLD_WORDS
    ]


class RuleJudge(Closing):
    """The rule of this module as a judge. ``levels`` is 5 (scores 0..4) or 3 (scores 0..2)."""

    name = f"rule-{RULE_VERSION}"

    def __init__(self, *, levels: int = 5):
        if levels not in (3, 5):
            raise InputError(f"must be 3 or 5, got {levels!r}", field="judge.levels")
        self.levels = levels

    def seen(self, request: Request) -> Mapping[str, Any]:
        fields = list(request.fields().values())
        if request.kind == "stepwise":
            return {"stepwise_rule": STEPWISE_VERSION, "request": fields}
        return {"rule": RULE_VERSION, "levels": self.levels, "request": fields}

    def ask(
        self, requests: Sequence[Request], on_answer: OnAnswer | None = None
    ) -> list[float | None]:
        answers: list[float | None] = []
        for index, request in enumerate(requests):
            answers.append(self._answer(request))
            if on_answer is not None:
                on_answer(index, answers[-1])
        return answers

    def _answer(self, request: Request) -> float:
        if request.kind == "repetition":
            return float(repeats(request.reply, request.previous))
        if request.kind == "stepwise":
            return grounding(request.reasoning, request.sound, request.answer)
        score = quality(request.reply, request.answer)
        return float(score) if self.levels == 5 else float((0, 0, 1, 2, 2)[score])


def quality(reply: str, answer: str) -> int:
    """Score 0..4 of `reply` against the reference `answer`, by the table of this module."""
    wanted, said = key_points(answer), key_points(reply)
    if not wanted:
        return 0
    net = (len(wanted & said) - len(said - wanted)) / len(wanted)
    if said == wanted:
        return 4
    if net >= 0.5:
        return 3 if said > wanted else 2
    return 1 if net > 0 else 0


def repeats(reply: str, previous: str) -> bool:
    """Whether `previous` already holds all that `reply` states."""
    known = statements(previous)
    return all(any(new <= old for old in known) for new in statements(reply))


def grounding(reasoning: str, sound: str, answer: str) -> float:
    """Stepwise score, 0 to 1, of `reasoning` against the sound caption and the true answer."""
    said = _grounds(reasoning)
    heard, true = _grounds(sound), _grounds(_OPTION_LETTER.sub("", answer))
    places = (heard | true) & PLACES
    shares = [len(wanted & said) / len(wanted) for wanted in (heard, true) if wanted]
    if places:
        net = len(places & said) - len((said & PLACES) - places)
        shares.append(max(0.0, net / len(places)))
    return sum(shares) / len(shares) if shares else 0.0


def _grounds(text: str) -> frozenset[str]:
    """Key points of `text` as the stepwise rule compares them."""
    points = (point.removeprefix(">") for point in key_points(text))
    return frozenset(_DIGITS.get(point, point) for point in points) - {"yes", "no"}
