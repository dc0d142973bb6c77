"""Word error rate and ROUGE against the packages that define them, and against counting by hand."""

from __future__ import annotations

import random

import jiwer
import pytest
from rouge_score.rouge_scorer import RougeScorer

from turnwise_jax.rewards.overlap import rouge_l, rouge_n, rouge_words, word_error_rate

VOCABULARY = ("the", "red", "circle", "beeps", "twice", "on", "left", "side", "3", "then")


def pairs(seed: int, count: int, longest: int):
    """Pairs of texts, some of which share most of their words."""
    draw = random.Random(seed)
    for _ in range(count):
        reference = draw.choices(VOCABULARY, k=draw.randint(1, longest))
        text = draw.choices(VOCABULARY, k=draw.randint(0, longest))
        if draw.random() < 0.5:
            text = [word for word in reference if draw.random() < 0.7] + text[:2]
        yield " ".join(reference), " ".join(text)


def test_word_error_rate_is_that_of_jiwer():
    for reference, text in pairs(0, 300, 12):
        assert word_error_rate(reference, text) == pytest.approx(jiwer.wer(reference, text))


@pytest.mark.parametrize(
    ("reference", "text", "rate"),
    [
        ("EXIT", "exit", 0.0),
        ("no entry", "  no   entry\n", 0.0),
        ("no entry", "entry", 0.5),
        ("no entry", "entry no", 1.0),
        ("no entry", "no entry no entry no", 1.5),
        ("no entry!", "no entry", 0.5),
        ("stop", "", 1.0),
        ("", "", 0.0),
        ("", "two words", 2.0),
    ],
)
def test_word_error_rate_by_hand(reference, text, rate):
    assert word_error_rate(reference, text) == rate


def test_rouge_is_that_of_rouge_score():
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    for reference, text in pairs(1, 300, 15):
        reference, text = f"{reference.upper()}!", text.replace(" ", ", ")
        wanted, said = rouge_words(reference), rouge_words(text)
        expected = scorer.score(reference, text)
        assert rouge_n(wanted, said, 1) == pytest.approx(expected["rouge1"].fmeasure)
        assert rouge_n(wanted, said, 2) == pytest.approx(expected["rouge2"].fmeasure)
        assert rouge_l(wanted, said) == pytest.approx(expected["rougeL"].fmeasure)


def test_rouge_by_hand():
    wanted, said = [*"abcd"], [*"acb"]
    assert rouge_n(wanted, said, 1) == pytest.approx(2 * 3 / 7)
    assert rouge_n(wanted, said, 2) == 0.0
    assert rouge_l(wanted, said) == pytest.approx(2 * 2 / 7)
    assert rouge_n(["a", "a"], ["a"] * 3, 1) == pytest.approx(2 * 2 / 5)
    assert rouge_n([], [], 1) == rouge_l([], []) == rouge_l(["a"], []) == 0.0


def test_words_of_other_scripts_count_too():
    assert rouge_words("Красный круг, 3_мал") == ["красный", "круг", "3", "мал"]
