"""Reply styles: what a sampled text shows, and dialogues put into a style."""

from __future__ import annotations

import re

import numpy as np
import pytest

from turnwise_jax.data.records import SILENCE, Dialogue, Turn
from turnwise_jax.data.reply_styles import STYLES, normalised, restyled, style_of
from turnwise_jax.errors import InputError


@pytest.mark.parametrize(
    ("style", "text", "visible", "well_formed"),
    [
        ("plain", " NO REPLY ", None, True),
        ("plain", "NO REPLY.", "NO REPLY.", True),
        ("plain", " A ring. ", "A ring.", True),
        ("plain", " ", "", False),
        ("thinkstream", "<think>nothing yet</think><silent>", None, True),
        (
            "thinkstream",
            " <think></think><response>A ring.\nIt turns. ",
            "A ring.\nIt turns.",
            True,
        ),
        ("thinkstream", "<think>a</think><response>", "", True),
        ("thinkstream", "<think>a</think> <silent>", None, False),
        ("thinkstream", "<think>a</think><silent>.", None, False),
        ("thinkstream", "<think>a", None, False),
        ("thinkstream", "<think>a<response>b", "b", False),
        ("thinkstream", "<response>B", "B", False),
        ("thinkstream", "A ring.", None, False),
        ("thinkstream", "NO REPLY", None, False),
        ("thinkstream", "<think>say <response>no</think><silent>", None, True),
        ("thinkstream", "<think>a</think><response>b<response>c", "b<response>c", True),
        ("thinkstream", "<think>a</think>b</think><silent>", None, True),  # as the public pattern
        ("streampro", "</Silence>", None, True),
        ("streampro", "</Response> A ring. ", "A ring.", True),
        ("streampro", "</Response> ", "", False),
        ("streampro", "</Silence></Response>A ring.", "A ring.", False),
        ("streampro", "</Silence> well", None, False),
        ("streampro", "A ring.", None, False),
        ("streampro", "", None, False),
    ],
)
def test_what_a_text_shows(style, text, visible, well_formed):
    read = STYLES[style].read(text)
    assert (read.visible, read.well_formed) == (visible, well_formed)
    if style != "plain":
        assert normalised(text, style) == (SILENCE if visible is None else visible)


def test_plain_texts_stay_as_they_are():
    assert normalised("  A ring. ", "plain") == "  A ring. "


def test_the_thought_keeps_its_tags():
    read = STYLES["thinkstream"].read("<think>a ring?</think><silent>")
    assert read.thought == "<think>a ring?</think>"
    assert STYLES["thinkstream"].read("<silent>").thought is None


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("reply", [SILENCE, "A ring appears.", "B"])
def test_what_is_written_is_read_again(style, reply):
    read = STYLES[style].read(STYLES[style].write(reply))
    assert read.well_formed
    assert read.visible == (None if reply == SILENCE else reply)


def test_random_texts_against_the_public_patterns():
    """The format pattern and the response pattern of ThinkStream's trainer, read off its text."""
    rng = np.random.default_rng(0)
    parts = ["<think>", "</think>", "<response>", "<silent>", "a", " ", "\n"]
    shape = re.compile(r"^<think>.*?</think>(?:<response>.*|<silent>)<END>$", re.DOTALL)
    seen = set()
    for _ in range(3000):
        text = "".join(rng.choice(parts, rng.integers(0, 6)))
        read = STYLES["thinkstream"].read(text)
        assert read.well_formed == bool(shape.match(text.strip() + "<END>"))
        if "<think>" not in text:
            found = re.search(r"<response>(.*?)$", text, re.DOTALL)
            whole = text.partition("<response>")[2]
            assert read.visible == (whole.strip() if found or "<response>" in text else None)
        seen.add((read.well_formed, read.visible is None))
    assert len(seen) == 4


def dialogue(**changes) -> Dialogue:
    turns = (Turn((), "What?", 2.0, SILENCE), Turn((), "", 4.0, "A ring."), Turn((), "", 6.0))
    return Dialogue("d", turns, system="Say NO REPLY.", history=("A ring.",), **changes)


def test_a_dialogue_is_put_into_the_style_of_its_policy():
    told = restyled(dialogue(), "thinkstream")
    given = [turn.reply for turn in told.turns]
    assert given == ["<think></think><silent>", "<think></think><response>A ring.", None]
    assert "<silent>" in told.system
    assert told.history == ("A ring.",)
    assert restyled(dialogue(), "plain") is not None
    assert restyled(dialogue(), "plain") == dialogue()
    assert restyled(told, "thinkstream") == told  # nothing is written twice


def test_what_is_in_the_style_stays_and_its_history_becomes_plain():
    turns = (
        Turn((), "What?", 2.0, "<think>no</think><silent>"),
        Turn((), "", 4.0, "<think>yes</think><response>A ring."),
        Turn((), "", 6.0),
    )
    history = tuple(turn.reply for turn in turns[:2])
    own = Dialogue("d", turns, system="Write <silent> or speak.", history=history)
    told = restyled(own, "thinkstream")
    assert (told.turns, told.system, told.history) == (turns, own.system, ("A ring.",))


def test_an_unknown_style_is_refused():
    with pytest.raises(InputError, match="allowed: plain, thinkstream, streampro") as error:
        style_of("morse")
    assert error.value.field == "policy.replies"
