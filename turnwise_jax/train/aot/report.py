"""What a compilation found, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise_jax.models.flops import count_parameters
from turnwise_jax.rollout.shapes import Shapes
from turnwise_jax.train.aot.chips import GIB, Chip
from turnwise_jax.train.aot.compile import KINDS, Measured
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.mesh import AXES
from turnwise_jax.train.run import samples_ahead

LISTED = 5  # largest buffers of a program that does not fit


def heading(plan: Plan, chip: Chip, topology: str) -> str:
    """What is compiled for what."""
    rows, length = plan.batch.tokens_NT.shape
    devices, parts = plan.layout.mesh.size, plan.config.optimizer.accumulate
    mesh = " x ".join(f"{axis} {plan.layout.mesh.shape[axis]}" for axis in AXES)
    size = count_parameters(plan.policy.params) / 1e9
    actions = plan.batch.action_pos_NA.shape[1]
    lines = [
        f"{plan.policy.config.model_type}, {size:.2f} billion parameters, for {topology}: {devices}"
        f" devices with {chip.usable / GIB:.2f} GiB each, mesh {mesh}",
        f"update: {rows} rows of {length} tokens, {actions} actions each{_shared(plan)},"
        f" in {parts} micro-batches; {_media(plan)}",
    ]
    if isinstance(plan.rooms, Shapes):
        room = plan.rooms
        lines.append(
            f"rollout: {room.batch} prompts x {plan.config.rollout.group_size}, context "
            f"{room.context} tokens, {room.turns} turns of {room.turn} tokens shown and up to "
            f"{room.new_tokens} sampled, cache {room.branch} slots a rollout"
        )
    return "\n".join(lines)


def _shared(plan: Plan) -> str:
    context = plan.batch.context
    if context is None:
        return ""
    count, length = context.tokens.shape
    return f" behind {count} contexts of {length} that they share"


def _media(plan: Plan) -> str:
    slots, media = plan.rooms.slots, plan.batch.media
    slices = sounds = 0
    if media is not None and media.vision is not None:
        slices = media.vision.valid.shape[0]
    if media is not None and media.audio is not None:
        sounds = media.audio.mel.shape[0]
    tokens = slots.tokens if slots else 0
    return f"{slices} vision slices of {tokens} tokens, {sounds} audio slices"


def table(programs: Sequence[Measured]) -> str:
    """GiB of one device by kind, operations and traffic of one device, seconds."""
    head = (
        "program",
        *KINDS,
        "resident",
        "batches",
        "total",
        "TFLOP",
        "GB moved",
        "roofline s",
        "compile s",
    )
    body = [head]
    for program in programs:
        sizes = [program.memory.get(kind) for kind in KINDS]
        body.append(
            (
                program.name,
                *("refused" if size is None else _gib(size) for size in sizes),
                _gib(program.resident),
                _gib(program.batches),
                _gib(program.total),
                f"{program.flops / 1e12:.3g}",
                f"{program.bytes / 1e9:.3g}",
                f"{program.seconds:.3g}",
                f"{program.compile_seconds:.0f}",
            )
        )
    widths = [max(len(row[i]) for row in body) for i in range(len(head))]
    rows = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in body
    ]
    return "\n".join(["GiB, TFLOP and GB of one device", *rows])


def verdict(programs: Sequence[Measured], plan: Plan, chip: Chip) -> str:
    """Whether all fits; if not, the largest buffers of what does not and what to change."""
    wrong = [program for program in programs if not program.fits(chip)]
    if not wrong:
        most = max(program.total for program in programs)
        return f"fits: at most {_gib(most)} of {_gib(chip.usable)} GiB"
    lines = []
    for program in wrong:
        lines.append(
            f"does not fit: {program.name} needs {_gib(program.total)} of "
            f"{_gib(chip.usable)} GiB a device"
        )
        buffers = program.refusal.buffers[:LISTED] if program.refusal else ()
        lines += [f"  {_gib(b.size)} GiB  {b.shape}  {b.source}" for b in buffers]
    return "\n".join([*lines, "try:", *(f"  {hint}" for hint in hints(wrong, plan))])


def hints(wrong: Sequence[Measured], plan: Plan) -> list[str]:
    """What would take less memory, the cheapest change first."""
    config, found = plan.config, []
    rows, parts = len(plan.batch.tokens_NT), plan.layout.row_parts
    updates = any(program.name == "update" for program in wrong)
    others = any(program.name != "update" for program in wrong)
    if updates and rows > parts * config.optimizer.accumulate:
        least = rows // parts
        found.append(f"--config.optimizer.accumulate={least}: one row a device at a time")
    if updates and config.policy.remat != "full":
        found.append("--config.policy.remat=full")
    if config.policy.frozen_dtype == "same" and config.policy.param_dtype == "float32":
        found.append("--config.policy.frozen_dtype=bfloat16: frozen parameters in half the bytes")
    if config.optimizer.moments_dtype == "float32":
        found.append("--config.optimizer.moments_dtype=bfloat16")
    if not config.policy.lora["rank"]:
        found.append("--config.policy.lora.rank=16: adapters alone are trained")
    if others:
        fields = ("data.batch_size", *(("rollout.group_size",) if "rollout" in config else ()))
        given = ", ".join(f"--config.{field}" for field in fields)
        found.append(f"{given}: fewer rows at a time, smaller caches")
    if samples_ahead(config):
        found.append("--config.rollout.ahead=0: one batch less on the devices")
    if plan.layout.mesh.shape["data"] > 1:
        found.append("--config.mesh.fsdp instead of data: parameters are split")
    return [*found, "a larger slice, or chips with more memory"]


def as_json(programs: Sequence[Measured], plan: Plan, chip: Chip, topology: str) -> dict[str, Any]:
    """All figures in bytes, operations and seconds."""
    return {
        "topology": topology,
        "model": plan.policy.config.model_type,
        "parameters": count_parameters(plan.policy.params),
        "devices": plan.layout.mesh.size,
        "mesh": {axis: plan.layout.mesh.shape[axis] for axis in AXES},
        "usable_bytes": chip.usable,
        "fits": all(program.fits(chip) for program in programs),
        "rooms": {k: v for k, v in plan.rooms._asdict().items() if k != "slots"},
        "rows": list(plan.batch.tokens_NT.shape),
        "accumulate": plan.config.optimizer.accumulate,
        "programs": [
            {
                "name": program.name,
                "fits": program.fits(chip),
                "bytes": {
                    **program.memory,
                    "resident": program.resident,
                    "batches": program.batches,
                    "total": program.total,
                },
                "flops": program.flops,
                "bytes_moved": program.bytes,
                "roofline_seconds": program.seconds,
                "compile_seconds": program.compile_seconds,
                "largest_buffers": [b._asdict() for b in program.refusal.buffers]
                if program.refusal
                else [],
            }
            for program in programs
        ],
    }


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
