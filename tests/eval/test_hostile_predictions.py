"""Prediction files that are odd or wrong: one clear line, or a number that means what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from turnwise_jax.data.records import Question, Target
from turnwise_jax.errors import InputError
from turnwise_jax.eval import ovo_bench, ovo_timing, streamingbench, streamingbench_polling
from turnwise_jax.eval.bootstrap import F1, Mean, Ratio, intervals
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.predictions import Prediction, read_predictions
from turnwise_jax.eval.run import evaluate

WINDOW = {"start": 3.0, "end": 9.0, "question": "What?", "answer": "A red car.", "event_end": 8.0}
LINE = {
    "id": "a",
    "times": [4.0, 8.0],
    "replies": ["NO REPLY", "A red car."],
    "windows": [WINDOW],
    "target": {"subset": "WEB"},
}


def scored(tmp_path, lines: list[dict], benchmark: str = "proactive_videoqa"):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = eval_config()
    config.benchmark, config.dir, config.resamples = benchmark, str(tmp_path / "out"), 20
    return evaluate(config, predictions=path)


@pytest.mark.parametrize("field", ["times", "windows", "quality"])
def test_a_number_that_no_float_holds_is_refused(tmp_path, field):
    line = {**LINE, "times": [4.0, 10**400]} if field == "times" else dict(LINE)
    if field == "windows":
        line["windows"] = [{**WINDOW, "end": 10**400}]
    if field == "quality":
        line["quality"] = [[None], [-(10**400)]]
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match="must be a finite number") as caught:
        read_predictions(path)
    assert caught.value.record == "line 1, id a"
    assert caught.value.field.startswith(field)


def test_json_that_nests_too_deep_is_refused(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("[" * 200_000 + "\n" + json.dumps(LINE) + "\n")
    with pytest.raises(InputError, match="is not JSON"):
        read_predictions(path)


@pytest.mark.parametrize(
    ("benchmark", "change", "field"),
    [
        ("proactive_videoqa", {"target": None}, "target"),
        ("proactive_videoqa", {"target": {"subset": "web"}}, "target.subset"),
        ("ovo_timing", {}, "target.subset"),
        ("qa", {}, "question"),
        ("streamingbench_proactive", {}, "target.times"),
    ],
)
def test_what_a_rule_lacks_is_said_with_the_file(tmp_path, benchmark, change, field):
    with pytest.raises(InputError) as caught:
        scored(tmp_path, [{**LINE, **change}], benchmark)
    error = caught.value
    assert (error.file, error.record, error.field) == (str(tmp_path / "p.jsonl"), "a", field)


def test_a_dialogue_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"p\.jsonl: record 'a': is there twice"):
        scored(tmp_path, [LINE, {**LINE, "id": "b"}, LINE])


def test_rollouts_of_training_logs_may_bear_one_name(tmp_path):
    lines = [{**LINE, "group": 0, "step": step} for step in (1, 2)]
    assert scored(tmp_path, lines, "streaming").counts["dialogues"] == 2


def chosen(reply: str, answer: str, name: str = "q", task: str = "EPM") -> Prediction:
    question = Question("Which?", answer, "multiple_choice", ("a", "b", "c", "d", "e"))
    return Prediction(name, (4.0,), (reply,), video=name, question=question, target=Target(task))


@pytest.mark.parametrize("reply", ["NO REPLY", " NO REPLY\n"])
def test_silence_is_no_letter_e(reply):
    """The letter is looked for anywhere in a response, and silence is spelt with two of them."""
    found = ovo_bench.report([chosen(reply, "E"), chosen("E", "E", "r")])
    assert found.metrics["accuracy"] == 50.0
    assert found.counts["silent_responses"] == 1
    assert found.counts["without_letter"] == 1


def test_silence_is_no_answer_to_the_plain_question():
    target = Target("poll", "q", (5.0,), "NO")
    poll = Prediction("q_p", (5.0,), ("Yes.",), target=target)
    output = Prediction("q_o", (5.0,), ("NO REPLY",), target=Target("output", "q", (5.0,), "NO"))
    found = streamingbench_polling.report([poll, output])
    assert (found.metrics["accuracy"], found.metrics["timing_accuracy"]) == (0.0, 100.0)


def test_draws_without_a_value_say_nothing_about_it():
    """One of 30 videos is of a task: a third of all draws lack it, and are no zeros."""
    names = [f"v{i}" for i in range(30)]
    member = np.arange(30) == 7
    rare = Ratio(np.where(member, 0.9, 0.0), member, 100.0)
    found = intervals({"rare": rare, "f1": F1(rare, rare), "mean": Mean([rare])}, names)
    assert all(interval == pytest.approx((90.0, 90.0)) for interval in found.values())
    two = Ratio(np.where(member, 0.9, 0.0) + np.where(np.arange(30) == 8, 0.4, 0.0), member)
    assert intervals({"two": two}, names)["two"][0] > 0.0


def test_what_no_record_has_a_value_for_has_no_interval():
    nothing = Ratio(np.zeros(3), np.zeros(3), 100.0)
    some = Ratio([1.0, 0.0, 1.0], np.ones(3))
    assert set(intervals({"nothing": nothing, "some": some}, ["a", "b", "c"])) == {"some"}


def test_a_task_of_one_video_has_its_value_as_interval():
    def streamed(number: int, task: str, time: float) -> Prediction:
        target = Target(task, str(number), (5.0,))
        return Prediction(str(number), (time,), ("now",), video=f"v{number}", target=target)

    found = ovo_timing.report(
        [*(streamed(n, "REC", 50.0) for n in range(20)), streamed(20, "CRR", 5.0)]
    )
    assert found.intervals["f1/CRR"] == (100.0, 100.0)
    assert found.intervals["f1/REC"] == (0.0, 0.0)


def test_a_set_of_empty_responses_has_no_accuracy_interval():
    found = streamingbench.report([chosen("", "A", name) for name in ("x", "y")])
    assert "accuracy" not in found.intervals
    assert found.intervals["accuracy_of_all"] == (0.0, 0.0)
    assert found.counts["empty_responses"] == 2


def test_replies_on_both_borders_of_a_window_count_and_one_past_it_does_not(tmp_path):
    """At 3 s of [3, 9] half the truth, at 9 s all of it; the same a moment later is outside."""
    on = {**LINE, "times": [3.0, 9.0], "replies": ["A red", "car."]}
    off = {**LINE, "times": [float(np.nextafter(3.0, 0.0)), float(np.nextafter(9.0, 10.0))]}
    off["replies"] = on["replies"]
    (tmp_path / "on").mkdir()
    (tmp_path / "off").mkdir()
    assert scored(tmp_path / "on", [on]).metrics["pauc_omega_1"] == 100.0
    assert scored(tmp_path / "off", [off]).metrics["pauc_omega_1"] == 25.0


def test_of_two_replies_at_one_time_the_second_one_counts(tmp_path):
    """What is judged there is both together, from the moment on at which both were said."""
    line = {**LINE, "times": [3.0, 3.0], "replies": ["A red", "car."]}
    found = scored(tmp_path, [line])
    assert found.counts["replies"] == 2
    assert found.metrics["pauc_omega_0"] == found.metrics["pauc_omega_1"] == 100.0
