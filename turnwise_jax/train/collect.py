"""Batches for the training step: given replies as they are, or rollouts of the current policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from turnwise_jax.data.frame_cache import open_cache
from turnwise_jax.data.pipeline import Example, make_loader
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import make_judge
from turnwise_jax.rewards.trajectory import Scores, Trajectory
from turnwise_jax.rollout.features import Encoder
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import PromptBatch, empty_batch
from turnwise_jax.rollout.rows import TrainRows, context_rows, sft_rows, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import RowShapes, Shapes, row_buckets, shared
from turnwise_jax.rollout.stream import Rollouts, StreamEngine
from turnwise_jax.train.ahead import Ahead, Make
from turnwise_jax.train.batches import Clock, Collected, as_batch, credited, with_reference
from turnwise_jax.train.config import reward_settings
from turnwise_jax.train.credit import Credit, credit_rule, empty
from turnwise_jax.train.data import Data
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.padding import padding
from turnwise_jax.train.reading import TurnClasses, trajectories_of
from turnwise_jax.train.report import group_records, reward_metrics
from turnwise_jax.train.sampled import Sampler, on_devices
from turnwise_jax.train.sharing import Said, SharedJudge, say
from turnwise_jax.train.state import Batch, TrainState, towers_fixed
from turnwise_jax.train.supervised import SupervisedCollector

Prepare = Callable[[TrainState, Batch], Batch]


def make_collector(
    config: ConfigDict,
    policy: Policy,
    data: Data,
    algorithm: ModuleType,
    settings: Any,
    iterations: int,
    layout: Layout,
    hosts: Hosts = ALONE,
    prepare: Prepare | None = None,
) -> SupervisedCollector | RolloutCollector:
    """The collector of a method that learns from given replies or from streaming dialogues.

    ``iterations``: batches in all. Each process makes its share of a batch: whole prompts, with all
    their rollouts. ``prepare``: the update's, to be done while the judge is asked.
    """
    batch_size = config.data.batch_size // hosts.count
    share = (layout.own_row_parts, hosts.index, hosts.count)
    if config.algorithm.name == "sft":
        rooms = RowShapes.for_dialogues(
            *data.every,
            policy,
            batch_size=batch_size,
            buckets=config.shapes.row_buckets,
            lengths=config.shapes.row_lengths,
        )
        classes = TurnClasses(settings, config.policy.replies, policy.vocab)
        buckets = shared(rooms, *share)
        room = feature_bytes(config)
        encoder = Encoder(policy, layout, room=room) if room else None
        kept = encoder.kept if encoder else None
        make = partial(sft_rows, policy=policy, buckets=buckets, kept=kept)
        loader = run_loader(config, policy, data, iterations, hosts, rows_on_devices(make, layout))
        return SupervisedCollector(policy, loader, data.skipped, buckets, classes, hosts, encoder)
    buckets = Shapes.for_dialogues(
        data.dialogues,
        data.grids,
        policy,
        batch_size=batch_size,
        new_tokens=config.rollout.max_new_tokens,
        buckets=config.shapes.rollout_buckets,
        lengths=config.shapes.rollout_lengths,
    )
    cache = judge_cache(config, hosts)
    kind, reward = reward_settings(config)
    engine = run_engine(
        config,
        policy,
        shared(buckets, *share),
        layout,
        keep_features=towers_fixed(policy.params, config.policy.freeze),
    )
    read = on_devices(engine.prepare, layout)
    return RolloutCollector(
        policy=policy,
        sampler=Sampler(
            run_loader(config, policy, data, iterations, hosts, read),
            engine,
            skipped=data.skipped,
            group_size=config.rollout.group_size,
            seed=config.run.seed,
            batches=iterations,
            ahead=config.rollout.ahead > 0,
            hosts=hosts,
        ),
        skipped=data.skipped,
        engine=engine,
        judge=SharedJudge(make_judge({**config.judge, "cache": cache}), hosts),
        judge_cache=cache,
        group_size=config.rollout.group_size,
        row_rooms=partial(
            row_buckets,
            count=config.shapes.row_buckets,
            shared=config.shapes.shared_context,
            lengths=config.shapes.row_lengths,
        ),
        shared_context=config.shapes.shared_context,
        copies=layout.copies(batch_size, config.optimizer.accumulate),
        replies=config.policy.replies,
        score=partial(kind.score, settings=reward),
        blank=partial(empty, kind),
        num_windows=max(1, *(len(dialogue.windows) for dialogue in data.dialogues)),
        ahead=config.rollout.ahead > 0,
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
        prepare=prepare,
    )


def run_loader(
    config: ConfigDict, policy: Policy, data: Data, iterations: int, hosts: Hosts, make: Make
) -> Ahead:
    """This process's share of every batch of a run, with what ``make`` makes of it."""
    refused: list[str] = []
    loader = make_loader(
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
        skipped=refused,
        keep_bytes=config.data.keep_mb * 2**20,
        cache=open_cache(config.data.cache_dir, config.data.cache_gb),
    )
    threaded = config.data.workers > 0
    return Ahead(loader, make, refused=refused, skipped=data.skipped, threaded=threaded)


