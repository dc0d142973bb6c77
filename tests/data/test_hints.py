"""Hints: shown in the system text, under an id of their own, and nowhere else."""

from __future__ import annotations

import pytest

from turnwise_jax.data.hints import HINTED, hinted, is_hinted, plain_id
from turnwise_jax.data.records import Dialogue, Frame, Question, Sound, Turn
from turnwise_jax.errors import InputError

TURN = Turn((Frame("v.mp4", 1.5),), "How many?", 3.0, None, True, Sound("v.mp4", 0.0, 3.0))
QUESTION = Question("How many?", "2", "numeric", hint="Count\nthe beeps.\n")
PLAIN = Dialogue("q1", (TURN,), system="Think.", file="d.jsonl", question=QUESTION)


def without(**changes) -> Dialogue:
    values = {"turns": (TURN,), "system": "Think.", "file": "d.jsonl", "question": QUESTION}
    return Dialogue("q1", **{**values, **changes})


def test_only_id_and_system_text_differ():
    shown = hinted(PLAIN)
    assert shown == Dialogue(
        "q1+hint", (TURN,), system="Think.\n\nHint: Count\nthe beeps.", question=QUESTION
    )
    assert shown.file == "d.jsonl"
    assert without() == PLAIN


def test_a_dialogue_without_system_text_gets_the_hint_alone():
    assert hinted(without(system=None)).system == "Hint: Count\nthe beeps."
    assert hinted(without(system="")).system == "Hint: Count\nthe beeps."


def test_a_hint_is_shown_once():
    shown = hinted(PLAIN)
    assert hinted(shown) == shown


def test_ids_tell_hinted_from_plain():
    assert is_hinted("q1" + HINTED)
    assert not is_hinted("q1")
    assert not is_hinted("q1+hint+x")
    assert plain_id("q1+hint") == plain_id("q1") == "q1"
    assert plain_id(hinted(PLAIN).id) == PLAIN.id


@pytest.mark.parametrize("question", [None, Question("Q?", "2"), Question("Q?", "2", hint=" \n")])
def test_without_a_hint_there_is_nothing_to_show(question):
    with pytest.raises(InputError, match="has no hint to show; fill this field") as caught:
        hinted(without(question=question))
    error = caught.value
    assert (error.file, error.record, error.field) == ("d.jsonl", "q1", "hint")
