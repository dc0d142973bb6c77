"""``run_curriculum(config)``: stages of training, each from the policy the one before ends with.

AVATAR's recipe (paper section "Experiments", figure 3) is such a curriculum: a supervised cold
start, then RL on visual, audio-visual and localisation questions. What it leaves in
``config.dir``::

    0_<name>/ 1_<name>/ ...    each stage's run as `turnwise train` leaves it, its policy in policy/
    summary.json summary.md    what the stages did, brought up to date after each
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.data.load import find_records
from turnwise_jax.errors import InputError, within
from turnwise_jax.files import write_text
from turnwise_jax.tables import markdown_table
from turnwise_jax.train.directory import EXPORT, NAME, REPORT, is_finished
from turnwise_jax.train.metrics import METRICS, TIMING, read_jsonl
from turnwise_jax.train.run import train
from turnwise_jax.train.signals import stop_on_sigterm
from turnwise_jax.train.validate import validate

SUMMARY, TABLE = "summary.json", "summary.md"
MEASURES = ("reward", "accuracy")  # what the table shows of a stage; of others the loss


def curriculum_config(stages: Mapping[str, ConfigDict]) -> ConfigDict:
    """A curriculum of training configs.

    Args:
      stages: name -> config from ``train.config``, in the order in which they are run. The first
        one's ``policy.checkpoint`` is what the curriculum starts from, that of the others is left
        empty; ``run.dir`` is always ``<dir>/<number>_<name>``.
    """
    return ConfigDict({"dir": "runs/curriculum", "order": tuple(stages), "stages": dict(stages)})


def run_curriculum(config: ConfigDict) -> tuple[Path, bool]:
    """Run or resume a curriculum.

    A finished stage is passed over, an unfinished one goes on from its newest checkpoint. SIGTERM
    stops between stages as it does within one.

    Args:
      config: from :func:`curriculum_config`, with overrides applied.

    Returns:
      (curriculum's directory, finished). Unfinished means that SIGTERM asked for an end.

    Raises:
      InputError: a value, file, record or checkpoint that cannot be used. Values and data files of
        all stages are looked at before the first one begins.
    """
    check(config)
    directory, stages = Path(config.dir), len(config.order)
    with stop_on_sigterm() as stop:
        for stage in range(stages):
            _, finished = train(stage_config(config, stage))
            if not finished:
                return directory, False
            write_summary(config, stage + 1)
            if stop.requested and stage + 1 < stages:
                return directory, False
    return directory, True


def check(config: ConfigDict) -> None:
    """Refuse what cannot work before anything is run.

    Raises:
      InputError: names the field, and the file if data is missing.
    """
    if not config.dir:
        raise InputError("must name a directory", field="dir")
    check_order(config)
    for stage, name in enumerate(config.order):
        with within(f"stages.{name}"):
            _check_stage(config, stage)


def check_order(config: ConfigDict) -> None:
    """Refuse an ``order`` that does not name stages.

    Raises:
      InputError: what is wrong with it.
    """
    if not config.order:
        raise InputError("must name at least one stage", field="order")
    if len(set(config.order)) < len(config.order):
        raise InputError("names a stage twice", field="order")
    for name in config.order:
        if name not in config.stages:
            known = ", ".join(config.stages)
            raise InputError(f"{name!r} is no stage; known: {known}", field="order")
        if not NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot be part of a directory's name", field="stages")


def _check_stage(config: ConfigDict, stage: int) -> None:
    given = config.stages[config.order[stage]]
    ready = stage_config(config, stage)
    validate(ready)
    if stage and given.policy.checkpoint:
        raise InputError(
            "must be empty: a later stage starts from the policy of the one before",
            field="policy.checkpoint",
        )
    if given.hosts.count != 1:
        raise InputError(
            "a curriculum runs in one process; on several hosts run the stages one by one",
            field="hosts.count",
        )
    if not given.run.export and stage + 1 < len(config.order):
        raise InputError("must be true: the next stage starts from it", field="run.export")
    if is_finished(Path(ready.run.dir), ready):
        return  # its data may be gone
    if not given.data.path:
        find_records(given.data.source, given.data.root)
    elif not Path(given.data.path).is_file():
        raise InputError("no such file", file=given.data.path, field="data.path")


def stage_directory(config: ConfigDict, stage: int) -> Path:
    """Where the logs, checkpoints and policy of a stage lie, counted from 0."""
    return Path(config.dir) / f"{stage}_{config.order[stage]}"


def exported(config: ConfigDict, stage: int) -> Path:
    """The policy that a finished stage leaves as a Hugging Face directory."""
    return stage_directory(config, stage) / EXPORT


def stage_config(config: ConfigDict, stage: int) -> ConfigDict:
    """The training config of a stage, counted from 0, with its directory and its beginning."""
    run = copy.deepcopy(config.stages[config.order[stage]])
    run.run.dir = str(stage_directory(config, stage))
    if stage:
        # Absolute, so that the same place named otherwise is no other run's beginning.
        run.policy.checkpoint = str(exported(config, stage - 1).absolute())
    return run


def write_summary(config: ConfigDict, stages: int) -> None:
    """``summary.json`` and ``summary.md`` of the first ``stages`` stages, which are finished."""
    found = [summary(config, stage) for stage in range(stages)]
    directory = Path(config.dir)
    write_text(directory / SUMMARY, json.dumps(found, indent=2) + "\n")
    write_text(directory / TABLE, markdown(found, len(config.order)))


def summary(config: ConfigDict, stage: int) -> dict[str, Any]:
    """What a finished stage did, from its own files.

    ``first`` and ``last`` are the means of every number in its log over the first and the last
    tenth of its iterations. ``seconds`` are those of its iterations, compiling and loading apart.
    """
    directory, run = stage_directory(config, stage), stage_config(config, stage)
    report = json.loads((directory / REPORT).read_text())
    log = read_jsonl(directory / METRICS)
    tenth = max(1, math.ceil(len(log) / 10))
    return {
        "stage": config.order[stage],
        "method": run.algorithm.name,
        "directory": directory.name,
        "checkpoint": run.policy.checkpoint if stage == 0 else str(exported(config, stage - 1)),
        "iterations": report["iterations"],
        "updates": report["updates"],
        "skipped_updates": report["skipped_updates"],
        "skipped_records": len(report["skipped_records"]),
        "seconds": sum(line["seconds"] for line in read_jsonl(directory / TIMING)),
        "first": _means(log[:tenth]),
        "last": _means(log[-tenth:]),
    }


def _means(log: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of every metric that is a number in one of the lines at least."""
    out: dict[str, float] = {}
    for name in sorted({name for line in log for name in line} - {"step"}):
        values = [line.get(name) for line in log]
        numbers = [float(v) for v in values if isinstance(v, int | float)]
        if numbers:
            out[name] = sum(numbers) / len(numbers)
    return out


def markdown(found: list[dict[str, Any]], stages: int) -> str:
    """The summaries of the finished stages as a table, and below it what its columns are.

    Args:
      found: from :func:`summary`, in order.
      stages: how many the whole curriculum has.
    """
    head = ("stage", "method", "iterations", "updates", "first to last tenth", "hours")
    table = markdown_table(head, map(_row, found), "llrrlr")
    notes = [
        "",
        f"{len(found)} of {stages} stages are finished. First to last tenth: means over the "
        "iterations of a stage.",
    ]
    left_out = [f"{e['stage']} {e['skipped_records']}" for e in found if e["skipped_records"]]
    if left_out:
        notes += ["", f"Records left out: {', '.join(left_out)}."]
    return "\n".join([table, *notes]) + "\n"


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    first, last = entry["first"], entry["last"]
    shown = [name for name in MEASURES if name in first and name in last]
    shown = shown or [name for name in ("loss",) if name in first and name in last]
    return (
        entry["stage"],
        entry["method"],
        str(entry["iterations"]),
        str(entry["updates"]),
        ", ".join(f"{name} {first[name]:.3f} to {last[name]:.3f}" for name in shown),
        f"{entry['seconds'] / 3600:.2f}",
    )
