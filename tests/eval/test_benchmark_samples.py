"""The sample annotations of every public benchmark, answered without a policy, through its rule."""

from __future__ import annotations

import pytest
import second_reading
from online_files import CLIP, read, write_online

from turnwise_jax.data.records import SILENCE, Dialogue
from turnwise_jax.eval import BENCHMARKS
from turnwise_jax.eval.generate import as_prediction
from turnwise_jax.eval.report import make_judges

FILES = {
    "proactive_videoqa": ["proactive_videoqa"],
    "ovo_timing": ["ovo_bench/ovo_bench_new.json"],
    "ovo_bench": ["ovo_bench/ovo_bench_new.json"],
    "streamingbench": [
        "streamingbench/questions_real.json",
        "streamingbench/Real_Time_Visual_Understanding.csv",
    ],
    "streamingbench_sqa": [
        "streamingbench/questions_sqa.json",
        "streamingbench/Sequential_Question_Answering.csv",
    ],
    "streamingbench_proactive": [
        "streamingbench/questions_proactive.json",
        "streamingbench/Proactive_Output.csv",
    ],
    "streamingbench_polling": [
        "streamingbench/questions_proactive.json",
        "streamingbench/Proactive_Output.csv",
    ],
}
CASES = [(source, file) for source, files in FILES.items() for file in files]


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    return write_online(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("online"))


def named(case: tuple[str, str]) -> str:
    return f"{case[0]}-{case[1].rpartition('.')[2]}"


@pytest.fixture(scope="module", params=CASES, ids=named)
def dialogues(request, top) -> tuple[str, list[Dialogue]]:
    """(benchmark, its sample's dialogues with two decisions a second)."""
    source, file = request.param
    benchmark = "streamingbench" if source == "streamingbench_sqa" else source
    clip = CLIP._replace(interval=0.5, turn_frames=1, sound=False)
    return benchmark, read(source, top / file, clip)


def reported(benchmark, dialogues, reply):
    """Metrics and counts, and what a predictions file would hold, of replies to every turn."""
    said = [as_prediction(d, [reply(d, turn.time) for turn in d.open_turns]) for d in dialogues]
    return (
        BENCHMARKS[benchmark].report(said, make_judges({"kind": "rule"}), resamples=2),
        [p.to_json() for p in said],
    )


def oracle(dialogue: Dialogue, time: float) -> str:
    """What earns all there is: the answer, when it is due."""
    if dialogue.question is not None:
        return dialogue.question.answer
    target = dialogue.target
    if target.subset in ("poll", "output"):
        due = abs(time - target.times[0]) <= 2.0
        return target.text if target.subset == "output" else ("Yes" if due else "No")
    if dialogue.windows:
        return next((w.answer for w in dialogue.windows if w.start <= time <= w.end), SILENCE)
    return target.text or "now" if time in target.times else SILENCE


def test_the_right_reply_at_the_right_time_earns_everything(dialogues):
    benchmark, found = dialogues
    report, _ = reported(benchmark, found, oracle)
    first = next(iter(report.metrics))
    if benchmark == "proactive_videoqa":
        assert {f"pauc/{name}" for name in ("EGO", "TV", "VAD", "WEB")} <= report.metrics.keys()
        values = [v for name, v in report.metrics.items() if name.startswith("pauc/")]
        assert min(values) > 25.0  # not 100: windows overlap, the rule judge reads other sentences
    elif benchmark == "ovo_timing":
        assert report.metrics["precision"] == 100.0
        assert report.counts["matched"] == report.counts["detections"] > 0
    else:
        assert report.metrics[first] == 100.0


def test_silence_earns_what_its_rule_says(dialogues):
    benchmark, found = dialogues
    report, _ = reported(benchmark, found, lambda dialogue, time: SILENCE)
    if benchmark == "proactive_videoqa":
        values = [v for name, v in report.metrics.items() if name.startswith("pauc")]
        assert values == [25.0] * 15
    else:
        assert not any(report.metrics.values())


READINGS = {
    "ovo_timing": second_reading.timing,
    "ovo_bench": second_reading.ovo,
    "streamingbench": second_reading.first_letters,
    "streamingbench_proactive": second_reading.proactive,
    "streamingbench_polling": second_reading.polling,
}


@pytest.mark.parametrize("dialogues", CASES[1:], ids=named, indirect=True)
def test_replies_at_odd_seconds_agree_with_the_second_reading(dialogues):
    """Of those without a judge; half the replies are right, the others one of three words."""
    benchmark, found = dialogues

    def odd(dialogue: Dialogue, time: float) -> str:
        return oracle(dialogue, time) if int(time) % 2 else ("B", "yes", "No")[len(dialogue.id) % 3]

    report, lines = reported(benchmark, found, odd)
    expected = READINGS[benchmark](lines)
    assert {n: report.metrics[n] for n in expected} == pytest.approx(expected, rel=1e-13)
