"""Questions with one answer: hand numbers, random files read a second way, a policy that hears."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from turnwise_jax.data.records import Question
from turnwise_jax.errors import InputError
from turnwise_jax.eval import qa
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.predictions import Prediction, PredictionWriter
from turnwise_jax.eval.qa import mark
from turnwise_jax.eval.report import Report
from turnwise_jax.eval.run import evaluate

COLOURS = ("red", "green", "blue", "white")


def wrapped(answer: str) -> str:
    return f"<think>I look and listen.</think><answer>{answer}</answer>"


def choice(answer: str = "B", *, category: str = "", options: tuple[str, ...] = COLOURS):
    return Question("Which colour sounds?", answer, "multiple_choice", options, category)


def number(answer: str, *, category: str = "") -> Question:
    return Question("How many beeps?", answer, "numeric", category=category)


def said(reply: str, question: Question, name: str = "a", video: str = "") -> Prediction:
    return Prediction(name, (3.0,), (reply,), video=video, question=question)


def report(*pairs: tuple[str, Question], **options) -> Report:
    made = [said(reply, q, f"d{n}", f"v{n}") for n, (reply, q) in enumerate(pairs)]
    return qa.report(made, resamples=50, **options)


@pytest.mark.parametrize(
    ("reply", "right", "read"),
    [
        (wrapped("B"), 1, True),
        (wrapped("(b)"), 1, True),
        (wrapped("B. green"), 1, True),
        (wrapped("Green"), 1, True),
        ("B", 1, True),
        ("<answer>A</answer> no, <answer>B</answer>", 1, True),  # the last block counts
        (wrapped("A"), 0, True),
        (wrapped("A or B"), 0, False),
        (wrapped("purple"), 0, False),
        (wrapped(""), 0, False),
        ("", 0, False),
    ],
)
def test_a_choice_is_right_by_letter_or_text_alone(reply, right, read):
    found = mark(reply, choice())
    assert (found.accuracy, found.read, found.error) == (right, read, None)


@pytest.mark.parametrize(
    ("reply", "truth", "right", "error"),
    [
        (wrapped("4"), "4", 1, 0.0),
        (wrapped("four beeps"), "4", 1, 0.0),
        (wrapped("5"), "4", 0, 1.0),
        (wrapped("-4"), "4", 0, -8.0),
        (wrapped("1,002"), "1001", 1, 1.0),  # within a thousandth
        (wrapped("1003"), "1001", 0, 2.0),
        (wrapped("0"), "0", 1, 0.0),
        (wrapped("0.0004"), "0", 0, 0.0004),
        (wrapped("-20.01"), "-20", 1, -0.01),
        (wrapped("many"), "4", 0, None),
        (wrapped("4e300"), "4", 0, None),
        ("", "4", 0, None),
    ],
)
def test_a_number_is_right_within_a_thousandth(reply, truth, right, error):
    found = mark(reply, number(truth))
    assert found.accuracy == right
    assert found.read == (error is not None)
    assert found.error == (None if error is None else pytest.approx(error))


def test_other_kinds_are_marked_by_their_own_rules():
    assert mark(wrapped("Exit  Only"), Question("Read it.", "exit only", "exact")).accuracy == 1
    assert mark(wrapped("exit"), Question("Read it.", "exit only", "exact")).accuracy == 0
    assert mark(wrapped("mind the gap"), Question("?", "mind a gap", "ocr")).accuracy == (
        pytest.approx(2 / 3)
    )
    # ROUGE-1: 2 of 3 words both ways; ROUGE-2: 1 of 2 pairs; ROUGE-L: 2 of 3.
    free = mark(wrapped("a dog sleeps"), Question("?", "a dog barks", "free_form"))
    assert free.accuracy == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)


def test_every_number_of_a_small_set_by_hand():
    found = report(
        (wrapped("B"), choice(category="sound")),
        (wrapped("C"), choice(category="sound")),
        ("A", choice("A", category="sight", options=("yes", "no"))),
        (wrapped("3"), number("3", category="count")),
        (wrapped("5"), number("3", category="count")),
        (wrapped("2"), number("3", category="count")),
        (wrapped("unsure"), number("1", category="count")),
        (wrapped("which"), choice("D", category="sound")),
    )
    assert found.metrics == pytest.approx(
        {
            "accuracy": 100 * 3 / 8,
            "accuracy_macro": 100 * (1 / 3 + 1 + 1 / 4) / 3,
            "well_formed": 100 * 7 / 8,
            "accuracy/count": 25.0,
            "accuracy/sight": 100.0,
            "accuracy/sound": 100 / 3,
            "numeric_accuracy": 25.0,
            "numeric_off_by_one": 50.0,
            "numeric_mae": 1.0,
            "numeric_rmse": math.sqrt(5 / 3),
            "chance": 100 * (3 / 4 + 1 / 2) / 4,
            "constant/count": 75.0,
            "chance/sight": 50.0,
            "chance/sound": 25.0,
        }
    )
    assert found.counts == {
        "questions": 8,
        "videos": 8,
        "multiple_choice": 4,
        "multiple_choice_unread": 1,
        "numeric": 4,
        "numeric_unread": 1,
        "questions/count": 4,
        "questions/sight": 1,
        "questions/sound": 3,
    }
    assert set(found.intervals) == {n for n in found.metrics if not n.startswith(("ch", "const"))}
    assert "0.1 %" in found.rule


def test_without_categories_there_is_no_mean_over_them():
    found = report((wrapped("B"), choice()), (wrapped("A"), choice()))
    assert set(found.metrics) == {"accuracy", "well_formed", "chance"}
    assert (found.metrics["accuracy"], found.metrics["chance"]) == (50.0, 25.0)
    some = report((wrapped("B"), choice()), (wrapped("A"), choice(category="x")))
    assert some.metrics["accuracy/(none)"] == 100.0
    assert some.metrics["accuracy_macro"] == 50.0


def test_no_error_is_stated_where_no_answer_has_a_number():
    found = report((wrapped("many"), number("3")), (wrapped("few"), number("4")))
    assert set(found.metrics) == {
        "accuracy",
        "well_formed",
        "numeric_accuracy",
        "numeric_off_by_one",
    }
    assert found.counts["numeric_unread"] == 2


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"question": None}, "question", "is missing"),
        ({"replies": ("B", "B"), "times": (1.0, 2.0)}, "replies", "has 2 entries, a question"),
        ({"question": number("some")}, "question.answer", "is no number: 'some'"),
    ],
)
def test_what_cannot_be_marked_names_record_and_field(change, field, message):
    good = said(wrapped("B"), choice())
    bad = dataclasses.replace(said(wrapped("B"), choice(), "broken"), **change)
    with pytest.raises(InputError, match=message) as caught:
        qa.report([good, bad])
    assert (caught.value.record, caught.value.field) == ("broken", field)


class Drawn:
    """Random questions with replies of which it is known beforehand what they are worth."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.predictions: list[Prediction] = []
        self.outcomes: list[tuple[float, float | None, bool]] = []
        for n in range(60):
            question, answer, worth, error = self.rng.choice((self.choice, self.count))()
            form = self.rng.random() < 0.6
            reply = wrapped(answer) if form else f"Well. <answer> {answer} </answer>"
            self.predictions.append(said(reply, question, f"d{n}", f"v{n % 13}"))
            self.outcomes.append((worth, error, form))

    def choice(self):
        words = self.rng.sample(("red", "green", "blue", "white", "black", "pink"), k=5)
        options = tuple(words[: self.rng.randint(2, 4)])
        right = self.rng.randrange(len(options))
        pick = self.rng.randrange(len(options) + 1)
        if pick == len(options):
            answer = self.rng.choice(("I cannot tell", words[-1], "A and B"))
        else:
            letter = "ABCD"[pick]
            forms = (letter, letter.lower(), f"({letter})", f"{letter}. {options[pick]}")
            answer = self.rng.choice((*forms, options[pick]))
        question = choice("ABCD"[right], category=self.category(), options=options)
        return question, answer, float(pick == right), None

    def count(self):
        truth = self.rng.randint(0, 9)
        value = max(0, truth + self.rng.choice((-3, -1, 0, 0, 1, 2)))
        forms = (f"{value}", f"{value} beeps", f"about {value}", f"{value}.0")
        question = number(str(truth), category=self.category())
        if self.rng.random() < 0.2:
            return question, "several", 0.0, None
        return question, self.rng.choice(forms), float(value == truth), float(value - truth)

    def category(self) -> str:
        return self.rng.choice(("sound", "sight", "both"))

    def metrics(self) -> dict[str, float]:
        """The same numbers from what was known beforehand, question by question."""
        rows = list(zip(self.predictions, self.outcomes, strict=True))

        def percent(values) -> float:
            values = list(values)
            return 100 * sum(values) / len(values)

        found = {
            "accuracy": percent(worth for _, (worth, _, _) in rows),
            "well_formed": percent(form for _, (_, _, form) in rows),
        }
        own = {}
        for name in {p.question.category for p in self.predictions}:
            own[name] = percent(w for p, (w, _, _) in rows if p.question.category == name)
            found[f"accuracy/{name}"] = own[name]
        found["accuracy_macro"] = sum(own.values()) / len(own)
        numeric = [(w, e) for p, (w, e, _) in rows if p.question.kind == "numeric"]
        errors = [e for _, e in numeric if e is not None]
        found["numeric_accuracy"] = percent(w for w, _ in numeric)
        found["numeric_off_by_one"] = percent(e in (-1, 0, 1) for _, e in numeric)
        found["numeric_mae"] = sum(map(abs, errors)) / len(errors)
        found["numeric_rmse"] = math.sqrt(sum(e * e for e in errors) / len(errors))
        sizes = [len(p.question.options) for p in self.predictions if p.question.options]
        found["chance"] = percent(1 / size for size in sizes)
        return found


