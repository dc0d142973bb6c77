"""Which option an answer names.

An answer names an option by its letter ("B", "b.", "(B)", "Option B", "B. blue circle", "The answer
is B") or by being its text, letter case, punctuation around it and an article before it aside. A
letter inside running text counts if it stands alone in upper case, or is marked ("(b)", "b."); "A"
and "I" before a lower-case word are an article and a pronoun ("A circle", "I think"), unless that
word goes on about the letter ("A or B", "A is right"). Several different letters, or a letter with
another option's text, name nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from string import ascii_uppercase

_EDGES = " \t\n\r.,;:!?\"'`*_“”‘’()[]"
_ARTICLE = re.compile(r"(?:a|an|the) (?=\S)")
_SOLE = re.compile(
    r"\W*(?:the\s+)?(?:(?:correct|right|best|final)\s+)?(?:(?:answer|option|choice)\b\W*)?"
    r"(?:is\b\W*)?(?:option\b\W*)?([a-z])\W*",
    re.IGNORECASE,
)
_LED = re.compile(r"\W*([a-z])(?:\s*[.):\],*-]+\s*|\s+)(\S.*)", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"(?<!\w)[(\[]([a-z])[)\]](?!\w)|(?<![\w.'’-])([a-z])[.):](?!\w)", re.I)
_ALONE = re.compile(r"(?<![\w'’-])([A-Z])(?![\w'’-])")
_WORD_AFTER = re.compile(r"\s+([a-z]+)")
_ABOUT_LETTERS = frozenset({"and", "or", "nor", "is", "because", "since", "but", "not"})


def normalised(text: str) -> str:
    """`text` for comparison: compatible characters made one, lower case, single blanks, without
    punctuation at its ends and without an article before it. A sign at the start stays."""
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_EDGES)
    return _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text


def read_choice(answer: str, options: Sequence[str] = ()) -> str | None:
    """The letter of the option that `answer` names, by the rules of this module.

    Args:
      options: their texts, without letters. Without any, only letters are understood, A to Z.

    Returns:
      An upper-case letter, or None if `answer` names no option or more than one.
    """
    letters = ascii_uppercase[: len(options)] if options else ascii_uppercase
    if (sole := _SOLE.fullmatch(answer)) and sole[1].upper() in letters:
        return sole[1].upper()
    texts = [normalised(option) for option in options]
    if (named := _by_text(answer, texts)) is not None:
        return named
    led = _LED.fullmatch(answer)
    if led and (named := _by_text(led[2], texts)) is not None:
        return named if named == led[1].upper() else None
    found = _letters(answer) & set(letters)
    return found.pop() if len(found) == 1 else None


def _by_text(answer: str, texts: Sequence[str]) -> str | None:
    """The letter of the one option whose text `answer` is."""
    wanted = normalised(answer)
    same = [letter for letter, text in zip(ascii_uppercase, texts, strict=False) if text == wanted]
    return same[0] if wanted and len(same) == 1 else None


def _letters(answer: str) -> set[str]:
    """Upper-case letters that running text names as options."""
    found = {(one or other).upper() for one, other in _MARKED.findall(answer)}
    for alone in _ALONE.finditer(answer):
        after = _WORD_AFTER.match(answer, alone.end())
        if alone[1] in "AI" and after and after[1] not in _ABOUT_LETTERS:
            continue
        found.add(alone[1])
    return found
