"""What gives an answer away, and what does not."""

from __future__ import annotations

import random
from string import ascii_uppercase

import pytest

from turnwise_jax.rewards.hint_leaks import leak

SHAPES = ("the red square", "the blue disc", "the green star")
COUNTS = ("2 beeps", "3 beeps", "4 beeps")
NINE = tuple(
    f"melody {ending}" for ending in ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo")
)
FILLER = "listen closely watch where it moves before you decide upon"
NUMBERS = "zero one two three four five six seven eight nine ten"

LEAKS = [
    ("Look at the blue disc.", "Which shape sounds?", "B", SHAPES),
    ("Look at the Blue, disc!", "Which shape sounds?", "B", SHAPES),
    ("Look at a blue disc.", "Which shape sounds?", "B", SHAPES),
    ("Of all discs the blue one matters.", "Which shape sounds?", "B", SHAPES),
    ("The disc's colour is blue.", "Which shape sounds?", "B", SHAPES),
    ("What matters is blue.", "Which disc sounds?", "B", SHAPES),  # "disc" is in the question
    ("It is B.", "Which shape sounds?", "B", SHAPES),
    ("The letter is (b).", "Which shape sounds?", "B", SHAPES),
    ("It is b, of course.", "Which shape sounds?", "B", SHAPES),
    ("Look at b)", "Which shape sounds?", "B", SHAPES),
    ("Pick option b", "Which shape sounds?", "B", SHAPES),
    ("Choose A", "Which shape sounds?", "A", SHAPES),
    ("The answer is A because it moves.", "Which shape sounds?", "A", SHAPES),
    ("The answer: A", "Which shape sounds?", "A", SHAPES),
    ("A. moves first", "Which shape sounds?", "A", SHAPES),
    ("Option C is wrong.", "Which shape sounds?", "B", SHAPES),
    ("Neither the red square nor the green star sounds.", "Which shape sounds?", "B", SHAPES),
    ("Pick (I), the last.", "Which tune?", "I", NINE),
    ("You hear three short tones.", "How many?", "B", COUNTS),
    ("There are 3 of them.", "How many?", "B", COUNTS),
    ("Count: it is 3.0 in all.", "How many?", "3", ()),
    ("It sounds twice.", "How often?", "2", ()),
    ("A pair of tones.", "How many?", "2", ()),
    ("Twenty-one birds.", "How many?", "21", ()),
    ("twenty one birds", "How many?", "21", ()),
    ("It is 1,234 metres.", "How far?", "1234", ()),
    ("It falls by 3 degrees.", "What is the change?", "-3", ()),
    ("Say yes.", "Did it sound?", "yes", ()),
    ("The sign reads stop.", "What is written?", "STOP", ()),
    ("Look for 红色 things.", "什么颜色?", "红色", ()),
    ("寻找红色的物体", "什么颜色?", "红色", ()),
    (
        "Someone opens a door, then waves, and a dog begins to bark outside.",
        "What happens?",
        "A man opens the door and waves while the dog barks outside",
        (),
    ),
]
FAIR = [
    ("Listen for the pitch, then find the shape with it.", "Which shape sounds?", "B", SHAPES),
    ("A careful look helps. Choose a shape and follow it.", "Which shape sounds?", "A", SHAPES),
    ("The answer is a shape that moves.", "Which shape sounds?", "A", SHAPES),
    ("Watch discs and squares.", "Which shape sounds?", "B", SHAPES),
    ("The red square is silent.", "Which shape sounds?", "B", SHAPES),
    ("What matters is a sound (a short one).", "Which shape sounds?", "A", SHAPES),
    ("I would listen first.", "Which tune?", "I", NINE),
    ("Count each short tone on its own.", "How many?", "B", COUNTS),
    ("First listen, second look.", "How many?", "2", ()),
    ("Count to 23 seconds.", "How many?", "3", ()),
    ("Does the sound come earlier?", "Did it sound?", "yes", ()),
    ("Notice where it stands now.", "Is it there?", "no", ()),  # "no" inside other words
    ("Stopping places matter.", "What is written?", "STOP", ()),
    ("看物体", "什么颜色?", "红色", ()),
    (
        "Watch the man, then listen to what comes from outside.",
        "What happens?",
        "A man opens the door and waves while the dog barks outside",
        (),
    ),
]


@pytest.mark.parametrize(("hint", "question", "answer", "options"), LEAKS)
def test_a_leak_is_found(hint, question, answer, options):
    assert leak(hint, question, answer, options)


@pytest.mark.parametrize(("hint", "question", "answer", "options"), FAIR)
def test_a_fair_hint_passes(hint, question, answer, options):
    assert leak(hint, question, answer, options) == ""


def test_the_reason_names_what_is_wrong():
    assert leak("Pick (b)", "Which?", "B", ("x1", "y1")) == "it names option B"
    assert leak("The blue disc.", "Which?", "B", SHAPES) == 'it contains "the blue disc"'
    assert (
        leak("A disc, in blue.", "Which?", "B", SHAPES) == "its words tell the answer: blue, disc"
    )
    assert leak("It is three.", "How many?", "3", ()) == "it states the number 3"


def test_an_answer_anywhere_in_any_case_is_found():
    rng = random.Random(7)
    for _ in range(300):
        words = [rng.choice(("crimson", "azure", "olive", "tall", "narrow")) for _ in range(2)]
        options = tuple(sorted({" ".join(words), "plain box", "round lid"}))
        answer = ascii_uppercase[options.index(" ".join(words))]
        hint = [rng.choice(FILLER.split()) for _ in range(8)]
        assert leak(" ".join(hint), "Which thing?", answer, options) == ""
        at = rng.randrange(len(hint) + 1)
        hint[at:at] = [rng.choice((str.upper, str.title, str.lower))(word) for word in words]
        assert leak(" ".join(hint), "Which thing?", answer, options)


def test_every_small_number_is_found_in_digits_and_words():
    for value, word in enumerate(NUMBERS.split()):
        for said in (str(value), word, word.upper(), f"{value}."):
            assert leak(f"You will count {said} tones", "How many?", str(value))
        for other in (value + 1, value + 13):
            assert leak(f"Wait {other} seconds", "How many?", str(value)) == ""
