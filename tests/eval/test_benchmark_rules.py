"""Public benchmarks: random prediction files against a second reading; scored again; refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import random_predictions
import second_reading

from turnwise_jax.cli.main import main
from turnwise_jax.data.records import Question, Target
from turnwise_jax.errors import InputError
from turnwise_jax.eval import BENCHMARKS, JUDGED
from turnwise_jax.eval.config import eval_config
from turnwise_jax.eval.predictions import Prediction, PredictionWriter, read_predictions
from turnwise_jax.eval.report import Judges, Report
from turnwise_jax.eval.run import evaluate

COUNTS = {
    "proactive_videoqa": 400,
    "ovo_timing": 400,
    "ovo_bench": 600,
    "streamingbench": 300,
    "streamingbench_proactive": 300,
    "streamingbench_polling": 120,
}


class Numbers:
    """A judge that reads the last word: its quality; None for ``x``. Repeats: words said before."""

    def ask(self, requests):
        return [
            repeats(r.previous, r.reply) if r.kind == "repetition" else grade(r.reply)
            for r in requests
        ]


def grade(text: str) -> float | None:
    last = text.split()[-1]
    return None if last == "x" else float(last)


def repeats(previous: str, reply: str) -> float | None:
    return None if reply.endswith("x") else float(set(reply.split()) <= set(previous.split()))


JUDGES = Judges(Numbers(), Numbers())
READINGS = {
    "proactive_videoqa": lambda lines: second_reading.pauc(lines, grade, repeats),
    "ovo_timing": second_reading.timing,
    "ovo_bench": second_reading.ovo,
    "streamingbench": second_reading.first_letters,
    "streamingbench_proactive": second_reading.proactive,
    "streamingbench_polling": second_reading.polling,
}


def write(path, predictions) -> list[dict]:
    """The predictions as a file, and what its lines hold."""
    with PredictionWriter(path) as writer:
        for prediction in predictions:
            writer.write(prediction)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("benchmark", COUNTS)
def test_random_files_agree_with_a_second_reading(benchmark, seed, tmp_path):
    made = random_predictions.predictions(benchmark, COUNTS[benchmark], seed)
    lines = write(tmp_path / "p.jsonl", made)
    said = read_predictions(tmp_path / "p.jsonl")
    report = BENCHMARKS[benchmark].report(said, JUDGES, resamples=2)
    expected = READINGS[benchmark](lines)
    found = {name: report.metrics[name] for name in expected}
    assert found == pytest.approx(expected, rel=1e-13, abs=0)
    assert len({round(value, 6) for value in expected.values()}) > 1
    assert report.benchmark == benchmark


@pytest.mark.parametrize("benchmark", COUNTS)
def test_predictions_scored_again_give_the_same_report(benchmark, tmp_path, monkeypatch):
    """By the command, from a config of the benchmark, and a second time from what it left."""
    file = tmp_path / "p.jsonl"
    write(file, random_predictions.predictions(benchmark, 30, 5))
    monkeypatch.chdir(tmp_path)
    config = eval_config(benchmark)
    config.update(dir="direct", resamples=60)
    direct = evaluate(config, predictions=file)
    (tmp_path / "c.py").write_text(
        "from turnwise_jax.eval.config import eval_config\n"
        f"def get_config(): return eval_config({benchmark!r})\n"
    )
    flags = ["--config=c.py", f"--predictions={file}", "--config.resamples=60"]
    assert main(["eval", *flags, "--config.dir=again"]) == 0
    assert Report.read("again/report.json") == direct == Report.read("direct/report.json")
    first = next(iter(direct.metrics))
    low, high = direct.intervals[first]
    assert low <= direct.metrics[first] <= high
    judge = "; judge: rule" if benchmark in JUDGED else ""
    assert direct.rule == BENCHMARKS[benchmark].RULE + judge
    assert not (tmp_path / "again" / "throughput.json").exists()


@pytest.mark.parametrize("benchmark", COUNTS)
def test_the_order_of_a_file_does_not_matter(benchmark):
    made = random_predictions.predictions(benchmark, 40, 6)
    rule = BENCHMARKS[benchmark]
    forward, backward = (rule.report(p, JUDGES, resamples=20).metrics for p in (made, made[::-1]))
    assert forward == pytest.approx(backward, rel=1e-12)


def test_left_out_records_are_counted_again(tmp_path):
    """What an evaluation could not use stands beside its predictions."""
    write(tmp_path / "predictions.jsonl", random_predictions.predictions("ovo_timing", 5, 0))
    (tmp_path / "skipped.txt").write_text("x.mp4: cannot be opened\ny.mp4: cannot be opened\n")
    config = eval_config("ovo_timing")
    config.dir = str(tmp_path / "again")
    report = evaluate(config, predictions=tmp_path / "predictions.jsonl")
    assert report.counts["skipped_dialogues"] == 2
    assert (tmp_path / "again" / "skipped.txt").read_text().count("\n") == 2


CHOICE = Question("q", "A", "multiple_choice", ("a", "b", "c", "d"))
ONE = Prediction("d7", (2.0,), ("A",), target=Target("EPM"), question=CHOICE)
REFUSED = [
    ("proactive_videoqa", replace(ONE, target=None), "target"),
    ("proactive_videoqa", replace(ONE, target=Target("CRR")), "target.subset"),
    ("ovo_timing", replace(ONE, target=Target("")), "target.subset"),
    ("ovo_bench", replace(ONE, target=Target("web")), "target.subset"),
    ("ovo_bench", replace(ONE, question=None), "question"),
    ("ovo_bench", replace(ONE, times=(1.0, 2.0), replies=("A", "B")), "replies"),
    ("ovo_bench", replace(ONE, target=Target("REC")), "question.answer"),
    ("ovo_bench", replace(ONE, target=Target("SSR")), "question.answer"),
    ("streamingbench", replace(ONE, target=Target("")), "target.subset"),
    ("streamingbench", replace(ONE, question=Question("q", "3", "numeric")), "question.answer"),
    ("streamingbench_proactive", replace(ONE, target=Target(text="3")), "target.times"),
    ("streamingbench_proactive", replace(ONE, target=Target(times=(3.0,))), "target.text"),
    ("streamingbench_polling", replace(ONE, target=Target("poll", "", (3.0,), "3")), "target.item"),
    (
        "streamingbench_polling",
        replace(ONE, target=Target("ask", "i", (3.0,), "3")),
        "target.subset",
    ),
]


@pytest.mark.parametrize(("benchmark", "prediction", "field"), REFUSED)
def test_what_a_rule_cannot_use_names_record_and_field(benchmark, prediction, field):
    with pytest.raises(InputError) as caught:
        BENCHMARKS[benchmark].report([prediction], JUDGES)
    assert (caught.value.record, caught.value.field) == ("d7", field)
