"""The streaming report against hand computation and an independent reading of facts 1 and 2."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnwise_jax.data.records import Window
from turnwise_jax.eval import BENCHMARKS, streaming
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report, make_judges
from turnwise_jax.rewards.judges import RuleJudge

SILENT = "NO REPLY"
RULE = Judges(RuleJudge(), RuleJudge(levels=3))


class Scripted:
    """A judge whose quality answer is the number that a reply ends with; ``x``: it fails."""

    def __init__(self, top: float):
        self.top = top
        self.seen = []

    def ask(self, requests):
        self.seen += requests
        return [self._one(request) for request in requests]

    def _one(self, request):
        if request.kind == "repetition":
            return 1.0 if request.reply in request.previous else 0.0
        last = request.reply.split()[-1]
        return None if last == "x" else min(float(last), self.top)


def scripted() -> Judges:
    return Judges(Scripted(4.0), Scripted(2.0))


def dialogue(times, replies, windows, **other) -> Prediction:
    return Prediction("d", tuple(map(float, times)), tuple(replies), tuple(windows), **other)


def window(start, end, event_end=None) -> Window:
    return Window(float(start), float(end), "q", "a", event_end)


def paucs(predictions, judges=None) -> dict[float, float]:
    metrics = streaming.report(predictions, judges or scripted(), resamples=2).metrics
    return {omega: metrics[name] for name, omega in streaming.OMEGAS.items()}


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
def test_the_worked_numbers(points, omega_0, omega_half, omega_1):
    replies = [f"text {score}" for _, score in points]
    prediction = dialogue([20 + t for t, _ in points], replies, [window(20, 30)])
    found = paucs([prediction])
    expected = {0.0: omega_0, 0.5: omega_half, 1.0: omega_1}
    for omega, value in expected.items():
        assert found[omega] == pytest.approx(100 * value, abs=1e-4), omega


def test_silence_is_worth_25_exactly():
    predictions = [
        dialogue([2, 4, 6], [SILENT, " NO REPLY\n", SILENT], [window(1, 3), window(3, 7.7)]),
        dialogue([3.3], [SILENT], [window(0.1, 9.3), window(2, 2), window(50, 60)]),
    ]
    assert paucs(predictions) == {0.0: 25.0, 0.5: 25.0, 1.0: 25.0}


def test_every_window_of_the_set_has_one_vote():
    """One dialogue with a perfect window, one with three silent ones: (1 + 3 / 4) / 4."""
    perfect = dialogue([2], ["yes 2"], [window(2, 6)])
    silent = dialogue([2], [SILENT], [window(0, 1), window(1, 2), window(2, 3)])
    assert paucs([perfect, silent])[0.5] == pytest.approx(100 * (1 + 3 * 0.25) / 4)


def test_replies_so_far_are_joined_and_verbatim_repeats_passed_over():
    prediction = dialogue(
        [1, 2, 3, 4, 5], ["a 0", "b 1", "a 0", SILENT, " c 2 "], [window(2, 5), window(0, 9)]
    )
    judges = scripted()
    streaming.report([prediction], judges, resamples=2)
    texts = [request.reply for request in judges.benchmark.seen]
    assert texts == ["b 1", "b 1 a 0", "b 1 a 0 c 2", "a 0", "a 0 b 1", "a 0 b 1 c 2"]


def test_a_failed_judgement_is_dropped_and_counted():
    judges = scripted()
    prediction = dialogue([2, 4], ["fails x", "good 2"], [window(2, 6), window(2, 3)])
    report = streaming.report([prediction], judges, resamples=2)
    # The first window keeps its second score alone, the second one counts as silent.
    assert report.metrics["pauc"] == pytest.approx(100 * ((0.25 * 1 + 1.0 * 3) / 4 + 0.25) / 2)
    assert report.counts["failed_benchmark_judgements"] == 2
    assert report.counts["failed_quality_judgements"] == 1


@pytest.mark.parametrize(
    ("scored", "event_end", "kept"),
    [
        ([(1, 2.0), (5, 1.0)], None, [(1, 2.0), (5, 1.0)]),
        ([(1, 2.0), (5, 1.0)], 4.0, [(1, 2.0)]),
        ([(1, 2.0), (4, 1.0)], 4.0, [(1, 2.0), (4, 1.0)]),  # at the end is not after it
        ([(1, 2.0), (3, 1.0), (5, 1.0)], 4.0, [(1, 2.0), (3, 1.0), (5, 1.0)]),  # last, not best
        ([(1, 1.0), (5, 2.0), (6, 1.0), (7, 0.0)], 4.0, [(1, 1.0), (5, 2.0), (6, 1.0)]),
        ([(5, 2.0), (6, 0.0)], 4.0, [(5, 2.0), (6, 0.0)]),  # none within: the reference is 0
        ([(5, 0.0)], 4.0, [(5, 0.0)]),
    ],
)
def test_late_lower_scores_are_dropped(scored, event_end, kept):
    assert streaming.drop_late(scored, event_end) == kept


def test_the_report_counts_late_scores():
    prediction = dialogue([1, 5], ["good 2", "worse 0"], [window(0, 6, event_end=4.0)])
    report = streaming.report([prediction], scripted(), resamples=2)
    assert report.counts["late_scores_dropped"] == 1
    assert report.metrics["pauc_omega_1"] == pytest.approx(100.0)


def test_a_window_without_length_is_worth_its_last_score():
    instant = window(4, 4)
    assert paucs([dialogue([4], ["ok 1"], [instant])])[0.5] == pytest.approx(50.0)
    assert paucs([dialogue([4, 4], ["ok 1", "good 2"], [instant])])[0.0] == pytest.approx(100.0)
    assert paucs([dialogue([4], [SILENT], [instant])])[0.5] == 25.0


def test_a_reply_in_two_overlapping_windows_is_judged_for_each():
    windows = (
        Window(0.0, 5.0, "What?", "A red circle appears."),
        Window(4.0, 9.0, "What?", "The circle turns blue."),
    )
    prediction = Prediction("d", (4.5,), ("A red circle appears.",), windows)
    report = streaming.report([prediction], RULE, resamples=2)
    # Right for the first (0.45 s of 5 s shrunk by half remain uncovered), 0 for the second.
    first = (0.25 * 2.25 + 2.75) / 5
    second = (0.25 * 0.25) / 5
    assert report.metrics["pauc"] == pytest.approx(100 * (first + second) / 2, abs=1e-4)


# The worked example of facts 2: R = 1.25, one window, repetition at the end.
EXAMPLE = Prediction(
    id="example",
    times=(2.0, 4.0, 6.0, 8.0, 10.0),
    replies=("new", "half", SILENT, "full", "said before"),
    windows=(Window(4.0, 8.0, "q", "a"),),
    video="v",
    quality=((None,), (2.0,), (None,), (4.0,), (None,)),
    repetitive=(0.0, 0.0, None, 0.0, 1.0),
)


class Nobody:
    def ask(self, requests):
        raise AssertionError(f"asked about {requests}")


def test_the_worked_reward_from_logged_judgements_asks_nobody():
    judges = Judges(Nobody(), RuleJudge(levels=3))
    report = streaming.report([EXAMPLE], judges, resamples=2)
    metrics = report.metrics
    assert metrics["reward"] == pytest.approx(1.25)
    assert metrics["quality"] == pytest.approx(0.75)
    assert metrics["repetition"] == pytest.approx(0.25)
    assert metrics["out_of_window"] == pytest.approx(1.0)
    assert metrics["shared_prefix"] == 0.0
    assert metrics["repetition_rate"] == pytest.approx(25.0)
    assert metrics["out_of_window_rate"] == pytest.approx(100.0)
    assert metrics["non_silent_share"] == pytest.approx(80.0)
    assert metrics["reply_characters"] == pytest.approx((3 + 4 + 4 + 11) / 4)
    assert report.counts["failed_repetition_judgements"] == 0


def test_judgements_that_a_log_lacks_are_counted_as_failed():
    """Of the replies: silence, a reply out of the window and a text said again need none."""
    lacking = dialogue(
        [1, 4, 5, 6, 9],
        ["early", "half", "lost", "lost", SILENT],
        [window(4, 8), window(20, 30)],
        quality=((None, None), (2.0, None), (None, None), (None, None), (None, None)),
        repetitive=(0.0, None, 0.0, 1.0, None),
    )
    judges = Judges(Nobody(), RuleJudge(levels=3))
    report = streaming.report([lacking, EXAMPLE], judges, resamples=2)
    assert report.counts["failed_quality_judgements"] == 1
    assert report.counts["failed_repetition_judgements"] == 1


def test_reward_terms_are_means_over_dialogues_and_rates_over_replies():
    talker = dialogue([1, 2, 3, 4], ["a 4", "a 4", "a 4", "a 4"], [window(1, 4)])
    brief = dialogue([1, 2], ["b 4", SILENT], [window(1, 2)])
    metrics = streaming.report([talker, brief], scripted(), resamples=2).metrics
    assert metrics["repetition"] == pytest.approx((3 / 4 + 0) / 2)
    assert metrics["repetition_rate"] == pytest.approx(100 * 3 / 5)


def test_intervals_resample_videos():
    many = [
        Prediction(f"d{i}", (1.0,), ("yes 2" if i % 3 else SILENT,), (window(1, 2),), video=f"v{i}")
        for i in range(30)
    ]
    report = streaming.report(many, scripted())
    low, high = report.intervals["pauc"]
    assert low < report.metrics["pauc"] < high
    one_video = [Prediction(p.id, p.times, p.replies, p.windows, video="v") for p in many]
    assert streaming.report(one_video, scripted()).intervals == {}


def test_no_dialogue_at_all_is_an_empty_report():
    report = streaming.report([], scripted())
    assert report.counts["dialogues"] == 0
    assert report.metrics["pauc"] == 0.0


def official(prediction: Prediction, omega: float) -> list[float]:
    """Benchmark window values by facts 1.1-1.2 alone, in exact steps over breakpoints."""
    values = []
    for w in prediction.windows:
        seen, curve = [], []
        for time, reply in zip(prediction.times, prediction.replies, strict=True):
            text = reply.strip()
            if text == SILENT or not (w.start <= time <= w.end) or text in seen:
                continue
            seen.append(text)
            last = " ".join(seen).split()[-1]
            if last != "x":
                curve.append((time - w.start, min(float(last), 2.0)))
        if w.event_end is not None and len(curve) >= 2:
            cut = w.event_end - w.start
            early = [y for x, y in curve if x <= cut]
            floor = early[-1] if early else 0.0
            curve = [(x, y) for x, y in curve if not (x > cut and y < floor)]
        length = w.end - w.start
        if not curve:
            values.append(0.25)
        elif length == 0:
            values.append(curve[-1][1] / 2)
        else:
            edges = [(1 - omega) * x for x, _ in curve] + [length]
            heights = [y for _, y in curve]
            area = 0.5 * edges[0]
            area += math.fsum(
                h * (b - a) for h, a, b in zip(heights, edges[:-1], edges[1:], strict=True)
            )
            values.append(area / (length * 2))
    return values


def random_dialogue(rng: np.random.Generator) -> Prediction:
    """Times, windows and event ends on a grid of quarter seconds, so that they often coincide."""
    times = np.sort(rng.integers(0, 80, size=rng.integers(1, 9)) / 4)
    texts = [SILENT, SILENT, "a 0", "b 1", "c 2", "d 1.5", "e x", "NO REPLY. 1"]
    windows = []
    for _ in range(rng.integers(0, 4)):
        start, length = rng.integers(0, 80) / 4, rng.integers(0, 40) / 4
        event_end = rng.choice([None, start + rng.integers(0, 4 * length + 1) / 4])
        windows.append(window(start, start + length, event_end))
    return dialogue(times.tolist(), rng.choice(texts, size=len(times)).tolist(), windows)


def test_random_dialogues_agree_with_an_independent_reading():
    rng = np.random.default_rng(0)
    found = [random_dialogue(rng) for _ in range(2000)]
    points, counts = streaming.benchmark_points(found, Scripted(2.0))
    assert counts["late_scores_dropped"] > 20
    assert counts["failed_benchmark_judgements"] > 20
    for omega in (0.0, 0.5, 1.0):
        expected = [value for prediction in found for value in official(prediction, omega)]
        got = streaming.window_values(found, points, omega=omega)
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_the_report_round_trips_and_prints_its_rule(tmp_path):
    report = streaming.report([EXAMPLE], RULE, resamples=2)
    report.write(tmp_path / "r.json")
    assert Report.read(tmp_path / "r.json") == report
    assert "three-level judge" in report.rule
    assert BENCHMARKS[report.benchmark] is streaming


def test_one_judge_section_makes_both_judges(tmp_path):
    judges = make_judges({"kind": "rule", "cache": str(tmp_path / "judge.jsonl"), "timeout": 5.0})
    report = streaming.report([EXAMPLE], judges, resamples=2)
    assert report.counts["failed_benchmark_judgements"] == 0
    levels = [judge.judge.levels for judge in judges]
    assert levels == [5, 3]
    for judge in judges:
        judge.close()
