"""Questions, their options and their answers, as question-answering records spell them.

Options come with or without letters, as a list or as letter -> text. An answer is a letter ("B",
"(b)", "B."), a letter with its option ("B. a dog"), an option's text, a number, or text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from turnwise_jax.data.records import QUESTION_KINDS, Question
from turnwise_jax.data.sources.fields import Fields

# other spellings of the kinds, without case, hyphens and underscores
_ALIASES = {
    **dict.fromkeys(("mc", "mcq", "multi choice", "multiplechoice", "choice"), "multiple_choice"),
    **dict.fromkeys(("numerical", "number", "regression", "counting", "count"), "numeric"),
    **dict.fromkeys(("freeform", "free text", "open ended", "descriptive"), "free_form"),
    **dict.fromkeys(("exact match", "code", "default"), "exact"),
    "text recognition": "ocr",
    **{kind.replace("_", " "): kind for kind in QUESTION_KINDS},
}
_LABELLED = re.compile(r"\s*\(?([A-Za-z])[.):：、]\)?\s*(.*?)\s*", re.DOTALL)
_LETTER = re.compile(r"\s*\(?([A-Za-z])\)?[.:：、]?\s*")
# how a text may list options: the sign before each letter and the one after it
_LISTED = ((r"\(", r"\)"), ("", r"[.、]"), ("", r"\)"), ("", "[:：]"))
_HEADING = re.compile(r"\s*\b(options|choices)\s*[:：]?\s*$", re.IGNORECASE)
_NUMBER = re.compile(r"[-+−]?((\d{1,3}(,\d{3})+|\d+)(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_NUMBER_WORDS = re.compile(r"\b(zero|one|two|three|four|five|six|seven|eight|nine|ten)\b")


def user_text(question: Question) -> str:
    """What the user says: the question, then one line ``A. text`` for each option."""
    lines = [f"{ascii_uppercase[i]}. {option}" for i, option in enumerate(question.options)]
    return "\n".join([question.text, *lines])


def read_question(fields: Fields, row: dict[str, Any], *, answer: str = "answer") -> Question:
    """The question of a record.

    The kind is that of ``kind`` or ``problem_type``; without one it is ``multiple_choice`` if there
    are options, ``numeric`` if the answer is a number, else ``exact``.

    Args:
      answer: name of the field that holds the truth.

    Raises:
      InputError: names file, record and field.
    """
    text = fields.text(row.get("question"), "question").strip()
    if not text:
        fields.fail("question", "is empty")
    options = read_options(fields, row.get("options"), "options")
    truth = _answer_text(fields, row.get(answer), answer)
    kind = read_kind(fields, row) or _usual_kind(truth, options)
    return Question(
        text,
        checked_answer(fields, truth, answer, kind, options),
        kind,
        options,
        fields.text(row.get("category") or "", "category"),
        joined_text(fields, row.get("audio_cues"), "audio_cues"),
        joined_text(fields, row.get("hint"), "hint"),
    )


def read_kind(fields: Fields, row: dict[str, Any]) -> str | None:
    """One of ``QUESTION_KINDS`` from ``kind``, else from ``problem_type``; None without both."""
    for field in ("kind", "problem_type"):
        value = row.get(field)
        if value is None or value == "":
            continue
        plain = re.sub(r"[\s_-]+", " ", fields.text(value, field)).strip().casefold()
        if plain not in _ALIASES:
            fields.fail(field, f"must be one of {', '.join(QUESTION_KINDS)}, got {value!r}")
        return _ALIASES[plain]
    return None


def read_options(fields: Fields, value: Any, field: str) -> tuple[str, ...]:
    """The options' texts in the order of their letters, which are taken off; () for none.

    A list has letters if every entry has one and together they are A, B, C...; otherwise what looks
    like a letter is part of the text.
    """
    if value is None or value == [] or value == {}:
        return ()
    if not isinstance(value, dict):
        entries = enumerate(fields.sequence(value, field))
        texts = [_filled(fields, entry, f"{field}[{index}]") for index, entry in entries]
        return without_letters(_enough(fields, field, texts))
    letters = [key.strip().strip("().:").upper() for key in value]
    texts = [_filled(fields, text, f"{field}.{key}") for key, text in value.items()]
    if sorted(letters) != list(ascii_uppercase[: len(letters)]):
        fields.fail(field, f"must have the letters A, B, C..., got {', '.join(value)}")
    return _in_order(letters, _enough(fields, field, texts))


def _enough(fields: Fields, field: str, texts: list[str]) -> list[str]:
    if not 2 <= len(texts) <= len(ascii_uppercase):
        fields.fail(field, f"must hold 2 to {len(ascii_uppercase)} options, got {len(texts)}")
    return texts


def without_letters(given: Sequence[str]) -> tuple[str, ...]:
    """Options in the order of their letters without them, or as given where they have none."""
    matches = [_LABELLED.fullmatch(text) for text in given]
    letters = [match[1].upper() for match in matches if match and match[2]]
    if sorted(letters) != list(ascii_uppercase[: len(given)]):
        return tuple(given)
    return _in_order(letters, [match[2] for match in matches if match])


def options_in(text: str) -> tuple[str, tuple[str, ...]]:
    """(text before the options, the options) of a text that lists them; (text, ()) if none does.

    They may stand one a line or one after the other, as ``A. x``, ``A) x``, ``(A) x`` or ``A: x``.
    """
    for place in (r"^[ \t]*", r"(?<!\S)"):
        for before, after in _LISTED:
            marks = _marks(text, [rf"{place}{before}{x}{after}\s*" for x in ascii_uppercase])
            if len(marks) >= 2:
                ends = [*(mark.start() for mark in marks[1:]), len(text)]
                options = [
                    text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)
                ]
                if not any("\n" in option for option in options[:-1]):
                    options[-1] = options[-1].split("\n")[0].strip()
                if all(options):
                    return _HEADING.sub("", text[: marks[0].start()]).strip(), tuple(options)
    return text, ()


def _marks(text: str, patterns: Sequence[str]) -> list[re.Match[str]]:
    """Where the patterns follow each other in a text, up to the first that does not."""
    marks: list[re.Match[str]] = []
    for pattern in patterns:
        found = re.compile(pattern, re.MULTILINE).search(text, marks[-1].end() if marks else 0)
        if not found:
            break
        marks.append(found)
    return marks


def bare_letter(text: Any) -> str | None:
    """The letter of an answer such as "b" or "(B)." that is nothing else."""
    match = _LETTER.fullmatch(text) if isinstance(text, str) else None
    return match[1].upper() if match else None


def meant(answer: str, options: Sequence[str]) -> set[str]:
    """The letters of all options that an answer may mean."""
    plain = _plain(answer)
    letters = {ascii_uppercase[i] for i, option in enumerate(options) if _plain(option) == plain}
    known = ascii_uppercase[: len(options)]
    letters |= {bare_letter(answer)} & set(known)
    if match := _LABELLED.fullmatch(answer):
        index = known.find(match[1].upper())
        if index >= 0 and _plain(options[index]) == _plain(match[2]):
            letters.add(known[index])
    return letters


def checked_answer(
    fields: Fields, truth: str, field: str, kind: str, options: Sequence[str]
) -> str:
    """The truth as ``Question.answer`` holds it, or a complaint that it does not fit the kind."""
    if kind != "multiple_choice":
        if options:
            fields.fail("options", f"only multiple_choice has options, this question is {kind}")
        if kind == "numeric" and not _has_number(truth):
            fields.fail(field, f"must be a number, got {truth!r}")
        return truth
    if not options:
        fields.fail("options", "multiple_choice needs options")
    letters = sorted(meant(truth, options))
    if len(letters) > 1:
        fields.fail(field, f"{truth!r} may mean any of {', '.join(letters)}; give 'letter. text'")
    if not letters:
        fields.fail(field, f"{truth!r} is none of the {len(options)} options")
    return letters[0]


def joined_text(fields: Fields, value: Any, field: str) -> str:
    """Text, or a list of texts joined by newlines; "" for nothing."""
    if isinstance(value, list):
        return "\n".join(fields.texts(value, field))
    return "" if value is None else fields.text(value, field)


def is_number(text: str) -> bool:
    """Whether a text is a number and nothing else; commas may part thousands."""
    return _NUMBER.fullmatch(text.strip()) is not None


def _has_number(text: str) -> bool:
    return re.search(r"\d", text) is not None or bool(_NUMBER_WORDS.search(text.casefold()))


def _usual_kind(truth: str, options: Sequence[str]) -> str:
    if options:
        return "multiple_choice"
    return "numeric" if is_number(truth) else "exact"


def _answer_text(fields: Fields, value: Any, field: str) -> str:
    """Text or a number as text; of a list of accepted ones the first."""
    if isinstance(value, list):
        if not value:
            fields.fail(field, "holds no accepted answer")
        value, field = value[0], f"{field}[0]"
    return _filled(fields, value, field)


def _filled(fields: Fields, value: Any, field: str) -> str:
    """Text or a number as text, without blanks around it, not empty."""
    text = _text_or_number(fields, value, field).strip()
    if not text:
        fields.fail(field, "is empty")
    return text


def _text_or_number(fields: Fields, value: Any, field: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float):
        return fields.text(value, field)
    number = fields.number(value, field)
    return str(int(number)) if number.is_integer() else repr(number)


def _in_order(letters: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for _, text in sorted(zip(letters, texts, strict=True)))


def _plain(text: str) -> str:
    """Without case, a final stop and differences in blanks."""
    return " ".join(text.split()).casefold().rstrip(".").rstrip()
