"""What processes tell each other, with threads in their place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.pipeline import make_loader
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import Request, counters_of
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.mesh import by_host
from turnwise_jax.train.sharing import SharedJudge, take_up


class Threads(Hosts):
    """One of several processes, which are threads here."""

    def __init__(self, index: int, count: int, table: list[Any], barrier: threading.Barrier):
        self.index, self.count = index, count
        self._table, self._barrier = table, barrier

    def gather(self, value: Any) -> list[Any]:
        self._table[self.index] = json.dumps(value)
        self._barrier.wait(30)
        told = [json.loads(text) for text in self._table]
        self._barrier.wait(30)
        return told


def together(count: int, act: Callable[[Hosts], Any]) -> list[Any]:
    """``act`` in every process at once; its results in process order."""
    table, barrier = [None] * count, threading.Barrier(count)
    hosts = [Threads(index, count, table, barrier) for index in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(act, hosts))


class Counting:
    """Answers with the length of the reply; fails on "?"; counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.counters: dict[tuple[str, str], int] = {}

    def ask(self, requests):
        self.asked += requests
        name = ("quality", "cached")
        self.counters[name] = self.counters.get(name, 0) + len(requests)
        return [None if r.reply == "?" else float(len(r.reply)) for r in requests]


REQUESTS = [Request("quality", "q", "a", "", "x" * n) for n in range(20)]
REQUESTS[7] = Request("quality", "q", "a", "", "?")


def test_every_question_is_asked_once_and_every_process_has_all_answers():
    judges = [Counting() for _ in range(3)]

    def ask(hosts: Hosts) -> tuple[list[float | None], int]:
        judge = SharedJudge(judges[hosts.index], hosts)
        answers = judge.ask(REQUESTS)
        return answers, counters_of(judge)["quality", "cached"]

    expected = Counting().ask(REQUESTS)
    assert expected[7] is None
    assert together(3, ask) == [(expected, 20)] * 3
    shares = [judge.asked for judge in judges]
    assert all(0 < len(share) < 20 for share in shares)
    assert sorted(request for share in shares for request in share) == sorted(REQUESTS)
    again = [Counting() for _ in range(3)]
    judges[:] = again
    together(3, lambda hosts: SharedJudge(judges[hosts.index], hosts).ask(REQUESTS[::-1]))
    for share, other in zip(shares, again, strict=True):  # where the cache has the answer
        assert sorted(share) == sorted(other.asked)


def test_a_share_may_be_empty():
    def ask(hosts: Hosts) -> list[float | None]:
        return SharedJudge(Counting(), hosts).ask(REQUESTS[:1])

    assert together(2, ask) == [[0.0]] * 2


def test_one_process_agrees_with_itself():
    assert ALONE.gather("a") == ["a"]
    assert ALONE.any(True)
    assert not ALONE.any(False)
    assert ALONE.once(lambda: 3) == 3
    assert ALONE.dealt([[1, 2]]) == [1, 2]


def test_the_main_process_alone_acts_and_all_learn():
    def act(hosts: Hosts) -> tuple[int, bool]:
        return hosts.once(lambda: 10 + hosts.index), hosts.any(hosts.index == 1)

    assert together(2, act) == [(10, True)] * 2


# The data position.


@pytest.fixture(scope="module")
def dialogues(place):
    return load_dialogues("mmduet2_rl", place.world.rl("train"), root=place.world.root)[0]


@pytest.fixture(scope="module")
def spec(policy) -> FrameSpec:
    return policy.spec


def loader_of(dialogues, spec, hosts: Hosts, batch_size: int = 4):
    return make_loader(
        dialogues,
        spec,
        batch_size=batch_size // hosts.count,
        seed=3,
        steps=9,
        process_index=hosts.index,
        process_count=hosts.count,
        keep_bytes=2**26,
    )


def names(loader, steps: int) -> list[list[str]]:
    return [[example.dialogue.id for example in next(loader)] for _ in range(steps)]


def position_of(loader) -> dict[str, Any]:
    return json.loads(json.dumps({"loader": loader.get_state(), "skipped": ["a line"]}))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2), (2, 2)])
def test_another_number_of_processes_goes_on_with_the_same_batches(
    dialogues, spec, capsys, before, after
):
    """Across an epoch's end: 16 records are four batches."""
    whole = names(loader_of(dialogues, spec, ALONE), 6)

    def read(hosts: Hosts) -> dict[str, Any]:
        loader = loader_of(dialogues, spec, hosts)
        names(loader, 3)
        return position_of(loader)

    positions = together(before, read)

    def go_on(hosts: Hosts) -> list[list[str]]:
        loader, skipped = loader_of(dialogues, spec, hosts), []
        take_up(loader, skipped, positions, 3, hosts)
        assert skipped == ["a line"]
        return [hosts.dealt(hosts.gather(batch)) for batch in names(loader, 3)]

    for batches in together(after, go_on):
        assert batches == whole[3:]
    assert capsys.readouterr().err == ""


def test_records_left_out_are_said_to_move_the_batches(dialogues, spec, capsys):
    loader = loader_of(dialogues, spec, ALONE)
    names(loader, 3)
    position = position_of(loader)
    position["loader"]["records"]["next_index"] += 1

    def go_on(hosts: Hosts) -> int:
        loader = loader_of(dialogues, spec, hosts)
        take_up(loader, [], [position], 3, hosts)
        return len(names(loader, 1)[0])

    assert together(2, go_on) == [2, 2]
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "had 1 processes and has 2: records left out" in err


def test_position_of_other_batches_is_refused(dialogues, spec):
    position = position_of(loader_of(dialogues, spec, ALONE, batch_size=8))

    def go_on(hosts: Hosts) -> None:
        take_up(loader_of(dialogues, spec, hosts), [], [position], 0, hosts)

    with pytest.raises(InputError, match="was 8 in all, is 4"):
        together(2, go_on)


class Device:
    """Stands in for a device of some host."""

    def __init__(self, process_index: int, number: int):
        self.process_index, self.number = process_index, number


def test_devices_of_a_host_stay_together():
    kept = [Device(p, n) for p, n in ((0, 1), (0, 0), (1, 3), (1, 2))]
    torn = [kept[i] for i in (0, 2, 1, 3)]
    for given in (kept, torn):
        array = np.asarray(given, object).reshape(2, 2)
        ordered = by_host(array)
        assert ordered.shape == (2, 2)
        assert [d.number for d in ordered.flat] == [1, 0, 3, 2]
