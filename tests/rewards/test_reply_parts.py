"""A reply comes apart into reasoning and final answer, and keeps to its form or does not."""

from __future__ import annotations

import time

import pytest

from turnwise_jax.rewards.answer_format import answer_format
from turnwise_jax.rewards.answers import final_answer, reasoning, well_formed

GOOD = "<think>The square beeps.</think><answer>B</answer>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (GOOD, "B"),
        ("<answer>\n B. left \n</answer>", "B. left"),
        ("<answer>A</answer> no: <answer>B</answer>", "B"),
        ("<answer>A</answer><answer>B", "A"),
        ("<answer>A <answer>B</answer>", "B"),
        ("<answer>B</answer></answer>", "B"),
        ("<answer></answer>", ""),
        ("<answer>A</answer><answer></answer>", ""),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer>2 < 3 and 4 > 3</answer>", "2 < 3 and 4 > 3"),
        ("  B \n", "B"),
        ("<think>A?</think> B", "<think>A?</think> B"),
        ("<answer>B", "<answer>B"),
        ("<Answer>B</Answer>", "<Answer>B</Answer>"),
        ("", ""),
    ],
)
def test_the_last_whole_answer_counts_or_else_all_of_the_text(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (GOOD, "The square beeps."),
        ("<think>\nI hear.\nI see.\n</think>", "I hear.\nI see."),
        ("<think>one</think><think>two</think>", "one"),
        ("<think>cut off", ""),
        ("no tags", ""),
        ("<think></think><answer>B</answer>", ""),
        ("<answer>B</answer>", ""),
    ],
)
def test_reasoning_is_the_first_whole_think_block(text, reasons):
    assert reasoning(text) == reasons


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n {GOOD}\n",
        "<think>a</think>\n\n<answer>B</answer>",
        "<think>\na <b> c\n</think> <answer>\nB\n</answer>",
        "<think></think><answer></answer>",
    ],
)
def test_what_keeps_to_the_form_earns_one(text):
    assert well_formed(text)
    assert answer_format(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B",
        "<answer>B</answer>",
        "<think>a</think>",
        "<answer>B</answer><think>a</think>",
        "So: " + GOOD,
        GOOD + ".",
        GOOD + GOOD,
        "<think>a</think>and<answer>B</answer>",
        "<think>a</think><think>b</think><answer>B</answer>",
        "<think>a</think><answer>A</answer><answer>B</answer>",
        "<think>a<think>b</think></think><answer>B</answer>",
        "<think>a<answer>A</answer></think><answer>B</answer>",
        "<think>a</think><answer><answer>B</answer></answer>",
        "<think>a</think><answer>B<think></answer>",
        "<think>a</think><answer>B",
        "<think>a<answer>B</answer>",
        "a</think><answer>B</answer>",
        "<THINK>a</THINK><ANSWER>B</ANSWER>",
        "<think >a</think><answer>B</answer>",
    ],
)
def test_what_does_not_costs_one(text):
    assert not well_formed(text)
    assert answer_format(text) == -1.0


@pytest.mark.parametrize("part", ["<answer>", "<think>", "<answer>a", "<think>a</think>", " ", "<"])
def test_a_long_degenerate_reply_is_read_in_no_time(part):
    text = part * 20_000
    started = time.monotonic()
    assert not well_formed(text)
    assert final_answer(text) == text.strip()
    reasoning(text)
    assert time.monotonic() - started < 2.0
