"""Speed of an evaluation: what is counted, on a clock of its own, and the timed comparison."""

from __future__ import annotations

import pytest
from benchmark_scripts import script as benchmark

from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.eval import throughput
from turnwise_jax.eval.throughput import Meter


@pytest.fixture
def clock(monkeypatch):
    """``clock[0]`` is now, in seconds."""
    now = [100.0]
    monkeypatch.setattr(throughput.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(scope="module")
def script():
    return benchmark("evaluation")


def shown(*videos: str) -> list[Dialogue]:
    turns = [Turn((Frame(video, 1.0),), "", 1.0) for video in videos]
    return [Dialogue(f"d{n}", (turn,)) for n, turn in enumerate(turns)]


def test_rates_are_counts_over_the_seconds_from_the_start(clock):
    meter = Meter()
    meter.start()
    clock[0] += 30.0
    meter.add(shown("a.mp4", "a.mp4", "b.mp4"), 12)
    found = meter.to_json()
    assert (found["dialogues"], found["videos"], found["decisions"]) == (3, 2, 12)
    assert found["seconds"] == 30.0
    assert found["videos_per_minute"] == 4.0
    assert found["dialogues_per_minute"] == 6.0
    assert found["decisions_per_second"] == 0.4
    assert "after_first_batch" not in found


def test_the_first_batch_is_told_apart_and_a_video_counts_once(clock):
    meter = Meter()
    meter.start()
    clock[0] += 50.0
    meter.add(shown("a.mp4", "b.mp4"), 4)
    clock[0] += 10.0
    meter.add(shown("b.mp4", "c.mp4"), 8)
    found = meter.to_json()
    assert found["videos"] == 3
    assert found["videos_per_minute"] == 3.0
    later = found["after_first_batch"]
    assert (later["seconds"], later["videos_per_minute"]) == (10.0, 6.0)
    assert later["decisions_per_second"] == 0.8
    assert meter.line() == (
        "3 videos, 12 decisions in 60.0 s: 3.0 videos/min, 0.2 decisions/s; "
        "after the first batch: 6.0 videos/min, 0.8 decisions/s"
    )


def test_a_meter_that_goes_on_adds_up(clock):
    meter = Meter()
    for _ in range(2):
        meter.start()
        clock[0] += 5.0
        meter.add(shown("a.mp4"), 10)
        clock[0] += 100.0  # between two runs
    assert meter.to_json()["decisions_per_second"] == 2.0


def test_the_comparison_alternates_and_takes_ratios_within_rounds(script):
    order = []

    def run(size: int, number: int) -> dict[str, float]:
        order.append((size, number))
        speed = float(size) * (number + 1)
        return {"videos_per_minute": 2 * speed, "decisions_per_second": speed}

    report = script.compare(script.alternate(run, [1, 8], 3))
    assert order == [(1, 0), (8, 0), (8, 1), (1, 1), (1, 2), (8, 2)]
    assert report["faster"] == {"batch_sizes": [1, 8], "median": 8.0, "least": 8.0, "most": 8.0}
    assert report["rates"][8]["decisions_per_second"] == {
        "median": 16.0, "least": 8.0, "most": 24.0,
    }  # fmt: skip
    assert "python benchmarks/evaluation.py" in script.__doc__
