"""A batch of answers to terms and totals: by hand, in place, and with a judge that fails."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from turnwise_jax.data.records import Question
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.accuracy import accuracy
from turnwise_jax.rewards.answers import final_answer, well_formed
from turnwise_jax.rewards.judges import Counts, JudgeStats, RuleJudge
from turnwise_jax.rewards.qa import (
    STAGE_WEIGHTS,
    Answered,
    AnswerTerms,
    AnswerWeights,
    score_answers,
    total,
)

ALL = AnswerWeights(accuracy=1.0, format=0.5, self_consistency=0.25, stepwise=2.0)
COLOUR = Question("Which colour?", "B", "multiple_choice", ("red", "blue"), sound="One low beep.")
COUNT = Question("How many beeps?", "4", "numeric", sound="Four beeps.")


def reply(answer: str, thought: str = "hm") -> str:
    return f"<think>{thought}</think><answer>{answer}</answer>"


class Marker:
    """Grades reasoning by a table, fails on what it does not know; notes what it was asked."""

    def __init__(self, **grades):
        self.grades, self.calls = grades, []

    def ask(self, requests):
        self.calls.append(list(requests))
        return [self.grades.get(request.reasoning) for request in requests]


BATCH = [
    Answered("colour", reply("B", "low"), COLOUR),
    Answered("colour", reply("(b) blue", "good"), COLOUR),
    Answered("colour", reply("red", "low"), COLOUR),
    Answered("colour", "B", COLOUR),
    Answered("count", reply("3", "good"), COUNT),
    Answered("count", reply("four", "lost"), COUNT),
    Answered("count", "<answer>three</answer>", COUNT),
]


def test_a_batch_by_hand():
    judge = Marker(low=0.25, good=1.0)
    terms, stats = score_answers(BATCH, judge, ALL)
    assert terms.accuracy.tolist() == [1, 1, 0, 1, 0.75, 1, 0.75]
    assert terms.format.tolist() == [1, 1, 1, -1, 1, 1, -1]
    assert terms.self_consistency.tolist() == [1, 1, 0, 1, 1, 0, 1]
    np.testing.assert_array_equal(terms.stepwise, [0.25, 1, 0.25, 0, 1, np.nan, 0])
    assert {term.dtype for term in terms} == {np.dtype(np.float32)}
    assert stats.stepwise == Counts(asked=5, failed=1)
    assert stats.total == stats.stepwise
    expected = [2.25, 3.75, 1.0, 0.75, 3.5, np.nan, 0.5]
    out = total(terms, ALL)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_the_judge_is_asked_once_and_each_question_once():
    judge = Marker(low=0.25, good=1.0)
    score_answers([*BATCH, *BATCH], judge, ALL)
    (asked,) = judge.calls
    assert len(asked) == len(set(asked)) == 5


def test_without_its_weight_nothing_is_asked_and_terms_are_zero():
    judge = Marker()
    for weights in (AnswerWeights(), AnswerWeights(accuracy=0.0, format=0.5)):
        terms, stats = score_answers(BATCH, judge, weights)
        assert terms.accuracy.tolist() == [1, 1, 0, 1, 0.75, 1, 0.75]
        assert not terms.self_consistency.any()
        assert not terms.stepwise.any()
        assert stats == JudgeStats()
    assert judge.calls == []
    again, _ = score_answers(BATCH, None, AnswerWeights())
    assert again.accuracy.tolist() == [1, 1, 0, 1, 0.75, 1, 0.75]


def test_a_judge_is_needed_only_where_there_is_something_to_judge():
    silent = [item for item in BATCH if "<think>" not in item.text]
    terms, _ = score_answers(silent, None, ALL)
    assert terms.stepwise.tolist() == [0.0, 0.0]
    with pytest.raises(InputError, match="needed to weigh stepwise") as caught:
        score_answers(BATCH, None, ALL)
    assert caught.value.field == "judge"


def test_a_missing_grade_spoils_its_own_total_and_only_if_it_has_a_weight():
    terms = AnswerTerms(
        *np.array([[1, 0.5], [1, -1], [0, 1], [np.nan, 0.5]], np.float32),
    )
    out = total(terms, ALL)
    assert np.isnan(out[0])
    assert out[1] == pytest.approx(0.5 - 0.5 + 0.25 + 1.0)
    assert total(terms, AnswerWeights()).tolist() == [2.0, -0.5]
    assert total(terms, AnswerWeights(0, 0, 0, 0)).tolist() == [0.0, 0.0]


def test_grades_that_are_no_numbers_are_missing():
    terms, stats = score_answers(BATCH[:2], Marker(low=float("nan"), good=0.5), ALL)
    np.testing.assert_array_equal(terms.stepwise, [np.nan, 0.5])
    assert stats.stepwise.failed == 1


def test_order_and_company_make_no_difference():
    whole, _ = score_answers(BATCH, RuleJudge(), ALL)
    # between prompts only: of equally frequent answers the prompt's first one is the majority's
    order = [4, 0, 5, 1, 2, 6, 3]
    shuffled, _ = score_answers([BATCH[i] for i in order], RuleJudge(), ALL)
    for a, b in zip(whole, shuffled, strict=True):
        assert a[order].tolist() == b.tolist()
    alone, _ = score_answers(BATCH[4:], RuleJudge(), ALL)
    for a, b in zip(whole, alone, strict=True):
        assert a[4:].tolist() == b.tolist()


def test_rollouts_are_scored_against_their_own_prompt():
    """The answer of one prompt earns nothing at another, wherever it stands in the batch."""
    draw = random.Random(8)
    questions = {f"p{n}": Question(f"{n}?", f"answer {n}", "exact") for n in range(5)}
    batch = []
    for _ in range(60):
        prompt, said = draw.choice(list(questions)), draw.randrange(5)
        batch.append(Answered(prompt, reply(f"answer {said}"), questions[prompt]))
    terms, _ = score_answers(batch, None, AnswerWeights())
    own = [item.prompt[1:] == final_answer(item.text)[-1] for item in batch]
    assert terms.accuracy.tolist() == [float(right) for right in own]


def test_it_is_the_single_rules_on_random_batches():
    draw = random.Random(9)
    texts = [reply("A"), reply("blue"), "B", reply("3"), reply("four"), "<answer>5</answer>", ""]
    for _ in range(50):
        batch = []
        for _ in range(draw.randint(0, 9)):
            prompt, question = draw.choice([("colour", COLOUR), ("count", COUNT)])
            batch.append(Answered(prompt, draw.choice(texts), question))
        terms, _ = score_answers(batch, RuleJudge(), ALL)
        for n, item in enumerate(batch):
            assert terms.accuracy[n] == np.float32(accuracy(final_answer(item.text), item.question))
            assert terms.format[n] == (1 if well_formed(item.text) else -1)
        expected = sum(w * t.astype(np.float64) for w, t in zip(ALL, terms, strict=True))
        np.testing.assert_allclose(total(terms, ALL), expected, rtol=1e-6, atol=1e-6)


def test_an_empty_batch():
    terms, stats = score_answers([], RuleJudge(), ALL)
    assert [term.shape for term in terms] == [(0,)] * 4
    assert stats == JudgeStats()
    assert total(terms, ALL).shape == (0,)


def test_a_truth_that_cannot_be_marked_names_the_prompt():
    batch = [*BATCH, Answered("bad", reply("B"), replace(COLOUR, answer="green"))]
    with pytest.raises(InputError, match=r"record 'bad': field 'question.answer': must name one"):
        score_answers(batch, None, AnswerWeights())


def test_frames_reach_the_judge():
    judge = Marker(hm=1.0)
    frames = tuple(f"a.mp4#t={n}" for n in range(16))
    score_answers([Answered("p", reply("B"), COLOUR, frames)], judge, ALL)
    assert judge.calls[0][0].frames == frames[1::2]


def test_stage_weights_of_the_three_sources():
    assert STAGE_WEIGHTS == {
        "text": {1: (1, 1, 0, 0), 2: (1, 1, 1, 0), 3: (0, 1, 0, 1)},
        "table": {1: (1, 1, 0, 0), 2: (1, 1, 1, 0), 3: (1, 1, 1, 1)},
        "code": {1: (1, 0.5, 0, 0), 2: (0, 0.5, 1, 0), 3: (0, 0.5, 0, 1)},
    }
    assert STAGE_WEIGHTS["text"][1] == AnswerWeights()
