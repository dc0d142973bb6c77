"""The number that an answer states, read from running text.

The first of these is taken:

- digits, with thousands in groups of three ("1,234.5", "1 234"), a decimal point, an exponent
  ("2e-3", "3 x 10^4") or a scale word ("3 million"). A comma is never a decimal point: "3,5" is 3;
- a fraction, "3/4" or "½", also after a whole number ("1 1/2" is 1.5). Division by zero is none
  ("3/0" is 3), and neither is a date: "3/4/2024" is 3, as "2024-05-01" is 2024 and "12:30" is 12;
- number words from zero ("twenty-one" is 21, "two hundred and five thousand" is 205,000). "No one",
  "the one", "which one" and the like are no numbers; spelled fractions ("two thirds") are not read.
  "No" and "none" are 0 only as the whole answer.

A sign belongs to the number if it touches it ("-3", "-$3", "$-3", with any kind of minus) or is
said ("minus 3"); a hyphen after a letter or a digit is no sign ("option-2" is 2, "3-5" is 3). What
stands around is passed over: "about", "option", currency, units ("3kg", "5 s"). Digits right after
a letter are part of a name ("H264", "B2"), not a number. What does not fit a float is none.

*Percent.* "12 %" is 12. Only where the other side is a plain number below 1 in magnitude (a share,
"0.12") is a percentage of 1 or more taken as hundredths: see `comparable`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

# fmt: off
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9}
WORD_VALUES: dict[str, float] = {
    **{word: float(value) for value, word in enumerate(_SMALL)},
    **{word: 10.0 * value for value, word in enumerate(_TENS, 2)},
}


def _any(words: Iterable[str]) -> str:
    """A pattern for one of `words`, longer ones first ("sixteen" before "six")."""
    return f"(?:{'|'.join(sorted(words, key=len, reverse=True))})"


_VULGAR = "[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]"
_MONEY = "[$€£¥₹]"
_UNDER_100 = rf"(?:{_any(_TENS)}(?:[- ]{_any(_SMALL[1:10])}\b)?|{_any(WORD_VALUES)})\b"
_UNDER_1000 = rf"(?:(?:a|{_any(_SMALL[1:])}) hundred\b(?:(?: and)? {_UNDER_100})?|{_UNDER_100})"
_WORDS = rf"{_UNDER_1000}(?: {_any(_SCALES)}\b(?:(?:,| and)? {_UNDER_1000})?)?"
_BEFORE_PRONOUN = ("no", "the", "this", "that", "any", "each", "every", "which")
_PRONOUN = "(?:" + "|".join(rf"(?<=\b{word} )" for word in _BEFORE_PRONOUN) + r")one\b"
_GROUPED = r"[1-9]\d{0,2}(?P<between>[, ])\d{3}(?:(?P=between)\d{3})*(?!\d)"
_NUMBER = re.compile(
    rf"(?<![a-z_\d])(?<!\d[.,])(?P<digits>(?:{_GROUPED}|\d+)(?:\.\d+)?|(?<!\w)\.\d+)"
    rf"|(?<!\w)(?P<vulgar>{_VULGAR})"
    rf"|\b(?!{_PRONOUN})(?P<words>{_WORDS})"
)
_SIGN = re.compile(rf"(?:(?:(?<![\w)\]])-|\b(?:minus|negative) ){_MONEY}?|{_MONEY} ?-)$")
_BELOW = re.compile(r" ?/ ?(\d+(?:\.\d+)?)(?!\d| ?/)")
_PART = re.compile(r" (\d+)/([1-9]\d*)(?![\d/])")
_VULGAR_PART = re.compile(rf" ?({_VULGAR})")
_POWER = re.compile(r"(?:e| ?(?:[x×*·]|\\times) ?10\^\{?)([+-]?\d+)(?!\w)")
_SCALE = re.compile(rf" ({_any(_SCALES)})\b")
_PERCENT = re.compile(r"[^\w%]{0,2}(?:%|％|per ?cent\b)")
_NOTHING = re.compile(r"\W*(?:no|none)\W*")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_RAISED = re.compile("(?<=10)[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{NON-BREAKING HYPHEN}\N{HYPHEN}﹣－", "-"),
        **dict.fromkeys("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}\t\n\r", " "),
        "\N{FRACTION SLASH}": "/",
    }
)


class _Number(NamedTuple):
    value: float
    percent: bool


def parse_number(text: str) -> float | None:
    """The first number in `text` by the rules of this module; None if there is none."""
    number = _read(text)
    return None if number is None else number.value


def comparable(answer: str, truth: str) -> tuple[float | None, float | None]:
    """The numbers of both texts on one scale: where one is a percentage of magnitude 1 or more and
    the other a plain number below 1, the percentage is read as hundredths ("12 %" and "0.12")."""
    one, two = _read(answer), _read(truth)
    if one is not None and two is not None:
        one, two = _on_scale_of(two, one), _on_scale_of(one, two)
    return None if one is None else one.value, None if two is None else two.value


def _on_scale_of(other: _Number, number: _Number) -> _Number:
    share = number.percent and not other.percent and abs(other.value) < 1 <= abs(number.value)
    return _Number(number.value / 100, False) if share else number


def _read(text: str) -> _Number | None:
    text = _RAISED.sub(lambda raised: "^" + raised[0].translate(_LOWERED), text.casefold())
    text = _LATEX_FRACTION.sub(r"\1/\2", text.translate(_PLAIN))
    if _NOTHING.fullmatch(text):
        return _Number(0.0, False)
    found = _NUMBER.search(text)
    if found is None:
        return None
    value, end = _value(text, found)
    if not math.isfinite(value):
        return None
    if _SIGN.search(text, max(0, found.start() - 12), found.start()):
        value = 0.0 - value
    return _Number(value, _PERCENT.match(text, end) is not None)


def _value(text: str, found: re.Match[str]) -> tuple[float, int]:
    """Magnitude of the number that begins with `found`, and where it ends."""
    if found["words"]:
        return _said(found["words"]), found.end()
    if found["vulgar"]:
        return unicodedata.numeric(found["vulgar"]), found.end()
    digits = found["digits"].replace(",", "").replace(" ", "")
    value, end = float(digits), found.end()
    if (below := _BELOW.match(text, end)) and float(below[1]):
        return value / float(below[1]), below.end()
    if digits.isdecimal():
        if (part := _PART.match(text, end)) and float(part[1]) < float(part[2]):
            return value + float(part[1]) / float(part[2]), part.end()
        if vulgar := _VULGAR_PART.match(text, end):
            return value + unicodedata.numeric(vulgar[1]), vulgar.end()
    if power := _POWER.match(text, end):
        value, end = float(f"{digits}e{power[1]}"), power.end()
    if scale := _SCALE.match(text, end):
        value, end = value * _SCALES[scale[1]], scale.end()
    return value, end


def _said(words: str) -> float:
    """The value of number words, such as "two hundred and five thousand"."""
    total = group = 0.0
    for word in re.findall(r"[a-z]+", words):
        if word == "hundred":
            group = max(group, 1.0) * 100
        elif word in _SCALES:
            total, group = total + group * _SCALES[word], 0.0
        else:
            group += WORD_VALUES.get(word, 0.0)
    return total + group
