"""``turnwise compile``: what a training run needs of a named TPU slice, without a TPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from turnwise_jax.cli.flags import CURRICULUM, RUN, config_of, define_config, parse, require
from turnwise_jax.errors import InputError, within
from turnwise_jax.train.aot import report
from turnwise_jax.train.aot.chips import Chip, chip_of
from turnwise_jax.train.aot.compile import measure
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.aot.topology import slice_devices, slice_mesh
from turnwise_jax.train.curriculum import check_order
from turnwise_jax.train.mesh import AXES, Layout
from turnwise_jax.train.validate import check_fields

USAGE = """usage: turnwise compile --config=FILE.py --topology=v5e:4x4 [--config.field=value ...]

Compiles the run's own training step and rollout for a TPU slice with libtpu and prints what they
take of each device; of a curriculum one stage after another. Exits with status 1 if something does
not fit. Without policy.checkpoint and data the section `compile` of the config says what to assume.
"""
DOES_NOT_FIT = 1


def main(argv: Sequence[str]) -> None:
    values = parse(argv, USAGE, define)
    config = config_of(values, RUN, CURRICULUM).copy_and_resolve_references()
    require(values, "topology")
    devices, found = slice_devices(values.topology), {}
    chip = chip_of(devices[0].device_kind)
    for name, run in runs_of(config).items():
        if name:
            print(f"stage {name}", flush=True)
        with within(f"stages.{name}") if name else nullcontext():
            found[name] = compiled(run, devices, chip, values.topology)
    if values.output:
        _write(values.output, {"stages": found} if "stages" in config else found[""])
    if not all(figures["fits"] for figures in found.values()):
        raise SystemExit(DOES_NOT_FIT)


def runs_of(config: ConfigDict) -> dict[str, ConfigDict]:
    """The training runs of a config: a curriculum's by the names of their stages, or one without.

    All stages train the architecture of the first one's checkpoint, if there is one.
    """
    if "stages" not in config:
        return {"": config}
    check_order(config)
    runs = {name: config.stages[name] for name in config.order}
    first = runs[config.order[0]].policy.checkpoint
    for run in runs.values():
        run.policy.checkpoint = run.policy.checkpoint or first
    return runs


def compiled(
    config: ConfigDict, devices: Sequence[Any], chip: Chip, topology: str
) -> dict[str, Any]:
    """Compile one run's programs for these devices, print what they take, give all figures."""
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
    print(report.verdict(programs, plan, chip), flush=True)
    return report.as_json(programs, plan, chip, topology)


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
