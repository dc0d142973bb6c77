"""Compile a plan's programs and measure them: memory from libtpu, work from the model's sizes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from turnwise_jax.kernels.attention import causal_pairs
from turnwise_jax.models import flops
from turnwise_jax.models.decoder import cast_kernels
from turnwise_jax.models.params import named
from turnwise_jax.rollout.decode import PENDING
from turnwise_jax.rollout.desync import levels
from turnwise_jax.rollout.prompts import empty_batch
from turnwise_jax.rollout.shapes import Shapes
from turnwise_jax.train.aot.chips import Chip
from turnwise_jax.train.aot.other_batches import held, other_batches
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.aot.topology import Refusal, read_refusal
from turnwise_jax.train.run import trains

KINDS = ("arguments", "temporaries", "output", "aliased", "code")


@dataclass(frozen=True)
class Measured:
    """One program on one device of the slice.

    ``memory``: bytes by kind, empty if it was refused. ``resident``: bytes of the training state
    that stay on the device while the program runs, though it does not use them. ``batches``: bytes
    of batches of which that is so. ``flops``, ``bytes``: executed operations and traffic.
    ``seconds``: at best, by the roofline. ``compile_seconds``: lowering not counted.
    """

    name: str
    memory: dict[str, float]
    resident: float
    batches: float
    flops: float
    bytes: float
    seconds: float
    compile_seconds: float
    refusal: Refusal | None = None

    @property
    def total(self) -> float:
        """Bytes on the device while it runs; outputs that reuse arguments count once."""
        beside = self.resident + self.batches
        if self.refusal is not None:
            return self.refusal.needed + beside
        return sum(self.memory.values()) - 2 * self.memory["aliased"] + beside

    def fits(self, chip: Chip) -> bool:
        return self.refusal is None and self.total <= chip.usable


def measure(plan: Plan, chip: Chip) -> Iterator[Measured]:
    """Compile the plan's programs one by one.

    Raises:
      jax.errors.JaxRuntimeError: what libtpu says, if it is not that the program does not fit.
    """
    devices = plan.layout.mesh.size
    works = works_of(plan)
    residents, batches = residents_of(plan, works), other_batches(plan, works)
    for name, lowered in plan.lowerings():
        work = works[name]
        own = work.flops / devices
        traffic = work.weight_bytes / plan.layout.mesh.shape["tensor"] + work.other_bytes / devices
        began = time.perf_counter()
        memory: dict[str, float] = {}
        refusal = None
        try:
            memory = _memory(lowered.compile())
        except jax.errors.JaxRuntimeError as error:
            refusal = read_refusal(str(error))
            if refusal is None:
                raise
        yield Measured(
            name=name,
            memory=memory,
            resident=residents[name],
            batches=batches[name],
            flops=own,
            bytes=traffic,
            seconds=max(own / chip.flops, traffic / chip.bandwidth),
            compile_seconds=time.perf_counter() - began,
            refusal=refusal,
        )


def residents_of(plan: Plan, names: Iterable[str]) -> dict[str, float]:
    """Bytes of the training state that stay on a device beside the own arguments of programs."""
    state = plan.state
    fixed = held((state.opt_state, state.reference))
    rollouts = fixed + _replaced_bytes(plan)
    moving = rollouts + held(cast_kernels(state.params, plan.policy.dtype))
    moves = ("start", "narrow")  # of rollouts, but without their parameters
    return {name: moving if name.startswith(moves) else rollouts for name in names} | {
        "update": 0.0,
        "old_logprobs": fixed,
        "reference": held((state.opt_state, state.trained)),
        "encode_rows": fixed,
    }


def works_of(plan: Plan) -> dict[str, flops.Work]:
    """What each program executes, for rows of full length and replies of the most tokens.

    Of a loop without a barrier that is one turn of all its rows.
    """
    config, policy = plan.config, plan.policy
    trained = partial(trains, config)
    itemsize = jax.numpy.dtype(config.policy.dtype).itemsize
    media = flops.media_use(policy.config, plan.batch.media)
    count = partial(flops.work, policy.config, policy.params, itemsize=itemsize)

    passes = flops.update_passes(policy.params, trained, config.policy.remat)
    step, once = flops.Work(), flops.Work()
    for use in flops.rows_use(plan.batch):
        step, once = step + count(use, passes=passes), once + count(use)
    parts = config.optimizer.accumulate
    optimizer = flops.optimizer_bytes(named(policy.params), trained)
    update = step._replace(
        weight_bytes=step.weight_bytes * parts, other_bytes=step.other_bytes + optimizer
    )
    works = {"update": update, "old_logprobs": once}
    if not plan.keeps_features:
        works["update"] += count(media, passes=passes)
        works["old_logprobs"] += count(media)
    if plan.encodes_rows:
        works["encode_rows"] = count(media)
    if plan.fresh is None:
        works["reference"] = works["old_logprobs"]  # the same pass with other parameters
    else:
        (own,) = flops.rows_use(plan.fresh)
        works["reference"] = count(own)
        if not plan.keeps_features:
            works["reference"] += count(flops.media_use(policy.config, plan.fresh.media))
    if isinstance(plan.rooms, Shapes):
        shown = flops.media_use(policy.config, empty_batch(policy, plan.rooms).media)
        works |= _rollout_works(plan, plan.rooms, count, shown)
    return works


def _rollout_works(plan: Plan, room: Shapes, count: Any, media: flops.Use) -> dict[str, flops.Work]:
    rows = room.batch * plan.config.rollout.group_size
    prompts = room.batch * plan.layout.copies(room.batch)
    shown, seen = PENDING + room.turn, room.context + room.branch
    config = plan.policy.config.text
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim

    def turn(prompts: int, members: int, lanes: int) -> flops.Work:
        """A turn of so many rows of each prompt, shown to ``lanes`` of them at a time."""

        def reads(members: int) -> flops.Work:  # a context is read once for its rollouts
            slots = prompts * (members * room.branch + room.context)
            return flops.Work(other_bytes=2.0 * cached * slots)

        some, rows = prompts * lanes, prompts * members
        pairs = shown * seen + causal_pairs(shown)
        prefill = flops.Use(tokens=some * shown, pairs=some * pairs, heads=some)
        token = flops.Use(tokens=rows, pairs=rows * (seen + 1), heads=rows)
        showing = (count(prefill) + reads(lanes)).times(members // lanes)
        return showing + (count(token) + reads(members)).times(room.new_tokens - 1)

    works = {
        "encode": count(media),
        "begin": count(flops.Use(prompts * room.context, prompts * causal_pairs(room.context))),
    }
    members = rows // prompts
    if not plan.config.rollout.desynchronised:
        return {**works, "turn": turn(prompts, members, members)}
    sizes = levels(prompts, members, split=plan.layout.row_parts > 1)
    works |= {f"turns_{size.name}": turn(*size.grid, 1) for size in sizes}
    moves = ("start", *(f"narrow_{size.name}" for size in sizes[:-1]))
    return works | dict.fromkeys(moves, flops.Work())


def _memory(compiled: jax.stages.Compiled) -> dict[str, float]:
    found = compiled.memory_analysis()
    return {
        "arguments": float(found.argument_size_in_bytes),
        "temporaries": float(found.temp_size_in_bytes),
        "output": float(found.output_size_in_bytes),
        "aliased": float(found.alias_size_in_bytes),
        "code": float(found.generated_code_size_in_bytes),
    }


def _replaced_bytes(plan: Plan) -> float:
    """Parameters on one device that rollouts have in another dtype, and that stay beside it."""
    masters, cast = named(plan.state.params), cast_kernels(plan.state.params, plan.policy.dtype)
    return held([m for path, m in masters.items() if named(cast)[path].dtype != m.dtype])
