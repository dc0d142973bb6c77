"""Reading a language model's answer: exactly what was asked for, or nothing."""

from __future__ import annotations

import pytest

from turnwise_jax.rewards.judges.prompts import final_text, messages, parse
from turnwise_jax.rewards.judges.protocol import Request

HARMONY = "<|channel|>analysis<|message|>5 is too much, 1 no.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("1", 0.0),
        ("5", 4.0),
        (" 3 \n", 2.0),
        ("<think>It says 5.\nBut no.</think>\n\n2", 1.0),
        ("<think></think><think>5</think>4", 3.0),
        ("so it is 5 or 4</think>\n4", 3.0),
        (HARMONY + "<|channel|>final<|message|>4<|return|>", 3.0),
        ("analysisIt is 5 or 4.assistantfinal4", 3.0),
        ("<think>it is 4", None),
        ("0", None),
        ("6", None),
        ("4.", None),
        ("4/5", None),
        ("Score 4", None),
        ("٣", None),
        ("²", None),
        ("", None),
        (HARMONY, None),
    ],
)
def test_grades(text, score):
    assert parse(text, "quality", 5) == score


def test_grades_of_the_three_level_form():
    assert [parse(str(n), "quality", 3) for n in range(5)] == [None, 0.0, 1.0, 2.0, None]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes", 1.0),
        ("YES, all of it.", 1.0),
        ("No", 0.0),
        ("\n no.", 0.0),
        ("<think>yes?</think>no", 0.0),
        ("Nothing is new", None),
        ("It is covered: yes", None),
        ("", None),
    ],
)
def test_yes_and_no(text, answer):
    assert parse(text, "repetition", 5) == answer


def test_reasoning_is_cut_and_other_text_is_kept():
    assert final_text("an analysis that is fine") == "an analysis that is fine"
    assert final_text("a <b> tag") == "a <b> tag"


def test_each_scale_has_its_own_rubric():
    request = Request("quality", "q", "a", reply="r")
    five, three = (messages(request, levels)[0]["content"] for levels in (5, 3))
    assert "digit from 1 to 5" in five
    assert "digit from 1 to 3" in three
    assert "\n5: " in five
    assert "\n5: " not in three
