"""Logs: strict JSON, torn lines, forgetting on resume, TensorBoard, the compile counter."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from events import scalars

from turnwise_jax.train.metrics import (
    BOARD,
    GROUPS,
    METRICS,
    TIMING,
    MetricsWriter,
    append_jsonl,
    count_compiles,
    read_jsonl,
    truncate_jsonl,
)


def strict(text: str):
    """JSON without NaN and Infinity, which Python's reader would let through."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def write_steps(directory, start: int, stop: int) -> None:
    writer = MetricsWriter(directory, start)
    for step in range(start, stop):
        writer.write(
            step,
            {"loss": 0.5 * step, "share": [step, None, math.nan], "gap": math.inf},
            {"seconds": 1.0},
            [{"id": f"{step}-{i}"} for i in range(2)],
        )
    writer.close()


def test_lines_are_strict_json(tmp_path):
    path = tmp_path / "log.jsonl"
    record = {
        "nan": math.nan, "inf": [np.float32(-np.inf), 1], "deep": {"x": (jnp.float32(2.5), None)},
        "count": np.int32(3), "flag": True, "text": "ä",
    }  # fmt: skip
    append_jsonl(path, [record])
    assert strict(path.read_text()) == {
        "nan": None, "inf": [None, 1], "deep": {"x": [2.5, None]}, "count": 3, "flag": True,
        "text": "ä",
    }  # fmt: skip


def test_torn_last_line_is_neither_read_nor_kept(tmp_path):
    path = tmp_path / "log.jsonl"
    append_jsonl(path, [{"step": 0}, {"step": 1}])
    with open(path, "a") as handle:
        handle.write('{"step": 2, "lo')
    assert read_jsonl(path) == [{"step": 0}, {"step": 1}]
    truncate_jsonl(path, 5)
    assert path.read_text() == '{"step": 0}\n{"step": 1}\n'


def test_missing_log_is_empty(tmp_path):
    assert read_jsonl(tmp_path / "none.jsonl") == []
    truncate_jsonl(tmp_path / "none.jsonl", 0)
    assert not (tmp_path / "none.jsonl").exists()


def test_every_step_is_readable_at_once(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    for step in range(3):
        writer.write(step, {"loss": 1.0}, {"seconds": 2.0})
        assert len(read_jsonl(tmp_path / METRICS)) == step + 1
        assert [(tag, s) for tag, s, _ in scalars(tmp_path / BOARD)].count(("loss", step)) == 1
    writer.close()


def test_tensorboard_holds_every_finite_number(tmp_path):
    write_steps(tmp_path, 0, 2)
    assert sorted(scalars(tmp_path / BOARD)) == [
        ("loss", 0, 0.0), ("loss", 1, 0.5),
        ("seconds", 0, 1.0), ("seconds", 1, 1.0),
        ("share/0", 0, 0.0), ("share/0", 1, 1.0),
    ]  # fmt: skip


def test_resume_forgets_what_came_after_the_checkpoint(tmp_path):
    """Steps 3 and 4 were written but not saved: they come again, once, everywhere."""
    write_steps(tmp_path, 0, 5)
    (events,) = (tmp_path / BOARD).iterdir()
    events.rename(events.with_name("events.out.tfevents.0.earlier"))  # named by the second else
    write_steps(tmp_path, 3, 7)
    whole = tmp_path / "whole"
    write_steps(whole, 0, 7)
    for name in (METRICS, GROUPS):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()
    assert [line["step"] for line in read_jsonl(tmp_path / TIMING)] == list(range(7))
    assert sorted(scalars(tmp_path / BOARD)) == sorted(scalars(whole / BOARD))


def test_resume_keeps_the_clock_of_earlier_steps(tmp_path):
    write_steps(tmp_path, 0, 2)
    before = read_jsonl(tmp_path / TIMING)
    write_steps(tmp_path, 2, 3)
    assert read_jsonl(tmp_path / TIMING)[:2] == before


def test_sync_works_before_anything_is_written(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.sync()
    writer.write(0, {"loss": 1.0}, {})
    writer.sync()
    writer.close()


@jax.jit
def add_one(x):
    return x + 1


def test_compiles_are_counted_by_name():
    few, many = np.zeros(3, np.float32), np.zeros(4, np.float32)
    add_one(few)
    with count_compiles() as compiles:
        add_one(few)
        assert compiles.count == 0
        add_one(many)
        assert compiles.names == ["jit(add_one)"]
        compiles.restart()
        assert compiles.count == 0
    add_one(np.zeros(5, np.float32))
    assert compiles.count == 0


def test_counting_ends_after_an_error():
    with pytest.raises(ZeroDivisionError), count_compiles() as compiles:
        raise ZeroDivisionError
    add_one(np.zeros(6, np.float32))
    assert compiles.count == 0