def run_engine(
    config: ConfigDict,
    policy: Policy,
    buckets: Sequence[Shapes] | Shapes,
    layout: Layout,
    *,
    keep_features: bool = False,
) -> StreamEngine:
    """The compiled rollouts of a run."""
    fields = config.rollout
    return StreamEngine(
        policy,
        run_sampling(config),
        buckets,
        layout,
        desynchronised=fields.desynchronised,
        show_at=fields.show_at,
        keep_features=keep_features,
        feature_bytes=feature_bytes(config),
    )


def feature_bytes(config: ConfigDict) -> int:
    """The host's memory for features of later epochs."""
    return config.data.features_mb * 2**20


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


@dataclass
class RolloutCollector:
    """Samples, judges and credits: lines 7-23 of the TurnWise paper's Algorithm 1."""

    policy: Policy
    sampler: Sampler
    skipped: list[str]
    engine: StreamEngine
    judge: Any
    judge_cache: str
    group_size: int
    row_rooms: Callable[[Shapes], list[tuple[int, int]]]
    shared_context: bool
    copies: int
    replies: str
    score: Callable[..., Scores]
    blank: Callable[[int, int, int], Scores]
    num_windows: int
    ahead: bool
    inner_epochs: int
    credit: Callable[..., Credit]
    reference: bool
    dialogues: Sequence[Dialogue]
    hosts: Hosts
    prepare: Prepare | None

    def __call__(self, state: TrainState, iteration: int) -> Collected:
        """The batch of an iteration.

        The judge answers while the devices are at what does not depend on it: the update's log-
        probs of other policies, and, sampled ahead, the next batch's rollouts.
        """
        clock = Clock()
        sampled = self.sampler.take(state.params, iteration, clock)
        examples, rollouts = sampled.examples, sampled.rollouts
        said = say(
            rollouts,
            examples,
            self.dialogues,
            self.skipped,
            self.hosts,
            shared=self.shared_context,
        )
        batch = self._rows(rollouts, said.room)
        room = padding(batch, self.hosts, copies=self.copies)
        actions_NA = batch.action_mask_NA
        if self.prepare is not None:
            batch = self.prepare(state, batch)
        clock.lap("rows")
        self.sampler.begin(state.params, iteration + 1, clock)
        trajectories, scores = self._judge(said, clock)
        credit = self.credit(scores, step=self._completed(state, iteration))
        own = slice(self.hosts.index, None, self.hosts.count)
        batch = credited(batch, actions_NA, credit.advantages[own], credit.terms.reward[own])
        clock.lap("credit")
        metrics = reward_metrics(said, scores.turns, credit, scores.stats)
        metrics["skipped_records"] = len(said.skipped)
        metrics["padding"] = room
        if self.ahead:
            metrics["off_policy"] = sampled.lag * self.inner_epochs
        groups = group_records(trajectories, said.dialogues, scores.turns, credit)
        clock.lap("report")
        judged = scores.stats.total
        asked = {"judge_cached": judged.cached, "judge_retried": judged.retried}
        prepared, timing = self.prepare is not None, clock.laps | asked | rollouts.use.timing()
        if self.engine.encoder.kept.room:
            timing["features_kept"] = float(sampled.kept)
        return Collected(batch, metrics, timing, groups, said.row_tokens, prepared)

    def position(self) -> dict[str, Any]:
        return {**self.sampler.position(), "judge_cache": self.judge_cache}

    def memory(self) -> dict[str, np.ndarray]:
        """What has been sampled ahead; nothing if nothing has."""
        return self.sampler.memory()

    def seek(
        self, positions: list[dict[str, Any]], memory: dict[str, np.ndarray], iteration: int
    ) -> None:
        self.sampler.seek(positions, memory, iteration)

    def close(self) -> None:
        self.sampler.close()
        self.judge.close()

    def shapes(self) -> list[Batch]:
        """One empty batch per pair of rollout and row bucket, for compiling ahead."""
        batches = []
        for s in self.engine.buckets:
            count = s.batch * self.group_size
            prompts = self.engine.as_kept(empty_batch(self.policy, s, count=s.batch))
            for length, actions in self.row_rooms(s):
                batches.append(self._batch(prompts, TrainRows.empty(count, length, actions)))
        return batches

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Calls that compile the rollouts and the credit of every bucket.

        Meanwhile the first batch is read.
        """
        self.sampler.start()

        def credit(count: int, turns: int) -> None:
            self.credit(self.blank(count, turns, self.num_windows), step=0)

        group = self.group_size * self.hosts.count
        sizes = {(bucket.batch * group, bucket.turns) for bucket in self.engine.buckets}
        rollouts = partial(self.engine.warm_up, state.params, group_size=self.group_size)
        return [rollouts, *(partial(credit, *size) for size in sorted(sizes))]

    def _judge(self, said: Said, clock: Clock) -> tuple[list[Trajectory], Scores]:
        """Trajectories and their scores, once the next batch is sampled too.

        Of the judge's time, ``judge_wait`` is what the sampling did not fill.
        """
        trajectories = trajectories_of(said, self.replies, self._count_tokens)
        scores = self.score(
            trajectories,
            self.judge,
            num_turns=said.turn_mask.shape[1],
            num_windows=self.num_windows,
        )
        clock.lap("judge")
        waited = clock.laps["judge"]
        ended = self.sampler.wait()
        if ended is not None:
            waited = min(waited, max(0.0, clock.now - ended))
            clock.lap("rollout")
        clock.laps["judge_wait"] = waited
        return trajectories, scores

    def _completed(self, state: TrainState, iteration: int) -> int:
        """Updates made before this iteration, refused ones not counted.

        The count waits for the update before, which credit, computed on the same device, does
        anyway.
        """
        return iteration * self.inner_epochs - int(jax.device_get(state.skipped))

    def _rows(self, rollouts: Rollouts, needed: tuple[int, int]) -> Batch:
        """Rollouts as rows of the smallest room that holds them, without credit."""
        length, actions = self._row_shape(rollouts.prompts.shapes, needed)
        rows = train_rows(rollouts, length=length, actions=actions, shared=self.shared_context)
        batch = self._batch(rollouts.prompts, rows)
        return batch._replace(old_logp_NA=rows.sampler_logp) if self.ahead else batch

    def _batch(self, prompts: PromptBatch, rows: TrainRows) -> Batch:
        """Rows whose advantages are 0; the update fills in what a reference policy says of them."""
        context = context_rows(prompts, copies=self.copies) if self.shared_context else None
        none_NK = np.zeros((len(rows.tokens), prompts.shapes.turns), np.float32)
        batch = as_batch(prompts.media, rows, none_NK, context)
        return with_reference(batch) if self.reference else batch

    def _count_tokens(self, text: str) -> int:
        return len(self.policy.vocab.encode(text))

    def _row_shape(self, shapes: Shapes, needed: tuple[int, int]) -> tuple[int, int]:
        length, actions = needed
        for room in self.row_rooms(shapes):
            if length <= room[0] and actions <= room[1]:
                return room
        raise InputError(f"no row bucket holds {length} tokens and {actions} actions")


def rows_on_devices(make: Make, layout: Layout) -> Make:
    """``sft_rows``, with the media put on the devices by the thread that lays them out."""

    def placed(examples: Sequence[Example]) -> tuple[Any, TrainRows, RowShapes]:
        media, rows, shapes = make(examples)
        return layout.split(media), rows, shapes

    return placed
