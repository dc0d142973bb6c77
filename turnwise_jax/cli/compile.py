"""``turnwise compile``: what a training run needs of a named TPU slice, without a TPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from turnwise_jax.cli.flags import define_config, parse, require
from turnwise_jax.errors import InputError
from turnwise_jax.train.aot import report
from turnwise_jax.train.aot.chips import chip_of
from turnwise_jax.train.aot.compile import measure
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.aot.topology import slice_devices, slice_mesh
from turnwise_jax.train.mesh import AXES, Layout
from turnwise_jax.train.validate import check_fields

USAGE = """usage: turnwise compile --config=FILE.py --topology=v5e:4x4 [--config.field=value ...]

Compiles the run's own training step and rollout for a TPU slice with libtpu and prints what they
take of each device. Exits with status 1 if they do not fit. Without policy.checkpoint and data the
section `compile` of the config says what to assume.
"""
DOES_NOT_FIT = 1


def main(argv: Sequence[str]) -> None:
    values = parse(argv, USAGE, define)
    require(values, "topology")
    config, topology = values.config.copy_and_resolve_references(), values.topology
    devices = slice_devices(topology)
    chip = chip_of(devices[0].device_kind)
    mesh = slice_mesh(config.mesh, devices)
    config.mesh.update({axis: mesh.shape[axis] for axis in AXES})
    check_fields(config)
    plan = Plan.of(config, Layout(mesh))
    print(report.heading(plan, chip, topology), flush=True)
    programs = []
    for program in measure(plan, chip):
        programs.append(program)
        print(f"compiled {program.name} in {program.compile_seconds:.0f} s", file=sys.stderr)
    print(report.table(programs))
    print(report.verdict(programs, plan, chip))
    if values.output:
        _write(values.output, report.as_json(programs, plan, chip, topology))
    if not all(program.fits(chip) for program in programs):
        raise SystemExit(DOES_NOT_FIT)


def define(values: flags.FlagValues) -> None:
    define_config(values)
    flags.DEFINE_string(
        "topology", None, "TPU slice, such as v5e:2x4 or v5p:2x2x1", flag_values=values
    )
    flags.DEFINE_string("output", None, "file for all figures as JSON", flag_values=values)


def _write(file: str, found: dict) -> None:
    try:
        Path(file).write_text(json.dumps(found, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error}", file=file) from None
