"""Public benchmarks on hand-made predictions: worked numbers, edges and counts of their rules."""

from __future__ import annotations

import dataclasses

import pytest

from turnwise_jax.data.records import Question, Target, Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval import (
    BENCHMARKS,
    ovo_bench,
    ovo_timing,
    proactive_videoqa,
    streamingbench,
    streamingbench_polling,
    streamingbench_proactive,
)
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, make_judges
from turnwise_jax.rewards.judges import RuleJudge

SILENT = "NO REPLY"


class Scripted:
    """Quality is the number that a reply ends with; a reply repeats what contains it."""

    def __init__(self) -> None:
        self.seen = []

    def ask(self, requests):
        self.seen += requests
        return [
            float(r.reply in r.previous) if r.kind == "repetition" else float(r.reply.split()[-1])
            for r in requests
        ]


class Nobody:
    def ask(self, requests):
        raise AssertionError(f"asked about {requests}")


def scripted() -> Judges:
    return Judges(Scripted(), Scripted())


def streamed(subset, times, replies, windows=(), **other) -> Prediction:
    windows = tuple(Window(float(a), float(b), "first user turn", "answer") for a, b in windows)
    times = tuple(map(float, times))
    return Prediction("d", times, tuple(replies), windows, target=Target(subset), **other)


# ProactiveVideoQA


# facts 1.3, the S = 2 columns: (offset, score) pairs -> value at omega 0, 0.5, 1.
TABLE = [
    ([], 0.25, 0.25, 0.25),
    ([(0, 2)], 1.0, 1.0, 1.0),
    ([(5, 2)], 0.625, 0.8125, 1.0),
    ([(10, 2)], 0.25, 0.625, 1.0),
    ([(0, 0)], 0.0, 0.0, 0.0),
    ([(5, 0)], 0.125, 0.0625, 0.0),
    ([(2, 1), (6, 2)], 0.65, 0.825, 1.0),
    ([(2, 2), (6, 0.5)], 0.55, 0.4, 0.25),
]


@pytest.mark.parametrize(("points", "omega_0", "omega_half", "omega_1"), TABLE)
def test_pauc_has_the_worked_values(points, omega_0, omega_half, omega_1):
    replies = [f"text {score}" for _, score in points]
    dialogue = streamed("WEB", [20 + t for t, _ in points], replies, [(20, 30)])
    metrics = proactive_videoqa.report([dialogue], scripted()).metrics
    for name, value in (("_omega_0", omega_0), ("", omega_half), ("_omega_1", omega_1)):
        assert metrics[f"pauc{name}"] == pytest.approx(100 * value, rel=1e-12)
        assert metrics[f"pauc{name}/WEB"] == metrics[f"pauc{name}"]


def test_silence_is_worth_25_exactly_in_every_subset():
    said = [
        streamed(name, [3.3, 7.1], [SILENT, " NO REPLY\n"], [(0.1, 9.3), (2, 2), (50, 60.7)] * n)
        for n, name in enumerate(proactive_videoqa.SUBSETS, start=1)
    ]
    metrics = proactive_videoqa.report(said, Judges(Nobody(), Nobody())).metrics
    assert {value for name, value in metrics.items() if name.startswith("pauc")} == {25.0}
    assert len([name for name in metrics if name.startswith("pauc")]) == 15
    assert metrics["repetition_rate"] == metrics["non_silent_share"] == 0.0


def test_windows_vote_within_a_subset_and_subsets_vote_for_the_whole():
    perfect = streamed("WEB", [2], ["yes 2"], [(2, 6)])
    silent = streamed("WEB", [2], [SILENT], [(0, 1), (1, 2), (2, 3)])
    wrong = streamed("TV", [4], ["no 0"], [(4, 8)])
    report = proactive_videoqa.report([perfect, silent, wrong], scripted())
    web = 100 * (1 + 3 * 0.25) / 4
    assert report.metrics["pauc/WEB"] == pytest.approx(web)
    assert report.metrics["pauc/TV"] == 0.0
    assert report.metrics["pauc"] == pytest.approx(web / 2)
    assert report.counts["windows/WEB"] == 4
    assert report.counts["dialogues/TV"] == 1
    assert "pauc/EGO" not in report.metrics


