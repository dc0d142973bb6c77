"""Questions of records: every spelling of options, answers and kinds, and what is refused."""

from __future__ import annotations

import pytest

from turnwise_jax.data.records import Question
from turnwise_jax.data.sources import qa
from turnwise_jax.errors import InputError

ASK = {"question": "What is red?"}


def parsed(row):
    return qa.parse("r7", row, file="d.jsonl", root="/r")


def asked(**row) -> Question:
    question = parsed({**ASK, **row}).question
    assert question is not None
    return question


# options and answers

COLOURS = ("red", "dark blue", "green")


@pytest.mark.parametrize(
    "options",
    [
        ["red", "dark blue", "green"],
        ["A. red", "B. dark blue", "C. green"],
        ["(A) red", "(B) dark blue", "(C) green"],
        ["A) red", "B) dark blue", "C) green"],
        ["a: red", "b: dark blue", "c: green"],
        ["B. dark blue", "A. red", "C. green"],
        [" A.red", "B.dark blue ", "C.  green"],
        {"A": "red", "B": "dark blue", "C": "green"},
        {"(B)": "dark blue", "(A)": "red", "(C)": "green"},
        {"a": "red", "b": "dark blue", "c": "green"},
    ],
)
def test_options_lose_their_letters(options):
    dialogue = parsed({**ASK, "options": options, "answer": "B"})
    assert dialogue.question == Question("What is red?", "B", "multiple_choice", COLOURS)
    assert dialogue.turns[0].text == "What is red?\nA. red\nB. dark blue\nC. green"


@pytest.mark.parametrize(
    "options",
    [
        ["A. Lincoln", "J. Kennedy"],
        ["A. Lincoln", "Kennedy"],
        ["A. one", "A. two"],
        ["A.", "B."],
        ["A", "B"],
        ["1. one", "2. two"],
    ],
)
def test_what_only_looks_like_letters_stays(options):
    assert asked(options=options, answer="B").options == tuple(options)


@pytest.mark.parametrize(
    "answer",
    [
        *("B", "b", " B ", "(B)", "(b)", "B.", "B)", "B:", "dark blue", "Dark  Blue."),
        *("B. dark blue", "(B) dark blue", "b) Dark blue", "B: dark blue."),
        *(["B", "C"], ["dark blue"]),
    ],
)
def test_an_answer_becomes_its_letter(answer):
    assert asked(options=list(COLOURS), answer=answer).answer == "B"


def test_numbers_are_options_and_answers():
    question = asked(options=[2, 3.0, 4.5], answer=3)
    assert (question.options, question.answer) == (("2", "3", "4.5"), "B")
    assert asked(options=["2", "3"], answer="3.").answer == "B"
    assert asked(answer=10**400).answer == "1" + "0" * 400


@pytest.mark.parametrize(
    ("options", "answer", "reason"),
    [
        (["red", "blue"], "C", "'C' is none of the 2 options"),
        (["red", "blue"], "B. red", "'B. red' is none of the 2 options"),
        (["red", "blue"], "green", "'green' is none"),
        (["red", "blue"], 1, "'1' is none"),
        (["red", "red", "blue"], "red", "'red' may mean any of A, B; give 'letter. text'"),
        (["B", "A"], "A", "'A' may mean any of A, B"),
        (["red", "blue"], None, "must be text, got nothing"),
        (["red", "blue"], "  ", "is empty"),
        (["red", "blue"], True, "must be text, got True"),
        (["red", "blue"], float("nan"), "must be finite"),
        (["red", "blue"], [], "holds no accepted answer"),
    ],
)
def test_an_answer_that_names_no_option_is_refused(options, answer, reason):
    with pytest.raises(InputError) as caught:
        asked(options=options, answer=answer)
    error = caught.value
    assert (error.file, error.record, error.field) == ("d.jsonl", "r7", "answer")
    assert error.message.startswith(reason)


def test_a_letter_with_its_text_tells_twisted_options_apart():
    assert asked(options=["B", "A"], answer="A. B").answer == "A"
    assert asked(options=["B", "A"], answer="B. A").answer == "B"
    assert asked(options=["red", "red"], answer="B. red").answer == "B"
    assert asked(options=["red", "red"], answer="A").answer == "A"