@pytest.mark.parametrize("seed", range(8))
def test_random_files_give_what_was_known_beforehand(seed, tmp_path):
    drawn = Drawn(seed)
    with PredictionWriter(tmp_path / "p.jsonl") as writer:
        for prediction in drawn.predictions:
            writer.write(prediction)
    config = eval_config("qa")
    config.update(dir=str(tmp_path / "out"), resamples=20)
    found = evaluate(config, predictions=tmp_path / "p.jsonl")
    assert found == Report.read(tmp_path / "out" / "report.json")
    expected = drawn.metrics()
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)
    levels = set(found.metrics) - set(expected)
    assert levels == {f"constant/{name}" for name in ("sound", "sight", "both")}
    unread = sum(e is None for _, (_, e, _) in zip(drawn.predictions, drawn.outcomes, strict=True))
    kinds = [p.question.kind for p in drawn.predictions]
    assert found.counts["numeric_unread"] == unread - kinds.count("multiple_choice")


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_predictions_does_not_matter(seed):
    drawn = Drawn(seed).predictions
    shuffled = random.Random(seed).sample(drawn, k=len(drawn))
    first, second = qa.report(drawn, resamples=40), qa.report(shuffled, resamples=40)
    assert first.metrics == pytest.approx(second.metrics)
    assert first.counts == second.counts
    for name, interval in first.intervals.items():
        assert second.intervals[name] == pytest.approx(interval)