def test_the_judge_sees_the_first_user_turn_and_all_distinct_replies_so_far():
    judges = scripted()
    dialogue = streamed("EGO", [1, 2, 3, 4], ["a 0", "b 1", "a 0", "c 2"], [(2, 5)])
    proactive_videoqa.report([dialogue], judges)
    asked = judges.benchmark.seen
    assert [r.reply for r in asked] == ["b 1", "b 1 a 0", "b 1 a 0 c 2"]
    assert {(r.kind, r.question, r.answer) for r in asked} == {
        ("quality", "first user turn", "answer")
    }
    assert {r.kind for r in judges.reward.seen} == {"repetition"}


def test_a_late_lower_score_is_dropped_and_counted():
    window = Window(0.0, 6.0, "q", "a", event_end=4.0)
    said = Prediction("d", (1.0, 5.0), ("good 2", "worse 0"), (window,), target=Target("VAD"))
    report = proactive_videoqa.report([said], scripted())
    assert report.metrics["pauc_omega_1"] == 100.0
    assert report.counts["late_scores_dropped"] == 1


def test_repetition_is_a_share_of_replies_in_each_subset():
    """WEB: one of three (a verbatim copy); TV: one of one, it only says what the history said."""
    web = streamed("WEB", [1, 2, 3, 4], ["a 1", SILENT, "b 1", "a 1"])
    tv = streamed("TV", [1], ["c"], history=("c d",))
    report = proactive_videoqa.report([web, tv], scripted())
    assert report.metrics["repetition_rate/WEB"] == pytest.approx(100 / 3)
    assert report.metrics["repetition_rate/TV"] == 100.0
    assert report.metrics["repetition_rate"] == pytest.approx((100 + 100 / 3) / 2)


def test_logged_repetitions_are_used_and_nobody_is_asked():
    logged = streamed("EGO", [1, 2, 3], ["a", "b", "c"], repetitive=(0.0, 1.0, None))
    report = proactive_videoqa.report([logged], Judges(Nobody(), RuleJudge(levels=3)))
    assert report.metrics["repetition_rate"] == 50.0
    assert report.counts["failed_repetition_judgements"] == 1


def test_a_failed_repetition_judgement_leaves_both_counts():
    class Failing(Scripted):
        def ask(self, requests):
            return [None if r.reply == "b" else 1.0 for r in requests]

    said = streamed("EGO", [1, 2], ["a", "b"])
    report = proactive_videoqa.report([said], Judges(Failing(), Scripted()))
    assert report.metrics["repetition_rate"] == 100.0
    assert report.counts["failed_repetition_judgements"] == 1


# OVO-Timing


def timed(task, due, times, replies=None) -> Prediction:
    replies = replies or ["now"] * len(times)
    target = Target(task, times=tuple(map(float, due)))
    return Prediction("d", tuple(map(float, times)), tuple(replies), target=target)


@pytest.mark.parametrize(
    ("due", "detected", "matched"),
    [
        ([10], [8], 1),
        ([10], [12], 1),
        ([10], [7.9], 0),
        ([10], [12.1], 0),
        ([10, 11], [10.5], 1),
        ([10, 11], [9, 13], 2),
        ([10, 13], [11.5, 12], 2),
        ([12, 10], [11, 14], 1),  # the first due time takes 11, which 10 would have needed
        ([10, 12], [11, 14], 2),
        ([], [3], 0),
        ([3], [], 0),
    ],
)
def test_due_times_take_the_first_free_detection_within_two_seconds(due, detected, matched):
    found = ovo_timing.match(due, detected)
    assert (found.due, found.detections, found.matched) == (len(due), len(detected), matched)


def test_silence_and_empty_bodies_are_no_detections():
    said = timed("CRR", [4], [2, 4, 6, 8], [SILENT, "", " \n", " NO REPLY "])
    report = ovo_timing.report([said])
    assert report.counts["detections"] == 0
    assert report.counts["empty_replies"] == 2
    assert report.metrics["f1"] == report.metrics["precision"] == 0.0


def test_f1_is_of_the_mean_precision_and_the_mean_recall():
    """Precision (1, 0), recall (1/2, 0): means 1/2 and 1/4, F1 1/3; not the mean of F1s."""
    half = timed("REC", [10, 20], [10])
    none = timed("REC", [10], [15])
    report = ovo_timing.report([half, none])
    assert report.metrics["precision/REC"] == 50.0
    assert report.metrics["recall/REC"] == 25.0
    assert report.metrics["f1/REC"] == pytest.approx(100 / 3)


def test_the_tasks_have_one_vote_each():
    said = [timed("CRR", [5], [5]), *[timed("SSR", [5], [9])] * 3, timed("REC", [5, 9], [5])]
    metrics = ovo_timing.report(said).metrics
    assert (metrics["f1/CRR"], metrics["f1/SSR"]) == (100.0, 0.0)
    assert metrics["f1/REC"] == pytest.approx(200 / 3)
    assert metrics["f1"] == pytest.approx((100 + 0 + 200 / 3) / 3)


