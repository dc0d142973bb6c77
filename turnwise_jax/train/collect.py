"""Batches for the training step: given replies as they are, or rollouts of the current policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.data.pipeline import Example, Loader, make_loader
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.models.base import TokenRows
from turnwise_jax.rewards.judges import make_judge
from turnwise_jax.rewards.trajectory import Scores
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import PromptBatch, empty_batch, media_batch
from turnwise_jax.rollout.rows import TrainRows, context_rows, sft_rows, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import TURN_MULTIPLE, RowShapes, Shapes, shared
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train.config import reward_settings
from turnwise_jax.train.credit import Credit, credit_rule, empty
from turnwise_jax.train.data import Data
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.reading import TurnClasses, trajectories_of
from turnwise_jax.train.report import group_records, reward_metrics
from turnwise_jax.train.sharing import SharedJudge, say, take_up
from turnwise_jax.train.state import Batch, TrainState


@dataclass
class Collected:
    """A batch, the numbers that describe it, and one log record per rollout."""

    batch: Batch
    metrics: dict[str, Any]
    timing: dict[str, float]
    groups: list[dict[str, Any]]
    tokens: int


def make_collector(
    config: ConfigDict,
    policy: Policy,
    data: Data,
    algorithm: ModuleType,
    settings: Any,
    iterations: int,
    layout: Layout,
    hosts: Hosts = ALONE,
) -> SupervisedCollector | RolloutCollector:
    """The collector of a method that learns from given replies or from streaming dialogues.

    ``iterations``: batches in all. Each process makes its share of a batch: whole prompts, with all
    their rollouts.
    """
    batch_size = config.data.batch_size // hosts.count
    share = (layout.own_row_parts, hosts.index, hosts.count)
    loader = run_loader(config, policy, data, iterations, hosts)
    if config.algorithm.name == "sft":
        rooms = RowShapes.for_dialogues(
            data.dialogues,
            data.grids,
            policy,
            batch_size=batch_size,
            buckets=config.shapes.row_buckets,
        )
        classes = TurnClasses(settings, config.policy.replies, policy.vocab)
        buckets = shared(rooms, *share)
        return SupervisedCollector(policy, loader, data.skipped, buckets, classes, hosts)
    buckets = Shapes.for_dialogues(
        data.dialogues,
        data.grids,
        policy,
        batch_size=batch_size,
        new_tokens=config.rollout.max_new_tokens,
        buckets=config.shapes.rollout_buckets,
    )
    cache = judge_cache(config, hosts)
    kind, reward = reward_settings(config)
    return RolloutCollector(
        policy=policy,
        loader=loader,
        skipped=data.skipped,
        engine=StreamEngine(policy, run_sampling(config), shared(buckets, *share), layout),
        judge=SharedJudge(make_judge({**config.judge, "cache": cache}), hosts),
        judge_cache=cache,
        group_size=config.rollout.group_size,
        row_buckets=config.shapes.row_buckets,
        shared_context=config.shapes.shared_context,
        copies=layout.copies(batch_size, config.optimizer.accumulate),
        replies=config.policy.replies,
        score=partial(kind.score, settings=reward),
        blank=partial(empty, kind),
        num_windows=max(1, *(len(dialogue.windows) for dialogue in data.dialogues)),
        seed=config.run.seed,
        inner_epochs=config.optimizer.inner_epochs,
        credit=credit_rule(
            kind,
            reward,
            group_size=config.rollout.group_size,
            algorithm=algorithm,
            settings=settings,
            total_steps=iterations * config.optimizer.inner_epochs,
        ),
        reference=getattr(settings, "reference", False),
        dialogues=data.dialogues,
        hosts=hosts,
    )


def run_loader(
    config: ConfigDict, policy: Policy, data: Data, iterations: int, hosts: Hosts
) -> Loader:
    """This process's share of every batch of a run."""
    return make_loader(
        data.dialogues,
        policy.spec,
        sound=policy.template.sound,
        batch_size=config.data.batch_size // hosts.count,
        seed=config.run.seed,
        shuffle=config.data.shuffle,
        steps=iterations,
        workers=config.data.workers,
        process_index=hosts.index,
        process_count=hosts.count,
        on_bad_record=config.data.on_bad_record,
        skipped=data.skipped,
        keep_bytes=config.data.keep_mb * 2**20,
    )


def run_sampling(config: ConfigDict) -> Sampling:
    """How a run's rollouts choose tokens."""
    fields = config.rollout
    return Sampling(temperature=fields.temperature, top_k=fields.top_k, top_p=fields.top_p)


def judge_cache(config: ConfigDict, hosts: Hosts = ALONE) -> str:
    """Where a process keeps its judge's answers; "" where asking again is cheaper than looking up.

    One file per process: a shared disk may not keep two hosts' lines apart.
    """
    if config.judge.kind == "rule":
        return ""
    path = config.judge.cache or f"{config.run.dir}/judge_cache.jsonl"
    return path if hosts.main else f"{path}.{hosts.index}"


