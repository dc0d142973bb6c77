"""The number in an answer: every form that the module names, and none that it does not."""

from __future__ import annotations

import math
import random
import time

import pytest

from turnwise_jax.rewards.numbers import comparable, parse_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        (" 5. ", 5),
        ("3.5", 3.5),
        (".5", 0.5),
        ("007", 7),
        ("The answer is 12 beeps, not 13.", 12),
        ("(5)", 5),
        ("**5**", 5),
        (r"\boxed{7}", 7),
        ("１２", 12),
        ("1.2.3", 1.2),
        # signs
        ("-5", -5),
        ("+5", 5),
        ("−5", -5),
        ("–5", -5),
        ("- 5", 5),
        ("-.5", -0.5),
        ("x = -2", -2),
        ("f(-2)", -2),
        ("3-5", 3),
        ("(3)-2", 3),
        ("pages 3–5", 3),
        ("option-2", 2),
        ("minus 5", -5),
        ("minus five", -5),
        ("negative 3.5 degrees", -3.5),
        ("-0", 0),
        # thousands
        ("1,234", 1234),
        ("1,234.5", 1234.5),
        ("1,234,567", 1234567),
        ("1 234", 1234),
        ("1\u00a0234\u202f5", 1234),
        ("12 345 678.25 m", 12345678.25),
        ("1,2345", 1),
        ("12,34", 12),
        ("3,5", 3),
        ("0,500", 0),
        ("1234 567", 1234),
        # exponents and scales
        ("2e-3", 0.002),
        ("1.5E4 Hz", 15000),
        ("3 x 10^4", 30000),
        ("3×10⁻²", 0.03),
        (r"3 \times 10^{4}", 30000),
        ("3 million", 3e6),
        ("2e5x", 2),
        ("5 e3", 5),
        # fractions
        ("3/4", 0.75),
        ("3 / 4 of it", 0.75),
        ("-3/4", -0.75),
        ("1 1/2", 1.5),
        ("½", 0.5),
        ("2½ times", 2.5),
        ("2 ½", 2.5),
        (r"\frac{3}{4}", 0.75),
        ("3/0", 3),
        ("3/4/2024", 3),
        ("24 km/h", 24),
        # dates and clocks
        ("2024-05-01", 2024),
        ("12:30", 12),
        # units, money, words around
        ("3kg", 3),
        ("5 s", 5),
        ("3rd", 3),
        ("about 5", 5),
        ("approximately 5", 5),
        ("~5", 5),
        ("≈ 5", 5),
        ("$3", 3),
        ("-$3", -3),
        ("$-3", -3),
        ("€ 3.50", 3.5),
        ("option 2", 2),
        # percent
        ("12 %", 12),
        ("12%", 12),
        ("0.5 percent", 0.5),
        ("seventy-five percent", 75),
        # words
        ("zero", 0),
        ("Three.", 3),
        ("ten", 10),
        ("It beeps four times", 4),
        ("eleven", 11),
        ("nineteen", 19),
        ("sixteen", 16),
        ("twenty-one", 21),
        ("ninety nine", 99),
        ("a hundred", 100),
        ("two hundred and five", 205),
        ("three thousand two hundred", 3200),
        ("two million", 2e6),
        ("one of the two", 1),
        ("five-pointed", 5),
        ("two shapes, 3 beeps", 2),
        ("2 shapes, three beeps", 2),
        ("no one but two", 2),
        ("no", 0),
        ("None.", 0),
        # letters before digits
        ("H264 at 30 fps", 30),
        ("B2.5 is 4", 4),
    ],
)
def test_the_first_number_is_read(text, number):
    assert parse_number(text) == pytest.approx(number, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "beeps",
        "no beeps",
        "none of them",
        "nothing",
        "no one",
        "the one on the left",
        "which one?",
        "someone",
        "often, attention, weight, stone",
        "H264",
        "B2.5",
        "mp3_4",
        "nan",
        "inf",
        "²",
        "1e999",
        "9" * 400,
        "first",
        "-",
        "%",
    ],
)
def test_what_states_no_number_is_none(text):
    assert parse_number(text) is None


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.mark.parametrize("name", WORDS)
def test_words_to_ten_alone_and_in_a_sentence(name):
    value = WORDS.index(name)
    for text in (name, name.upper(), f"I count {name} of them", f"({name})", f"minus {name}"):
        sign = -1 if text.startswith("minus") else 1
        assert parse_number(text) == sign * value


WRITTEN = {
    "plain": lambda x: f"{x!r}",
    "commas": lambda x: f"{x:,.3f}",
    "blanks": lambda x: f"{x:,.3f}".replace(",", " "),
    "exponent": lambda x: f"{x:.9e}",
    "times": lambda x: "{}x10^{}".format(*f"{x:.9e}".split("e")),
    "true minus": lambda x: f"{x!r}".replace("-", "−"),
    "unit": lambda x: f"it is {x!r} metres",
    "money": lambda x: f"{'-' if x < 0 else ''}${abs(x)!r}",
    "said": lambda x: f"{'minus ' if x < 0 else ''}{abs(x)!r}",
}


@pytest.mark.parametrize("form", WRITTEN)
def test_numbers_that_are_written_are_read_again(form):
    draw = random.Random(0)
    for _ in range(300):
        value = round(draw.uniform(-1, 1) * 10 ** draw.randint(0, 8), 3)
        text = WRITTEN[form](value)
        assert parse_number(text) == pytest.approx(value, rel=1e-9, abs=1e-9), text


def test_fractions_that_are_written_are_read_again():
    draw = random.Random(1)
    for _ in range(300):
        above, below = draw.randint(0, 500), draw.randint(1, 500)
        sign = draw.choice(["", "-"])
        value = (-1 if sign else 1) * above / below
        assert parse_number(f"{sign}{above}/{below}") == pytest.approx(value, rel=1e-12)


def test_any_text_gives_a_finite_number_or_none():
    draw = random.Random(2)
    parts = [
        *"0123456789.,-/ e%$−½x^ \n(",
        "10^",
        "one",
        "hundred",
        "million",
        "no",
        "\\frac{1}{0}",
    ]
    for _ in range(5000):
        number = parse_number("".join(draw.choices(parts, k=draw.randint(0, 12))))
        assert number is None or math.isfinite(number)


@pytest.mark.parametrize(
    "part", ["1 ", "1", "1,111", "one ", "one hundred ", "-", "a1", "$ ", "1/"]
)
def test_a_long_degenerate_answer_is_read_in_no_time(part):
    started = time.monotonic()
    parse_number(part * 10_000)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    ("answer", "truth", "numbers"),
    [
        ("12 %", "0.12", (0.12, 0.12)),
        ("0.12", "12%", (0.12, 0.12)),
        ("150 percent", "1/2", (1.5, 0.5)),
        ("12%", "12", (12, 12)),
        ("12%", "12 %", (12, 12)),
        ("0.5%", "0.5", (0.5, 0.5)),
        ("12", "15 %", (12, 15)),
        ("-12%", "-0.12", (-0.12, -0.12)),
        ("many", "3", (None, 3)),
        ("3", "many", (3, None)),
    ],
)
def test_a_percentage_is_hundredths_only_beside_a_share(answer, truth, numbers):
    assert comparable(answer, truth) == pytest.approx(numbers)
