"""The parts of AVATAR's collector, from a config and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ml_collections import ConfigDict

from turnwise_jax.data.frame_cache import open_cache
from turnwise_jax.data.hints import HINTED, is_hinted
from turnwise_jax.data.kept import KeptExamples
from turnwise_jax.data.pictures import referred
from turnwise_jax.data.pipeline import Grid
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import make_judge
from turnwise_jax.rewards.qa import AnswerWeights
from turnwise_jax.rollout.hints import HintRule
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import ReplayBuffer
from turnwise_jax.rollout.shapes import RowShapes, Shapes, row_buckets, shared
from turnwise_jax.train.answer_media import AnswerMedia
from turnwise_jax.train.answers import AnswerCollector, Rooms, asked_forms, hint_name
from turnwise_jax.train.collect import judge_cache, run_engine, run_loader
from turnwise_jax.train.data import Data
from turnwise_jax.train.forward import Forward, make_reference_step
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.sampled import on_devices
from turnwise_jax.train.sharing import SharedJudge
from turnwise_jax.train.state import towers_fixed


def make_answer_collector(
    config: ConfigDict,
    policy: Policy,
    data: Data,
    settings: Any,
    iterations: int,
    layout: Layout,
    forward: Forward,
    hosts: Hosts = ALONE,
) -> AnswerCollector:
    """The collector of ``algorithms.avatar``; ``iterations`` batches in all.

    Raises:
      InputError: records whose statistics could not be told apart by their names.
    """
    check_names(data.dialogues)
    weights = AnswerWeights(**config.reward)
    asked = asked_forms(data.dialogues, hints=config.hints.use)
    grids = grids_of(asked, data)
    buckets = answer_buckets(config, policy, asked, grids, hosts.count)
    share = (layout.own_row_parts, hosts.index, hosts.count)
    judge, cache = None, ""
    if weights.stepwise:
        cache = judge_cache(config, hosts)
        inner = make_judge({**config.judge, "cache": cache}, picture=referred)
        judge = SharedJudge(inner, hosts)
    replay = config.replay
    fixed = towers_fixed(policy.params, config.policy.freeze)
    keeps = fixed and config.data.features_mb > 0
    engine = run_engine(config, policy, shared(buckets, *share), layout, keep_features=keeps)
    # What a prompt looks like with hints depends on what is learnt of the batches before it.
    prepare = (lambda _: None) if config.hints.use else on_devices(engine.prepare, layout)
    rooms = answer_rooms(config, policy, asked, grids, layout, hosts)
    kept = KeptExamples(
        {dialogue.id: dialogue for dialogue in data.dialogues},
        policy.spec,
        policy.template.sound,
        replay.keep_mb * 2**20,
        open_cache(config.data.cache_dir, config.data.cache_gb),
    )
    media = AnswerMedia(engine.encoder, kept, policy, rooms.mixed[0], hosts) if fixed else None
    return AnswerCollector(
        asked=asked,
        contexts={
            name: policy.template.lengths(asked[name], grids[name]).context for name in asked
        },
        loader=run_loader(config, policy, data, iterations, hosts, prepare),
        kept=kept,
        skipped=data.skipped,
        engine=engine,
        rooms=rooms,
        reference=make_reference_step(forward, layout.rows) if settings.reference else None,
        judge=judge,
        judge_cache=cache,
        weights=weights,
        hint_rule=hint_rule(config),
        stats=PromptStats(replay.window),
        buffer=ReplayBuffer(
            replay.capacity,
            shares=tuple(replay.tiers),
            draw=replay.draw,
            temperature=replay.temperature,
            minimum=replay.minimum,
            max_age=replay.max_age,
        ),
        settings=settings,
        group_size=config.rollout.group_size,
        replayed=config.data.batch_size * replay.samples,
        media=media,
        seed=config.run.seed,
        layout=layout,
        hosts=hosts,
    )


def hint_rule(config: ConfigDict) -> HintRule | None:
    """The rule of ``config.hints``; None where hints are not used."""
    fields = config.hints
    if not fields.use:
        return None
    return HintRule(
        reward_at_most=fields.reward_at_most,
        kl_at_most=fields.kl_at_most,
        zero_streak=fields.zero_streak,
        min_history=fields.min_history,
    )


def check_names(dialogues: Sequence[Dialogue]) -> None:
    """Refuse two records of one name, and one that is named like another with its hint."""

    def refuse(dialogue: Dialogue, message: str) -> NoReturn:
        raise InputError(message, file=dialogue.file, record=dialogue.id, field="id")

    seen: set[str] = set()
    for dialogue in dialogues:
        if is_hinted(dialogue.id):
            refuse(dialogue, f"must not end in {HINTED!r}: so are questions named with their hint")
        if dialogue.id in seen:
            refuse(dialogue, "another record has the same name; replay keeps statistics by name")
        seen.add(dialogue.id)


def grids_of(asked: Mapping[str, Dialogue], data: Data) -> dict[str, list[Grid]]:
    """The vision grids of every asked form; a hint changes none."""
    grids = {d.id: own for d, own in zip(data.dialogues, data.grids, strict=True)}
    hinted = {hint_name(d): grids[d.id] for d in data.dialogues if hint_name(d) in asked}
    return {**grids, **hinted}


def answer_buckets(
    config: ConfigDict,
    policy: Policy,
    asked: Mapping[str, Dialogue],
    grids: Mapping[str, Sequence[Grid]],
    processes: int,
) -> tuple[Shapes, ...]:
    """Rollout buckets for a process's prompts, in whatever form they are asked."""
    return Shapes.for_dialogues(
        list(asked.values()),
        [grids[name] for name in asked],
        policy,
        batch_size=config.data.batch_size // processes,
        new_tokens=config.rollout.max_new_tokens,
        buckets=config.shapes.rollout_buckets,
        lengths=config.shapes.rollout_lengths,
    )