class SupervisedCollector:
    """Dialogues with given replies as rows."""

    def __init__(
        self,
        policy: Policy,
        loader: Loader,
        skipped: list[str],
        buckets: Sequence[RowShapes],
        classes: TurnClasses,
        hosts: Hosts = ALONE,
    ):
        self._policy, self._loader, self._skipped = policy, loader, skipped
        self._buckets, self._classes, self._hosts = buckets, classes, hosts

    def __call__(self, state: TrainState, iteration: int) -> Collected:
        began = time.perf_counter()
        examples = next(self._loader)
        waited = time.perf_counter() - began
        made = sft_rows(examples, self._policy, self._buckets)
        room = self._buckets.index(made[2])
        counts = [int(made[1].action_mask.sum()), int(made[1].valid.sum())]
        counts += self._classes.counts(examples)
        told = self._hosts.gather([room, counts, self._skipped])
        agreed = max(room for room, _, _ in told)
        if agreed > room:
            made = sft_rows(examples, self._policy, self._buckets[agreed:])
        media, rows, shapes = made
        trained, tokens, *turns = np.sum([counts for _, counts, _ in told], axis=0).tolist()
        weights = self._classes.weights(examples, turns, (shapes.batch, shapes.turns))
        batch = as_batch(media, rows, weights)
        metrics = {
            "trained_tokens": trained,
            "skipped_records": len(set().union(*(skipped for _, _, skipped in told))),
        }
        return Collected(batch, metrics, {"data_wait": waited}, [], tokens)

    def position(self) -> dict[str, Any]:
        return {"loader": self._loader.get_state(), "skipped": self._skipped}

    def memory(self) -> dict[str, np.ndarray]:
        """Nothing but the position."""
        return {}

    def seek(
        self, positions: list[dict[str, Any]], memory: dict[str, np.ndarray], iteration: int
    ) -> None:
        take_up(self._loader, self._skipped, positions, iteration, self._hosts)

    def close(self) -> None:
        self._loader.close()

    def shapes(self) -> list[Batch]:
        """One empty batch per bucket, for compiling ahead of the first step."""
        batches = []
        for s in self._buckets:
            media = media_batch([], self._policy, s)[0]
            rows = TrainRows.empty(s.batch, s.length, s.actions)
            batches.append(as_batch(media, rows, np.zeros((s.batch, s.turns), np.float32)))
        return batches

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Nothing but the update is compiled."""
        return []


@dataclass
class RolloutCollector:
    """Samples, judges and credits: lines 7-23 of the TurnWise paper's Algorithm 1."""

    policy: Policy
    loader: Loader
    skipped: list[str]
    engine: StreamEngine
    judge: Any
    judge_cache: str
    group_size: int
    row_buckets: int
    shared_context: bool
    copies: int
    replies: str
    score: Callable[..., Scores]
    blank: Callable[[int, int, int], Scores]
    num_windows: int
    seed: int
    inner_epochs: int
    credit: Callable[..., Credit]
    reference: bool
    dialogues: Sequence[Dialogue]
    hosts: Hosts

    def __call__(self, state: TrainState, iteration: int) -> Collected:
        clock = Clock()
        examples = next(self.loader)
        clock.lap("data_wait")
        prompts, depth = common_bucket(self.engine, examples, self.hosts)
        rollouts = self.engine.rollout(
            state.params,
            prompts,
            group_size=self.group_size,
            seed=self.seed,
            step=iteration,
            depth=depth,
        )
        clock.lap("rollout")
        said = say(
            rollouts,
            examples,
            self.dialogues,
            self.skipped,
            self.hosts,
            shared=self.shared_context,
        )
        trajectories = trajectories_of(said, self.replies, self._count_tokens)
        scores = self.score(
            trajectories,
            self.judge,
            num_turns=said.turn_mask.shape[1],
            num_windows=self.num_windows,
        )
        clock.lap("judge")
        credit = self.credit(scores, step=iteration * self.inner_epochs)
        length, actions = self._row_shape(rollouts.prompts.shapes, said.room)
        rows = train_rows(rollouts, length=length, actions=actions, shared=self.shared_context)
        advantage_BGK = credit.advantages[self.hosts.index :: self.hosts.count]
        batch = self._batch(rollouts.prompts, rows, advantage_BGK)
        clock.lap("credit")
        metrics = reward_metrics(said, scores.turns, credit, scores.stats)
        metrics["skipped_records"] = len(said.skipped)
        groups = group_records(trajectories, said.dialogues, scores.turns, credit)
        clock.lap("report")
        judged = scores.stats.total
        asked = {"judge_cached": judged.cached, "judge_retried": judged.retried}
        return Collected(batch, metrics, clock.laps | asked, groups, said.row_tokens)

    def position(self) -> dict[str, Any]:
        return {
            "loader": self.loader.get_state(),
            "skipped": self.skipped,
            "judge_cache": self.judge_cache,
        }

    def memory(self) -> dict[str, np.ndarray]:
        """Nothing but the position."""
        return {}

    def seek(
        self, positions: list[dict[str, Any]], memory: dict[str, np.ndarray], iteration: int
    ) -> None:
        take_up(self.loader, self.skipped, positions, iteration, self.hosts)

    def close(self) -> None:
        self.loader.close()
        self.judge.close()

    def shapes(self) -> list[Batch]:
        """One empty batch per pair of rollout and row bucket, for compiling ahead."""
        batches = []
        for s in self.engine.buckets:
            count, prompts = s.batch * self.group_size, empty_batch(self.policy, s, count=s.batch)
            for length, actions in row_buckets(s, self.row_buckets, shared=self.shared_context):
                rows = TrainRows.empty(count, length, actions)
                none = np.zeros((s.batch, self.group_size, s.turns), np.float32)
                batches.append(self._batch(prompts, rows, none))
        return batches

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Calls that compile the rollouts and the credit of every bucket."""

        def credit(count: int, turns: int) -> None:
            self.credit(self.blank(count, turns, self.num_windows), step=0)

        group = self.group_size * self.hosts.count
        sizes = {(bucket.batch * group, bucket.turns) for bucket in self.engine.buckets}
        rollouts = partial(self.engine.warm_up, state.params, group_size=self.group_size)
        return [rollouts, *(partial(credit, *size) for size in sorted(sizes))]

    def _batch(self, prompts: PromptBatch, rows: TrainRows, advantage_BGK: np.ndarray) -> Batch:
        """Rows with their credit; the update fills in what a reference policy says of them."""
        context = context_rows(prompts, copies=self.copies) if self.shared_context else None
        batch = as_batch(prompts.media, rows, advantage_BGK.reshape(len(rows.tokens), -1), context)
        return with_reference(batch) if self.reference else batch

    def _count_tokens(self, text: str) -> int:
        return len(self.policy.vocab.encode(text))

    def _row_shape(self, shapes: Shapes, needed: tuple[int, int]) -> tuple[int, int]:
        length, actions = needed
        for room in row_buckets(shapes, self.row_buckets, shared=self.shared_context):
            if length <= room[0] and actions <= room[1]:
                return room
        raise InputError(f"no row bucket holds {length} tokens and {actions} actions")


def common_bucket(
    engine: StreamEngine, examples: Sequence[Example], hosts: Hosts
) -> tuple[PromptBatch, int]:
    """This process's prompts in the bucket that all processes use, and the turns to run."""
    prompts = engine.prepare(examples)
    room = engine.buckets.index(prompts.shapes)
    rooms, depths = zip(*hosts.gather([room, prompts.depth]), strict=True)
    if max(rooms) > room:
        prompts = engine.prepare(examples, smallest=max(rooms))
    return prompts, max(depths)


