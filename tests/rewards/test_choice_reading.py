"""Which option an answer names, however it is put, and when it names none."""

from __future__ import annotations

import random

import pytest

from turnwise_jax.rewards.choices import normalised, read_choice

OPTIONS = ("red circle", "blue circle", "A square", "none of the above")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        # the letter
        ("B", "B"),
        ("b", "B"),
        (" B.\n", "B"),
        ("(B)", "B"),
        ("(b)", "B"),
        ("[B]", "B"),
        ("B)", "B"),
        ("B:", "B"),
        ("**B**", "B"),
        (r"\boxed{B}", "B"),
        ("$B$", "B"),
        ("Option B", "B"),
        ("option (b).", "B"),
        ("The answer is B.", "B"),
        ("Answer: B", "B"),
        ("the correct answer is option b", "B"),
        ("B because it beeps", "B"),
        ("I think B", "B"),
        ("I think it is (c).", "C"),
        ("A because it beeps", "A"),
        ("It is A", "A"),
        # the letter with the text
        ("B. blue circle", "B"),
        ("b) Blue Circle.", "B"),
        ("B: the blue circle", "B"),
        ("B - blue circle", "B"),
        ("B blue circle", "B"),
        ("B\nblue circle", "B"),
        ("(B) something blue", "B"),
        ("C. A square", "C"),
        ("C. a square", "C"),
        ("C. A big square", "C"),
        # the text
        ("blue circle", "B"),
        ("BLUE  Circle!", "B"),
        ('"the blue circle"', "B"),
        ("A blue circle", "B"),
        ("a square", "C"),
        ("square", "C"),
        ("None of the above.", "D"),
        # nothing
        ("", None),
        ("   ", None),
        ("E", None),
        ("(E)", None),
        ("It is the blue one", None),
        ("circle", None),
        ("A circle that beeps", None),
        ("I hear it", None),
        ("B-side", None),
        ("D'accord", None),
        ("circle(s)", None),
        ("a.b.c", None),
        # several
        ("A or B", None),
        ("A, B", None),
        ("A/B", None),
        ("AB", None),
        ("a, b", None),
        ("A B C D", None),
        ("(a) or (b)", None),
        ("B. or C.", None),
        ("Not A. B", None),
        ("B. red circle", None),
        ("B red circle", None),
        ("A: red circle or B: blue circle", None),
        # one, said twice
        ("B, that is (B)", "B"),
    ],
)
def test_what_an_answer_names(answer, letter):
    assert read_choice(answer, OPTIONS) == letter


def test_letters_go_as_far_as_the_options():
    assert read_choice("D", OPTIONS[:3]) is None
    assert read_choice("The answer is D", OPTIONS[:3]) is None
    assert read_choice("J", [str(n) for n in range(10)]) == "J"


def test_without_options_any_letter_is_one():
    assert read_choice("D") == "D"
    assert read_choice("(z) something") == "Z"
    assert read_choice("blue") is None


def test_a_letter_goes_before_a_text_that_looks_like_one():
    assert read_choice("B", ("B", "A")) == "B"
    assert read_choice("A", ("B", "A")) == "A"


def test_numbers_as_options():
    options = ("3", "-3", "10:30", "3.5")
    assert [read_choice(text, options) for text in ("3.", "-3", "10:30", "3.5")] == [*"ABCD"]
    assert read_choice("4", options) is None


def test_a_text_that_two_options_have_names_neither():
    assert read_choice("blue", ("blue", "red", "Blue.")) is None
    assert read_choice("C", ("blue", "red", "Blue.")) == "C"


def test_every_way_of_putting_it_agrees_whatever_the_order_of_the_options():
    draw = random.Random(3)
    for _ in range(100):
        options = draw.sample(["left", "right", "top", "bottom", "in the middle", "A corner"], 4)
        place = draw.randrange(4)
        letter, text = "ABCD"[place], options[place]
        forms = (letter, letter.lower(), f"({letter})", f"{letter}. {text}", text, text.upper())
        assert {read_choice(form, options) for form in forms} == {letter}
        other = options[(place + 1) % 4]
        assert read_choice(f"{letter}. {other}", options) is None
        assert read_choice(f"{letter} and {'ABCD'[(place + 1) % 4]}", options) is None


def test_normalised_text():
    assert normalised("  The  Blue\n Circle. ") == "blue circle"
    assert normalised("ﬁve") == "five"
    assert normalised("-3") != normalised("3")
    assert normalised("A") == "a"
    assert normalised("...") == ""
