"""The cache of answers: nothing is asked twice, nothing is lost, whatever dies when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest
from judge_server import JudgeServer, in_turn, says, status

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.cache import CachedJudge
from turnwise_jax.rewards.judges.openai import OpenAIJudge
from turnwise_jax.rewards.judges.protocol import Request


class Clerk:
    """Answers by the length of the reply, fails on empty ones, and notes what it was asked."""

    name = "clerk"

    def __init__(self, version: int = 1):
        self.version = version
        self.asked: list[Request] = []
        self.closed = False

    def seen(self, request):
        return {"version": self.version, "request": list(request)}

    def ask(self, requests, on_answer=None):
        answers = []
        for index, request in enumerate(requests):
            self.asked.append(request)
            answers.append(float(len(request.reply)) if request.reply else None)
            if on_answer is not None:
                on_answer(index, answers[-1])
        return answers

    def close(self):
        self.closed = True


@pytest.fixture
def cache(tmp_path):
    """Opens caches on one file and closes them all."""
    opened = []

    def open_cache(judge=None, name="deep/down/judge.jsonl"):
        opened.append(CachedJudge(judge or Clerk(), tmp_path / name))
        return opened[-1]

    yield open_cache
    for each in opened:
        each.close()


def reading(path):
    return CachedJudge(Clerk(), path)


def said(reply: str) -> Request:
    return Request("quality", "q", "a", reply=reply)


def test_the_second_time_nothing_is_asked(cache):
    first = cache()
    assert first.ask([said("a"), said("abc")]) == [1.0, 3.0]
    second = cache()
    assert second.ask([said("abc"), said("ab"), said("a")]) == [3.0, 2.0, 1.0]
    assert second.judge.asked == [said("ab")]
    assert second.counters == Counter({("quality", "cached"): 2})
    assert len(second) == 3


def test_equal_requests_of_one_call_are_asked_once_and_all_answered(cache):
    judge, heard = cache(), []
    answers = judge.ask([said("ab")] * 3, on_answer=lambda *item: heard.append(item))
    assert answers == [2.0] * 3
    assert len(judge.judge.asked) == 1
    assert heard == [(0, 2.0), (1, 2.0), (2, 2.0)]


def test_failures_are_not_kept(cache):
    judge = cache()
    assert judge.ask([said(""), said("a")]) == [None, 1.0]
    assert judge.ask([said("")]) == [None]
    assert judge.judge.asked.count(said("")) == 2
    assert judge.path.read_text().count("\n") == 1


def test_the_key_is_all_that_the_judge_saw(cache):
    cache(Clerk(version=1)).ask([said("a")])
    other = cache(Clerk(version=2))
    other.ask([said("a"), Request("repetition", reply="a")])
    assert len(other.judge.asked) == 2


def test_the_lines_can_be_read(cache):
    judge = cache()
    judge.ask([Request("repetition", previous="old\n“ü”", reply="new")])
    (line,) = judge.path.read_text().splitlines()
    record = json.loads(line)
    assert len(record.pop("key")) == 64
    assert record == {
        "score": 3.0,
        "judge": "clerk",
        "kind": "repetition",
        "question": "",
        "answer": "",
        "previous": "old\n“ü”",
        "reply": "new",
    }


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_line_costs_only_itself(cache, cut):
    writer = cache()
    writer.ask([said("a"), said("ab"), said("abc")])
    whole = writer.path.read_bytes()
    writer.path.write_bytes(whole[:-cut])
    reader = cache()
    assert reader.ask([said("a"), said("ab"), said("abc")]) == [1.0, 2.0, 3.0]
    assert len(reader.judge.asked) == (1 if cut > 1 else 0)
    again = cache()
    assert again.ask([said("a"), said("ab"), said("abc")]) == [1.0, 2.0, 3.0]
    assert not again.judge.asked


def test_a_torn_first_line_and_damage_in_the_middle_are_skipped(cache):
    writer = cache()
    writer.ask([said("a")])
    line = writer.path.read_bytes()
    writer.path.write_bytes(b'{"ke')
    cache().ask([said("a")])
    assert writer.path.read_bytes() == b'{"ke\n' + line
    with writer.path.open("ab") as file:
        file.write(b'\xff\x00\n[1]\n{"key": "x"}\n{"score": 1}\nnull\n' + line[:30])
    reader = cache()
    assert reader.ask([said("a"), said("ab")]) == [1.0, 2.0]
    assert reader.judge.asked == [said("ab")]


def test_a_line_torn_by_another_process_later_costs_only_itself(cache):
    judge = cache()
    judge.ask([said("a")])
    with judge.path.open("ab") as file:
        file.write(b'{"key": "0123')
    judge.ask([said("ab")])
    reader = cache()
    assert reader.ask([said("a"), said("ab")]) == [1.0, 2.0]
    assert not reader.judge.asked


def test_what_is_no_cache_is_left_alone(tmp_path):
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"id": 1}\n')
    with pytest.raises(InputError, match="not a judge cache") as caught:
        CachedJudge(Clerk(), notes)
    assert caught.value.file == str(notes)
    assert notes.read_text() == '{"id": 1}\n'
    with pytest.raises(InputError, match=r"directory"):
        CachedJudge(Clerk(), tmp_path)
    with pytest.raises(InputError):
        CachedJudge(Clerk(), notes / "below" / "a" / "file")


def test_closing_closes_the_judge_too(cache):
    judge = cache()
    judge.close()
    judge.close()
    assert judge.judge.closed


WRITER = textwrap.dedent(
    """
    import sys, time
    from turnwise_jax.rewards.judges import CachedJudge, Request

    class Clerk:
        name = "clerk"
        def seen(self, request):
            return {"version": 1, "request": list(request)}
        def ask(self, requests, on_answer=None):
            for index, request in enumerate(requests):
                on_answer(index, float(len(request.reply) % 5))
                print(request.reply[:9], flush=True)

    path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    judge = CachedJudge(Clerk(), path)
    texts = [f"{name}-{n:06d}" + "x" * (n * 37 % 9000) for n in range(count)]
    judge.ask([Request("quality", reply=text) for text in texts])
    """
)


def write(path, name, count) -> subprocess.Popen:
    """A process that answers and stores `count` requests and prints each once it is stored."""
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def stored(path) -> Counter:
    """First characters of the replies of all whole lines."""
    found = Counter()
    for line in path.read_bytes().splitlines():
        try:
            found[json.loads(line)["reply"][:9]] += 1
        except ValueError:
            continue
    return found


def test_kill_nine_loses_no_answer_that_was_given(tmp_path):
    path = tmp_path / "judge.jsonl"
    given: list[str] = []
    for attempt in range(2):
        with write(path, f"k{attempt}", 5000) as process:
            given += [process.stdout.readline().strip() for _ in range(200)]
            os.kill(process.pid, signal.SIGKILL)
            process.stdout.read()
    assert not Counter(given) - stored(path)
    with reading(path) as reader:
        assert len(reader) >= 400


def test_several_processes_write_whole_lines(tmp_path):
    path = tmp_path / "judge.jsonl"
    processes = [write(path, f"p{n}", 300) for n in range(3)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    found = stored(path)
    assert found == Counter(f"p{n}-{m:06d}" for n in range(3) for m in range(300))
    assert path.read_bytes().count(b"\n") == 900


def test_a_hundred_thousand_answers_load_quickly(tmp_path):
    path = tmp_path / "judge.jsonl"
    record = {"key": "", "score": 2.0, "previous": "a red circle appears. " * 15, "reply": "ring"}
    with path.open("w") as file:
        for n in range(100_000):
            file.write(json.dumps({**record, "key": f"{n:064x}"}) + "\n")
    started = time.process_time()
    with reading(path) as judge:
        took = time.process_time() - started
        assert len(judge) == 100_000
    assert took < 2.0


def test_with_the_endpoint_judge_a_hit_makes_no_request(tmp_path):
    path = tmp_path / "judge.jsonl"
    script = in_turn(says("4"), status(500), says("2"))
    with JudgeServer(script) as server:
        for expected in ([3.0, None], [3.0, 1.0], [3.0, 1.0]):
            judge = OpenAIJudge(server.url, "m", concurrency=1, retries=0)
            with CachedJudge(judge, path) as cached:
                assert cached.ask([said("a"), said("b")]) == expected
    assert len(server.bodies) == 3


def test_answers_given_before_a_judge_stops_are_kept(tmp_path):
    path = tmp_path / "judge.jsonl"
    with JudgeServer(in_turn(says("4"), says("3"), status(401))) as server:
        cached = CachedJudge(OpenAIJudge(server.url, "m", concurrency=1), path)
        with pytest.raises(InputError):
            cached.ask([said("a"), said("b"), said("c"), said("d")])
        cached.close()
    with reading(path) as reader:
        assert len(reader) == 2