@pytest.mark.parametrize(
    ("options", "field", "reason"),
    [
        ("red, blue", "options", "must be a list, got 'red, blue'"),
        (["red"], "options", "must hold 2 to 26 options, got 1"),
        ([str(i) for i in range(27)], "options", "must hold 2 to 26 options, got 27"),
        ({"A": "red"}, "options", "must hold 2 to 26 options, got 1"),
        ({"A": "red", "C": "blue"}, "options", "must have the letters A, B, C..., got A, C"),
        ({"A": "red", "a": "blue"}, "options", "must have the letters"),
        ({"A": "red", "B": None}, "options.B", "must be text, got nothing"),
        (["red", ""], "options[1]", "is empty"),
        (["red", ["blue"]], "options[1]", "must be text, got ['blue']"),
    ],
)
def test_bad_options_are_named(options, field, reason):
    with pytest.raises(InputError) as caught:
        asked(options=options, answer="A")
    assert (caught.value.record, caught.value.field) == ("r7", field)
    assert caught.value.message.startswith(reason)


# kinds


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ("numeric", "numeric"),
        ("numerical", "numeric"),
        ("Regression", "numeric"),
        ("OCR", "ocr"),
        ("text_recognition", "ocr"),
        ("free-form", "free_form"),
        ("free_form", "free_form"),
        ("Open-Ended", "free_form"),
        ("descriptive", "free_form"),
        ("exact", "exact"),
    ],
)
@pytest.mark.parametrize("field", ["kind", "problem_type"])
def test_kinds_have_other_names(spelled, kind, field):
    assert asked(answer="2", **{field: spelled}).kind == kind


@pytest.mark.parametrize("spelled", ["multiple_choice", "multiple choice", "Multiple-Choice", "mc"])
def test_multiple_choice_has_other_names(spelled):
    assert asked(options=["x", "y"], answer="y", problem_type=spelled).kind == "multiple_choice"


def test_the_own_name_of_the_kind_comes_first():
    assert asked(answer="2", kind="ocr", problem_type="numerical").kind == "ocr"
    assert asked(answer="2", kind=None, problem_type="ocr").kind == "ocr"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (4, "numeric"),
        (4.25, "numeric"),
        ("4", "numeric"),
        ("-4.5", "numeric"),
        ("−4", "numeric"),
        ("1,234.5", "numeric"),
        (".5", "numeric"),
        ("3.", "numeric"),
        ("2e-3", "numeric"),
        (["4", "four"], "numeric"),
        ("four", "exact"),
        ("4 cats", "exact"),
        ("1,23", "exact"),
        (".", "exact"),
        ("-", "exact"),
        ("yes", "exact"),
    ],
)
def test_the_answer_tells_the_kind(answer, kind):
    assert asked(answer=answer).kind == kind
    assert asked(answer=answer, options=[]).kind == kind


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"answer": "x", "kind": "essay"}, "kind", "must be one of multiple_choice, numeric, ocr"),
        ({"answer": "x", "problem_type": 3}, "problem_type", "must be text, got 3"),
        ({"answer": "x", "kind": "mc"}, "options", "multiple_choice needs options"),
        ({"answer": "x", "kind": "numeric"}, "answer", "must be a number, got 'x'"),
        ({"answer": "someone", "kind": "numeric"}, "answer", "must be a number"),
        (
            {"answer": "x", "kind": "ocr", "options": ["x", "y"]},
            "options",
            "only multiple_choice has options, this question is ocr",
        ),
    ],
)
def test_a_kind_that_does_not_fit_is_refused(row, field, reason):
    with pytest.raises(InputError) as caught:
        asked(**row)
    assert caught.value.field == field
    assert caught.value.message.startswith(reason)


def test_a_numeric_answer_may_have_words_around_it():
    assert asked(answer="about 12 m", kind="numeric").answer == "about 12 m"
    assert asked(answer="Four", kind="numeric").answer == "Four"
