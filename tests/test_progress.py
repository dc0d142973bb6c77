"""Progress of long work, on a terminal and in a file."""

from __future__ import annotations

import io
import sys

import pytest

from turnwise_jax import progress
from turnwise_jax.progress import ProgressBar


class Clock:
    """Seconds that pass only when told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_file_gets_a_line_every_15_seconds_and_one_at_the_end(capsys, clock):
    with ProgressBar("train", 4) as bar:
        for seconds, note in ((1, "a"), (20, "b"), (1, None), (1, "c")):
            clock.now += seconds
            bar.update(1, note)
    assert capsys.readouterr().err == "train: 2/4  21 s  b\ntrain: 4/4  23 s  c\n"


def test_the_last_line_is_not_said_twice(capsys, clock):
    with ProgressBar("compiling", 1) as bar:
        clock.now += 16
        bar.update()
    assert capsys.readouterr().err == "compiling: 1/1  16 s\n"


def test_nothing_to_do_says_nothing(capsys):
    with ProgressBar("train", 0):
        pass
    with ProgressBar("train", 5, done=5):
        pass
    assert capsys.readouterr().err == ""


def test_an_error_has_the_last_word(capsys):
    def fail() -> None:
        with ProgressBar("reading", 3) as bar:
            bar.update()
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with ProgressBar("run [1]", 8, done=2) as bar:
        bar.update(3, "loss [0.5]")
    shown = sys.stderr.getvalue()
    assert "5/8" in shown
    assert "run [1]" in shown
    assert "loss [0.5]" in shown