def answer_rooms(
    config: ConfigDict,
    policy: Policy,
    asked: Mapping[str, Dialogue],
    grids: Mapping[str, Sequence[Grid]],
    layout: Layout,
    hosts: Hosts,
) -> Rooms:
    """Row buckets of a process's fresh samples, and of these with its share of replayed ones.

    Media are there once for each distinct prompt: at most one for every replayed sample. Where
    towers are not trained, fresh samples alone have the same media beside them.
    """
    prompts = config.data.batch_size // hosts.count
    replayed = prompts * config.replay.samples
    share = (layout.own_row_parts, hosts.index, hosts.count)

    def rooms(distinct: int, count: int) -> tuple[RowShapes, ...]:
        (widest,) = Shapes.for_dialogues(
            list(asked.values()),
            [grids[name] for name in asked],
            policy,
            batch_size=distinct,
            new_tokens=config.rollout.max_new_tokens,
        )
        fields = config.shapes
        made = row_rooms(widest, count, fields.row_buckets, fields.row_lengths)
        return shared(made, *share)

    fresh = prompts * config.rollout.group_size
    distinct = min(prompts + replayed, max(prompts, len(grids)))
    alone = distinct if towers_fixed(policy.params, config.policy.freeze) else prompts
    return Rooms(rooms(alone, fresh), rooms(distinct, fresh + replayed))


def row_rooms(
    widest: Shapes, count: int, buckets: int, lengths: Sequence[int] = ()
) -> tuple[RowShapes, ...]:
    """Shapes of ``count`` rows of answers to prompts of such a bucket, the smallest first."""
    return tuple(
        RowShapes(
            batch=count,
            length=length,
            actions=actions,
            turns=1,
            slices=widest.slices,
            slots=widest.slots,
            sounds=widest.sounds,
        )
        for length, actions in row_buckets(widest, buckets, lengths=lengths)
    )
