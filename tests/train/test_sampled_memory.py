"""Rollouts that a checkpoint holds: dealt to as many processes as come, or sampled again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import toy
from test_sharing import together

from turnwise_jax.rollout.features import KeptFeatures
from turnwise_jax.rollout.stream import Rollouts
from turnwise_jax.train.batches import Clock
from turnwise_jax.train.sampled import Sampler


class Prompts(NamedTuple):
    """Of a batch of prompts what a sampler looks at."""

    ids: tuple[str, ...]
    shapes: str = "bucket"
    media: None = None
    depth: int = 2
    turn_mask: np.ndarray = np.ones((4, 2), bool)
    time: np.ndarray = np.zeros((4, 2), np.float32)


class Names:
    """A process's share of batches of four prompts, made of the batch's and the prompt's number."""

    def __init__(self, hosts):
        self.hosts, self.step = hosts, 0

    def __next__(self):
        names = [f"{self.step}.{i}" for i in range(4)][self.hosts.index :: self.hosts.count]
        self.step += 1
        return names, Prompts(tuple(names))

    def get_state(self):
        size = 4 // self.hosts.count
        plan = {"seed": 0, "shuffle": False, "dialogues": 8}
        plan |= {"batch_size": size, "process_count": self.hosts.count}
        return {"step": self.step, "records": {"next_index": self.step * size}, "plan": plan}

    def set_state(self, state):
        self.step = state["step"]


class Says:
    """Rollouts that depend on the prompt and on nothing else."""

    buckets = ("bucket",)
    keep_features = False
    encoder = SimpleNamespace(kept=KeptFeatures(0, 0))
    policy = SimpleNamespace(vocab=SimpleNamespace(im_end=7))

    def __init__(self):
        self.steps = []

    def rollout(self, params, prompts, *, group_size, seed, step, depth):
        self.steps.append(step)
        drawn = [np.random.default_rng(int(name.replace(".", ""))) for name in prompts.ids]
        shape, count = (group_size, 2, 3), len(prompts.ids)
        return Rollouts(
            prompts=prompts,
            ids=prompts.ids,
            tokens=np.stack([r.integers(0, 99, shape, np.int32) for r in drawn]),
            length=np.stack([r.integers(0, 3, shape[:2], np.int32) for r in drawn]),
            logp=np.stack([r.normal(size=shape).astype(np.float32) for r in drawn]),
            truncated=np.stack([r.random(shape[:2]) < 0.5 for r in drawn]),
            text=[[[f"{name} é"] * 2] * group_size for name in prompts.ids],
            turn_mask=prompts.turn_mask[:count],
            time=prompts.time[:count],
            marker=7,
        )


def named_sampler(hosts, engine) -> Sampler:
    loader = Names(hosts)
    options = {"skipped": [], "group_size": 2, "seed": 0, "batches": 3, "ahead": True}
    return Sampler(loader, engine, hosts=hosts, **options)


def stopped(hosts):
    """Position and memory of a sampler that stops after its first batch."""
    sampler = named_sampler(hosts, Says())
    sampler.take({}, 0, Clock())
    sampler.begin({}, 1, Clock())
    position = sampler.position()
    assert position["loader"]["step"] == 1  # though two batches have been read
    return position, sampler.memory()


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_what_was_sampled_ahead_is_dealt_to_as_many_processes_as_come(before, after):
    positions, memories = zip(*together(before, stopped), strict=True)
    for memory in memories:
        toy.assert_equal(memory, memories[0])

    def go_on(hosts):
        engine = Says()
        sampler = named_sampler(hosts, engine)
        sampler.seek(positions, memories[0], 1)
        taken = sampler.take({}, 1, Clock())
        assert (taken.lag, engine.steps) == (1, [])
        assert sampler.take({}, 2, Clock()).lag == 0
        return taken.rollouts

    parts = together(after, go_on)
    whole = Says().rollout(
        {}, Prompts(("1.0", "1.1", "1.2", "1.3")), group_size=2, seed=0, step=1, depth=2
    )
    for name in ("ids", "tokens", "length", "logp", "truncated", "text"):
        rows = zip(*(getattr(part, name) for part in parts), strict=True)
        for entry, other in zip(
            [e for row in rows for e in row], getattr(whole, name), strict=True
        ):
            np.testing.assert_array_equal(entry, other)


@pytest.mark.parametrize("turns", [2, 3])
def test_prompts_that_were_not_sampled_are_sampled_by_all_processes(monkeypatch, turns):
    """One process reads another prompt, or a bucket of more turns, than the run did before."""
    ((position, memory),) = together(1, stopped)
    monkeypatch.setattr(Names, "__next__", lambda names: changed(names, turns))

    def go_on(hosts):
        engine = Says()
        sampler = named_sampler(hosts, engine)
        sampler.seek([position], memory, 1)
        taken = sampler.take({}, 1, Clock())
        return taken.lag, engine.steps, taken.rollouts.ids

    first, second = together(2, go_on)
    assert first == (0, [1], ("1.0", "1.2"))
    assert second == (0, [1], ("1.1", "1.3" if turns > 2 else "9.9"))


def changed(names: Names, turns: int) -> tuple[list[str], Prompts]:
    ids = [f"1.{i}" for i in range(4)][names.hosts.index :: 2]
    if turns == 2 and names.hosts.index:
        ids[1] = "9.9"
    shape = (2, turns)
    return ids, Prompts(
        tuple(ids), turn_mask=np.ones(shape, bool), time=np.zeros(shape, np.float32)
    )
