"""Does a hint give the answer away? A strict rule: in doubt it does, and another one is written.

A hint does if it

- names an option by its letter ("(b)", "B.", "option b", "is b", a capital on its own);
- contains the answer's words one after another (of a choice: those of the right option), whatever
  their case, plural and punctuation, articles left out; in scripts without blanks, its characters;
- holds the telling words of the answer in any order: all of them, or four fifths where there are
  five or more. Words of the question and words that all options share tell nothing;
- states the answer's number, in digits or words, whatever its sign and unit; "once" to "thrice",
  "pair" and "couple" too;
- contains all wrong options and not the right one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from turnwise_jax.rewards.numbers import parse_number

_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
_ARTICLES = frozenset({"a", "an", "the"})
_LITTLE_TEXT = (
    "and are as at be but by for from had has have he her his in into is it its not of on or she "
    "so that their them then there they this to was were which while who with"
)
_LITTLE = _ARTICLES | frozenset(_LITTLE_TEXT.split())
_SAID = {"once": 1.0, "twice": 2.0, "thrice": 3.0, "single": 1.0, "pair": 2.0, "couple": 2.0}
_LONGEST_NUMBER = 4  # words of a number, such as "two hundred and five"
_NO_BLANKS = re.compile(r"[\u2e80-\ud7ff\uf900-\ufaff]")  # Chinese, Japanese, Korean
_SHARE = 0.8  # of a long answer's telling words


def leak(hint: str, question: str, answer: str, options: Sequence[str] = ()) -> str:
    """Why a hint gives the answer away, to be shown to who wrote it; "" if it does not.

    Args:
      answer: of a choice the letter of one of `options`, which hold no letters.
    """
    letter = _letter_named(hint, len(options))
    if letter:
        return f"it names option {letter}"
    right = options[ascii_uppercase.index(answer)] if options else answer
    wrong = [option for option in options if option != right]
    if _contains(hint, right):
        return f'it contains "{right}"'
    if _states_number(hint, right):
        return f"it states the number {right}"
    telling = set(_content(right)) - set(_content(question)) - _shared(options)
    held = telling & set(_words(hint))
    if telling and len(held) >= (_SHARE * len(telling) if len(telling) >= 5 else len(telling)):
        return f"its words tell the answer: {', '.join(sorted(held))}"
    if wrong and all(_contains(hint, option) for option in wrong):
        return "it names all other options"
    return ""


def _letter_named(hint: str, options: int) -> str:
    """The first option letter that a hint names; "" if it names none."""
    if not options:
        return ""
    letters = ascii_uppercase[:options]
    alone = "".join(letter for letter in letters if letter not in "AI")
    patterns = [
        rf"(?<!\w)(?i:([{letters}]))\)",
        rf"(?<!\w)([{letters}])[.:](?!\w)",
        r"(?i:\b(?:option|answer|choice|letter|choose|pick|select|is)s?\b(?:\s+is)?\W+)"
        rf"(?!a\s+\w)((?i:[{letters}]))(?!\w|')",
    ]
    if alone:
        patterns.append(rf"(?<![\w'])([{alone}])(?![\w'])")
    found = (re.search(pattern, hint) for pattern in patterns)
    return next((match[1].upper() for match in found if match), "")


def _contains(text: str, part: str) -> bool:
    """Whether the words of `part` stand in `text` one after another."""
    wanted = [word for word in _words(part) if word not in _ARTICLES] or _words(part)
    words = [word for word in _words(text) if word not in _ARTICLES or word in wanted]
    starts = range(len(words) - len(wanted) + 1)
    if wanted and any(words[i : i + len(wanted)] == wanted for i in starts):
        return True
    return bool(_NO_BLANKS.search(part)) and _squeezed(part) in _squeezed(text)


def _states_number(hint: str, answer: str) -> bool:
    """Whether the number of an answer that is little more than a number is in the hint."""
    value = parse_number(answer)
    if value is None or len(_content(answer)) > 3:
        return False
    words = hint.split()
    said = [parse_number(" ".join(words[i : i + _LONGEST_NUMBER])) for i in range(len(words))]
    said += [_SAID.get(word) for word in _words(hint)]
    return any(math.isclose(abs(n), abs(value), rel_tol=1e-6) for n in said if n is not None)


def _shared(options: Sequence[str]) -> set[str]:
    """Words that every option holds."""
    sets = [set(_content(option)) for option in options]
    return set.intersection(*sets) if len(sets) > 1 else set()


def _content(text: str) -> list[str]:
    return [word for word in _words(text) if word not in _LITTLE]


def _words(text: str) -> list[str]:
    """The words of a text in lower case, without possessive and plural endings."""
    plain = re.sub(r"['’]s\b", "", text.casefold())
    return list(_singular(_WORD.findall(plain)))


def _singular(words: Iterable[str]) -> Iterable[str]:
    for word in words:
        plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
        yield word[:-1] if plural else word


def _squeezed(text: str) -> str:
    return "".join(re.findall(r"\w+", text.casefold()))