def row_buckets(shapes: Shapes, count: int, *, shared: bool = False) -> list[tuple[int, int]]:
    """(T, A) for rows of these rollouts, the smallest first.

    The largest has room for replies of the full length at every turn, each further one for half as
    many sampled tokens; what is shown to the policy is the same in all. ``shared``: without the
    context, except for its last token.
    """
    most = shapes.turns * shapes.new_tokens
    shown = shapes.branch - most + (0 if shared else shapes.context)
    sampled = [most >> halvings for halvings in range(count)]
    kept = [a for a in reversed(sampled) if a >= shapes.turns] or [most]
    return [(-(-(shown + a) // TURN_MULTIPLE) * TURN_MULTIPLE, a) for a in kept]


def as_batch(
    media: Any, rows: TrainRows, advantage_NK: np.ndarray, context: TokenRows | None = None
) -> Batch:
    """Rows, advantages and what the rows share, under the names that the training step uses."""
    return Batch(
        media=media,
        tokens_NT=rows.tokens,
        positions_N3T=rows.positions,
        media_index_NT=rows.media_index,
        valid_NT=rows.valid,
        action_pos_NA=rows.action_pos,
        action_target_NA=rows.action_target,
        action_mask_NA=rows.action_mask,
        turn_id_NA=rows.turn_id,
        sampler_logp_NA=rows.sampler_logp,
        old_logp_NA=np.zeros_like(rows.sampler_logp),
        advantage_NK=np.asarray(advantage_NK, np.float32),
        context=context,
    )


def with_reference(batch: Batch) -> Batch:
    """A batch of fresh rows with room for log-probs under a reference policy."""
    count = len(batch.tokens_NT)
    fresh, one = np.zeros(count, bool), np.ones(count, np.float32)
    return batch._replace(mixture=Mixture(np.zeros_like(batch.sampler_logp_NA), fresh, one, one))


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now