# OVO-Bench


@pytest.mark.parametrize(
    ("task", "response", "truth", "right", "strict", "read"),
    [
        ("EPM", "B", "B", True, True, True),
        ("EPM", "The answer is B.", "B", True, False, True),
        ("EPM", "A or B", "B", True, False, True),
        ("OCR", "(b)", "B", False, False, False),
        ("FPD", "NO REPLY", "E", False, False, False),  # silence is no response
        ("REC", "3", "3", True, True, True),
        ("REC", "3 times", "3", True, True, True),
        ("REC", "They jump 3 times", "3", True, False, True),
        ("REC", "1 or 2", "12", True, False, True),
        ("REC", "13", "3", False, False, True),
        ("REC", "three", "3", False, False, False),
        ("REC", "", "0", False, False, False),
        ("SSR", "Yes", "Yes", True, True, True),
        ("SSR", "Y", "Yes", True, False, True),
        ("SSR", "N", "No", True, False, True),
        ("CRR", "N", "Yes", False, False, True),
        ("CRR", "yes", "Yes", False, False, False),
        ("CRR", "Not enough", "No", True, True, True),
        ("CRR", "NO REPLY", "No", False, False, False),
        ("SSR", "Yes and No", "No", True, False, True),
    ],
)
def test_ovo_responses_are_marked_as_the_official_code_does(
    task, response, truth, right, strict, read
):
    assert ovo_bench.mark(task, response, truth) == (right, strict, read)


def point(task, response, truth, item="1") -> Prediction:
    kind = "multiple_choice" if len(truth) == 1 and truth.isalpha() else "exact"
    options = ("a", "b", "c", "d") if kind == "multiple_choice" else ()
    question = Question("q", truth, kind, options)
    return Prediction("d", (4.0,), (response,), question=question, target=Target(task, item))


def test_ovo_averages_test_points_then_tasks_then_groups():
    said = [
        *[point("CRR", r, "Yes", "7") for r in ("Yes", "Yes", "No", "")],
        point("CRR", "No", "Yes", "8"),
        point("REC", "2", "2"),
        point("EPM", "A", "A"),
        point("OJR", "I think B", "B"),
    ]
    report = ovo_bench.report(said)
    metrics = report.metrics
    assert metrics["accuracy/CRR"] == 40.0  # 2 of 5 points, not the mean of 1/2 and 0
    assert metrics["accuracy/forward"] == 70.0
    assert metrics["accuracy"] == pytest.approx((70 + 100 + 100) / 3)
    assert metrics["accuracy_over_tasks"] == pytest.approx((40 + 100 + 100 + 100) / 4)
    assert metrics["accuracy_strict/realtime"] == 0.0
    assert metrics["accuracy_strict"] == pytest.approx((70 + 100 + 0) / 3)
    assert report.counts["records"] == 3
    assert report.counts["test_points/CRR"] == 5
    assert report.counts["empty_responses"] == 1
    assert report.counts["without_yes_or_no"] == 1
    assert report.counts["right_only_as_substring"] == 1


# StreamingBench


def choice(response, truth="B", task="Counting") -> Prediction:
    question = Question("q", truth, "multiple_choice", ("a", "b", "c", "d"))
    return Prediction("d", (9.0,), (response,), question=question, target=Target(task))


def test_only_the_first_character_counts_and_empty_responses_do_not():
    said = [choice(r) for r in ("B", "B. it", "(B)", "The answer is B", "b", "", SILENT, "A")]
    report = streamingbench.report([*said, choice("C", "C", "Causal")])
    assert report.metrics["accuracy"] == pytest.approx(100 * 3 / 8)
    assert report.metrics["accuracy_of_all"] == pytest.approx(100 * 3 / 9)
    assert report.metrics["accuracy/Counting"] == pytest.approx(100 * 2 / 7)
    assert report.metrics["accuracy/Causal"] == 100.0
    assert report.counts["empty_responses"] == 1
    assert report.counts["first_character_no_letter"] == 4
    assert report.counts["silent_responses"] == 1


def ordered(times, replies, moment=10.0, text="GOAL") -> Prediction:
    target = Target("Proactive Output", "i", (moment,), text)
    return Prediction("d", tuple(map(float, times)), tuple(replies), target=target)


