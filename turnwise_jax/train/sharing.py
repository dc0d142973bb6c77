"""What the processes of a run tell each other about a batch: what was said, and how it was judged.

Every process samples whole groups and asks the judge a share of the questions. From then on all of
them know the whole batch, in the order of a single process's, so that scores, advantages and logs
are the same wherever they are computed.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise_jax.data.pipeline import Example, Loader
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import Closing, Judge, Request, counters_of
from turnwise_jax.rollout.replay import Sample
from turnwise_jax.rollout.rows import row_size
from turnwise_jax.rollout.stream import Rollouts
from turnwise_jax.train.ahead import Ahead
from turnwise_jax.train.hosts import Hosts

_SAME = ("seed", "shuffle", "dialogues")  # of a loader's plan, whatever the number of processes

_SAMPLE_ARRAYS = {"tokens": np.int32, "logp": np.float32, "ref_logp": np.float32}


@dataclass(frozen=True, eq=False)
class Said:
    """The rollouts of a whole batch as judges and logs see them.

    Attributes:
      dialogues: the prompts, B of them.
      text: ``text[b][g][k]``. length: int32 ``[B, G, K]``. truncated: bool ``[B, G, K]``.
        turn_mask: bool ``[B, K]``; all as in ``Rollouts``.
      room: tokens of the longest row and actions of the busiest one.
      row_tokens: tokens of all rows.
      skipped: a line about each record that any process left out.
    """

    dialogues: list[Dialogue]
    text: list[list[list[str]]]
    length: np.ndarray
    truncated: np.ndarray
    turn_mask: np.ndarray
    room: tuple[int, int]
    row_tokens: int
    skipped: set[str]


def say(
    rollouts: Rollouts,
    examples: Sequence[Example],
    dialogues: Sequence[Dialogue],
    skipped: Sequence[str],
    hosts: Hosts,
    *,
    shared: bool = False,
) -> Said:
    """Every process's rollouts, told to all of them.

    Args:
      rollouts, examples: this process's share of the batch.
      dialogues: all records of the run, the same in every process; ``examples`` are of these.
      skipped: lines about records that this process left out.
      shared: rows share their contexts, which matters to ``room``.
    """
    place = {id(dialogue): index for index, dialogue in enumerate(dialogues)}
    own = [
        [place[id(example.dialogue)], text, length, truncated, mask]
        for example, text, length, truncated, mask in zip(
            examples,
            rollouts.text,
            rollouts.length.tolist(),
            rollouts.truncated.tolist(),
            rollouts.turn_mask.tolist(),
            strict=True,
        )
    ]
    told = hosts.gather(
        [own, row_size(rollouts, shared=shared), _row_tokens(rollouts), list(skipped)]
    )
    prompts, rooms, tokens, left_out = (list(part) for part in zip(*told, strict=True))
    index, text, length, truncated, mask = zip(*hosts.dealt(prompts), strict=True)
    return Said(
        dialogues=[dialogues[i] for i in index],
        text=list(text),
        length=np.asarray(length, np.int32),
        truncated=np.asarray(truncated, bool),
        turn_mask=np.asarray(mask, bool),
        room=(max(length for length, _ in rooms), max(actions for _, actions in rooms)),
        row_tokens=sum(tokens),
        skipped=set().union(*left_out),
    )


def _row_tokens(rollouts: Rollouts) -> int:
    """Tokens shown to every rollout, sampled ones, and markers after cut turns."""
    prompts, (count, group_size) = rollouts.prompts, rollouts.length.shape[:2]
    shown = prompts.context.length[:count].sum() + prompts.turns.length[:, :count].sum()
    return int(group_size * shown + rollouts.length.sum() + rollouts.truncated.sum())


class SharedJudge(Closing):
    """A judge that all processes ask the same, and of which each answers a share.

    A request always falls to the same process, which may have the answer in its cache.
    ``counters`` are sums over the processes.
    """

    def __init__(self, judge: Judge, hosts: Hosts):
        self.judge, self.hosts = judge, hosts
        self.counters = Counter(counters_of(judge))

    def ask(self, requests: Sequence[Request]) -> list[float | None]:
        """Answers in order, the same in every process."""
        falls_to = [self._share(request) for request in requests]
        own = [i for i, process in enumerate(falls_to) if process == self.hosts.index]
        before = counters_of(self.judge)
        answers = self.judge.ask([requests[i] for i in own]) if own else []
        done = counters_of(self.judge)
        done.subtract(before)
        counts = [[*name, count] for name, count in done.items()]
        told = self.hosts.gather([answers, counts])
        for _, counted in told:
            for kind, what, count in counted:
                self.counters[kind, what] += count
        given = [iter(answered) for answered, _ in told]
        return [next(given[process]) for process in falls_to]

    def close(self) -> None:
        if hasattr(self.judge, "close"):
            self.judge.close()

    def _share(self, request: Request) -> int:
        return zlib.crc32(json.dumps(request).encode()) % self.hosts.count


def pack_sample(sample: Sample) -> dict[str, Any]:
    """A sample as JSON, without loss."""
    fields = {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample)}
    return {
        name: base64.b64encode(value.tobytes()).decode() if name in _SAMPLE_ARRAYS else value
        for name, value in fields.items()
    }


def unpack_sample(packed: dict[str, Any]) -> Sample:
    """The sample that :func:`pack_sample` was given."""
    arrays = {
        name: np.frombuffer(base64.b64decode(packed[name]), dtype)
        for name, dtype in _SAMPLE_ARRAYS.items()
    }
    return Sample(**{**packed, **arrays})


def take_up(
    loader: Loader | Ahead,
    skipped: list[str],
    positions: Sequence[dict[str, Any]],
    iteration: int,
    hosts: Hosts,
) -> None:
    """Sets a process's loader to where a run stood.

    With as many processes as before, each goes on exactly. With more or fewer, the records of the
    first ``iteration`` batches are taken as read, which is exact unless some were left out on the
    way and later ones read in their place; then a line says so.

    Args:
      skipped: lines about records left out; set to what was known then.
      positions: what each process of the earlier run saved.
    """
    if len(positions) == hosts.count:
        own = positions[hosts.index]
        loader.set_state(own["loader"])
        skipped[:] = own["skipped"]
        return
    states = [position["loader"] for position in positions]
    loader.set_state(_moved(loader.get_state(), states[0], iteration))
    skipped[:] = dict.fromkeys(line for own in positions for line in own["skipped"])
    if hosts.main and any(s["records"] != _read(iteration, s["plan"]) for s in states):
        print(
            f"this run had {len(positions)} processes and has {hosts.count}: records left out "
            "earlier move the batches that follow, so that some records may come twice or not at "
            "all in this epoch",
            file=sys.stderr,
            flush=True,
        )


def _moved(own: dict[str, Any], other: dict[str, Any], iteration: int) -> dict[str, Any]:
    """The state behind ``iteration`` batches, if ``other`` is of the same records in all."""
    plan = {**own["plan"], **{name: other["plan"][name] for name in _SAME}}
    sizes = [p["batch_size"] * p["process_count"] for p in (other["plan"], plan)]
    if sizes[0] != sizes[1]:
        raise InputError(f"was {sizes[0]} in all, is {sizes[1]}", field="data.batch_size")
    return {"step": iteration, "records": _read(iteration, plan), "plan": plan}


def _read(iteration: int, plan: dict[str, Any]) -> dict[str, Any]:
    """What grain says of a process's records behind ``iteration`` batches, none left out."""
    return {"next_index": iteration * plan["batch_size"]}
