"""What an answer is worth, kind by kind: the paper's rule, its edges, texts as policies write."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from turnwise_jax.data.records import QUESTION_KINDS, Question
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.accuracy import accuracy, answer_key

CHOICE = Question("Which one beeps?", "B", "multiple_choice", ("red circle", "blue circle"))
SIGN = Question("What does the sign say?", "No entry", "ocr")
SCENE = Question("What happens?", "the red circle beeps on the left", "free_form")
YES = Question("Does it turn?", "yes", "exact")


def numeric(truth: str) -> Question:
    return Question("How many?", truth, "numeric")


@pytest.mark.parametrize(
    ("answer", "worth"),
    [("B", 1), ("(b)", 1), ("B. blue circle", 1), ("Blue circle.", 1), ("A", 0), ("A or B", 0),
     ("red circle", 0), ("B. red circle", 0), ("", 0), ("both", 0)],
)  # fmt: skip
def test_multiple_choice(answer, worth):
    assert accuracy(answer, CHOICE) == worth
    for truth in ("b", "(B)", "blue circle", "B. blue circle"):
        assert accuracy(answer, replace(CHOICE, answer=truth)) == worth


@pytest.mark.parametrize(
    ("answer", "truth", "worth", "strict"),
    [
        ("4", "4", 1.0, 1.0),
        ("four beeps", "4", 1.0, 1.0),
        ("4.0", "four", 1.0, 1.0),
        ("3", "4", 0.75, 0.0),
        ("5", "4", 0.75, 0.0),
        ("8", "4", 0.0, 0.0),
        ("9", "4", 0.0, 0.0),
        ("0", "4", 0.0, 0.0),
        ("-4", "4", 0.0, 0.0),
        ("-3", "-4", 0.75, 0.0),
        ("-4", "-4", 1.0, 1.0),
        ("4", "-4", 0.0, 0.0),
        ("0", "0", 1.0, 1.0),
        ("none", "0", 1.0, 1.0),
        ("no", "zero", 1.0, 1.0),
        ("0.1", "0", 0.0, 0.0),
        ("0.000001", "0", 0.0, 1.0),
        ("-0", "0", 1.0, 1.0),
        ("1,000", "1000", 1.0, 1.0),
        ("999.5", "1000", 0.9995, 1.0),
        ("998", "1000", 0.998, 0.0),
        ("12 %", "0.12", 1.0, 1.0),
        ("12 %", "12", 1.0, 1.0),
        ("3/4", "0.75", 1.0, 1.0),
        ("several", "4", 0.0, 0.0),
        ("", "4", 0.0, 0.0),
        ("1e300", "1e-300", 0.0, 0.0),
    ],
)
def test_numbers(answer, truth, worth, strict):
    assert accuracy(answer, numeric(truth)) == pytest.approx(worth, abs=1e-12)
    assert accuracy(answer, numeric(truth), strict=True) == strict


def test_numbers_follow_equation_8():
    draw = random.Random(4)
    for _ in range(300):
        truth = draw.choice([-1, 1]) * draw.uniform(0.01, 100)
        given = truth * draw.uniform(-0.5, 2.5)
        expected = 1 - min(1, abs(given - truth) / abs(truth))
        assert accuracy(repr(given), numeric(repr(truth))) == pytest.approx(expected, abs=1e-9)


def test_read_text_loses_one_share_per_wrong_word():
    assert accuracy("no  ENTRY", SIGN) == 1.0
    assert accuracy("no exit", SIGN) == 0.5
    assert accuracy("entry", SIGN) == 0.5
    assert accuracy("", SIGN) == 0.0
    assert accuracy("no entry for any of you", SIGN) == 0.0


def test_free_form_is_the_mean_of_three_rouges():
    assert accuracy("The red circle beeps, on the left!", SCENE) == 1.0
    assert accuracy("", SCENE) == accuracy("blue squares", SCENE) == 0.0
    # "red circle left": 3 of 7 words, 1 of 6 pairs, in order
    one, two = 2 * 3 / (7 + 3), 2 * 1 / (6 + 2)
    assert accuracy("red circle left", SCENE) == pytest.approx((one + two + one) / 3)
    assert accuracy("left circle red", SCENE) < accuracy("red circle left", SCENE)


def test_a_reference_of_one_word_can_be_met():
    dog = Question("What is it?", "Dog", "free_form")
    assert accuracy("a dog", dog) == pytest.approx(2 / 3)
    assert accuracy("dog", dog) == 1.0
    assert accuracy("cat", dog) == 0.0


def test_exact_disregards_case_blanks_and_punctuation_at_the_ends():
    assert [accuracy(text, YES) for text in ("yes", " Yes. ", "YES!", "**yes**")] == [1.0] * 4
    assert [accuracy(text, YES) for text in ("no", "yes it does", "y", "")] == [0.0] * 4


@pytest.mark.parametrize(
    ("question", "field", "message"),
    [
        (replace(YES, kind="essay"), "question.kind", "one of multiple_choice, numeric, ocr"),
        (replace(CHOICE, answer="C"), "question.answer", "one of its 2 options, got 'C'"),
        (replace(CHOICE, answer="green"), "question.answer", "got 'green'"),
        (replace(YES, kind="numeric"), "question.answer", "must be a number, got 'yes'"),
    ],
)
def test_a_question_that_cannot_be_marked_is_refused(question, field, message):
    with pytest.raises(InputError, match=message) as caught:
        accuracy("B", question)
    assert caught.value.field == field


def test_every_kind_has_its_rule():
    truths = {
        "multiple_choice": "B",
        "numeric": "3",
        "ocr": "a b",
        "free_form": "a b",
        "exact": "b",
    }
    assert set(truths) == set(QUESTION_KINDS)
    for kind, truth in truths.items():
        question = Question("?", truth, kind, CHOICE.options if kind == "multiple_choice" else ())
        assert accuracy(truth, question) == 1.0
        assert accuracy("something else 77", question) == 0.0


@pytest.mark.parametrize(
    ("question", "same", "other", "none"),
    [
        (CHOICE, ["B", "(b)", "blue circle"], "A", ["", "A or B", "both"]),
        (numeric("4"), ["3", "three", "3.0 beeps"], "4", ["", "several"]),
        (YES, ["No", "no.", " NO "], "yes", ["", "..."]),
        (SIGN, ["Stop!", "stop"], "no entry", [""]),
        (SCENE, ["A circle beeps", "circle  beeps."], "a circle", ["  "]),
    ],
)
def test_equal_answers_have_one_key(question, same, other, none):
    keys = {answer_key(answer, question) for answer in same}
    assert len(keys) == 1
    assert answer_key(other, question) not in keys | {None}
    assert {answer_key(answer, question) for answer in none} == {None}