@pytest.mark.parametrize(
    ("times", "replies", "outcome"),
    [
        ([8], ["GOAL!"], "right"),
        ([12], ["a GOAL"], "right"),
        ([12.1], ["GOAL"], "late"),
        ([7.9], ["GOAL"], "early"),
        ([10], ["goal"], "wrong_text"),
        ([6, 10], ["wait", "GOAL"], "early"),
        ([6, 10], [SILENT, "GOAL"], "right"),
        ([9, 10], ["not yet", "GOAL"], "wrong_text"),
        ([6, 10], ["", "GOAL"], "early"),  # an empty reply is a reply
        ([6, 14], [SILENT, SILENT], "silent"),
    ],
)
def test_the_first_reply_after_the_query_decides(times, replies, outcome):
    said = ordered(times, replies)
    assert streamingbench_proactive.outcome(said) == outcome
    report = streamingbench_proactive.report([said, ordered([1], [SILENT])])
    assert report.metrics["accuracy"] == 50.0 * (outcome == "right")
    assert report.metrics["timing_accuracy"] == 50.0 * (outcome in ("right", "wrong_text"))
    mended = any(8 <= t <= 12 and "GOAL" in r for t, r in zip(times, replies, strict=True))
    assert report.metrics["accuracy_of_any"] == 50.0 * mended
    assert report.counts["without_reply"] == 1 + (outcome == "silent")


def polls(item, responses, outputs, moment=10.0, first=9.0) -> list[Prediction]:
    """Every second from ``first``: a poll and the plain question."""
    found = []
    for kind, texts in (("poll", responses), ("output", outputs)):
        target = Target(kind, item, (moment,), "GOAL")
        for n, text in enumerate(texts):
            found.append(Prediction(f"{item}-{kind}-{n}", (first + n,), (text,), target=target))
    return found


@pytest.mark.parametrize(
    ("responses", "outputs", "first", "timing", "right"),
    [
        (["no", "Yes.", "no"], ["", "GOAL!", ""], 9.0, 1, 1),
        (["no", "yes", "yes"], ["GOAL", "goal", "GOAL"], 9.0, 1, 0),  # the first yes decides
        (["Yesterday"], ["a GOAL"], 8.0, 1, 1),
        (["yes", "yes"], ["GOAL", "GOAL"], 7.0, 0, 0),
        (["no"] * 4 + ["YES"], ["GOAL"] * 5, 8.0, 1, 1),
        (["no"] * 5 + ["YES"], ["GOAL"] * 6, 8.0, 0, 0),
        (["no"] * 5, ["GOAL"] * 5, 8.0, 0, 0),
    ],
)
def test_polling_stops_at_the_first_yes(responses, outputs, first, timing, right):
    said = polls("i", responses, outputs, first=first)
    report = streamingbench_polling.report([*said, *polls("other", ["no"], ["GOAL"])])
    assert report.metrics["timing_accuracy"] == 50.0 * timing
    assert report.metrics["accuracy"] == 50.0 * right
    assert report.counts["questions"] == 2
    used = next((n + 1 for n, r in enumerate(responses) if "yes" in r.lower()), len(responses))
    assert report.counts["polls_used"] == used + 1
    assert report.counts["polls"] == len(responses) + 1


def test_a_yes_whose_answer_is_missing_has_its_timing_alone():
    said = polls("i", ["yes"], [])
    report = streamingbench_polling.report(said)
    assert report.metrics == {"accuracy": 0.0, "timing_accuracy": 100.0}
    assert report.counts["stopped_without_response"] == 1


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (polls("i", ["no"], [])[0], "times"),
        (polls("i", [], ["no"], moment=11.0)[0], "target"),
    ],
)
def test_dialogues_of_one_question_must_go_together(other, field):
    with pytest.raises(InputError) as caught:
        streamingbench_polling.report([*polls("i", ["no"], []), other])
    assert caught.value.field == field


# all of them


def test_every_benchmark_names_its_rule_and_source():
    for name, module in BENCHMARKS.items():
        assert len(module.RULE) > 80, name
        if name not in ("streaming", "qa"):
            assert "Public source" in " ".join(module.__doc__.split()), name
            assert all(f"\n{n}. " in module.__doc__ for n in (1, 2, 3, 4, 5)), name


def test_intervals_are_over_videos():
    said = [
        dataclasses.replace(choice("B" if n % 3 else "A"), id=f"d{n}", video=f"v{n}")
        for n in range(30)
    ]
    report = streamingbench.report(said, make_judges({"kind": "rule"}))
    low, high = report.intervals["accuracy"]
    assert low < report.metrics["accuracy"] < high
