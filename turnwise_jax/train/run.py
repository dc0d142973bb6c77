"""``train(config)``: build everything a run needs, fit, export."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.pipeline import Grid
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.collect import make_collector, measure
from turnwise_jax.train.config import algorithm_settings, validate
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.loop import Run, fit
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.state import TrainState, create_state

CONFIG, REPORT, EXPORT = "config.json", "report.json", "policy"
# Fields that may differ when a run is resumed: they change neither batches nor updates.
RESUMABLE = ("run.keep_checkpoints", "run.checkpoint_every", "run.export", "data.workers")


def train(config: ConfigDict) -> tuple[Path, bool]:
    """Run or resume one training run.

    The same call on the same ``run.dir`` goes on where the newest checkpoint ends; a finished run
    returns at once.

    Args:
      config: from ``train.config``, with overrides applied.

    Returns:
      (run directory, finished). Unfinished means that SIGTERM asked for a checkpoint and an end.
      A finished run has its policy as a Hugging Face directory under ``policy/`` (if
      ``run.export``) and ``report.json``.

    Raises:
      InputError: a value, file, record or checkpoint that cannot be used.
    """
    validate(config)
    directory = Path(config.run.dir).absolute()
    claim(directory, config)
    if (directory / REPORT).exists():
        return directory, True
    policy = Policy.load(
        config.policy.checkpoint,
        dtype=config.policy.dtype,
        param_dtype=config.policy.param_dtype,
        remat=config.policy.remat,
    )
    dialogues, skipped = load_dialogues(
        config.data.source,
        config.data.path,
        root=config.data.root or None,
        user_turns=config.data.user_turns or None,
        on_bad_record=config.data.on_bad_record,
    )
    dialogues, grids, unreadable = measure(
        dialogues, policy, on_bad_record=config.data.on_bad_record
    )
    skipped += unreadable
    run = build(config, directory, policy, dialogues, grids, skipped)
    try:
        state, finished = fit(run)
    finally:
        run.collect.close()
    if finished:
        if config.run.export:
            export(policy, state, directory / EXPORT)
        write_report(directory, run, state, skipped)
    return directory, finished


def build(
    config: ConfigDict,
    directory: Path,
    policy: Policy,
    dialogues: Sequence[Dialogue],
    grids: Sequence[Sequence[Grid]],
    skipped: list[str],
) -> Run:
    """All parts of a run, from a loaded policy and its data."""
    batch_size = config.data.batch_size
    per_epoch = len(dialogues) // batch_size
    if not per_epoch:
        raise InputError(
            f"{len(dialogues)} usable records do not fill one batch of {batch_size}",
            file=config.data.path,
        )
    iterations = config.run.steps or config.run.epochs * per_epoch
    settings = algorithm_settings(config)
    algorithm = ALGORITHMS[config.algorithm.name]
    optimizer = make_optimizer(config.optimizer, iterations * config.optimizer.inner_epochs)
    state = create_state(policy.params, optimizer, config.policy.freeze)
    collect = make_collector(
        config, policy, dialogues, grids, skipped, algorithm, settings, iterations
    )
    rl = "rollout" in config
    return Run(
        directory=directory,
        state=state,
        collect=collect,
        step_arguments={
            "forward": Forward(
                policy.graphdef,
                config.rollout.temperature if rl else 1.0,
                config.policy.logprob_chunk,
            ),
            "loss": partial(algorithm.loss, settings=settings),
            "optimizer": optimizer,
            "accumulate": config.optimizer.accumulate,
        },
        iterations=iterations,
        inner_epochs=config.optimizer.inner_epochs,
        checkpoint_every=config.run.checkpoint_every,
        keep_checkpoints=config.run.keep_checkpoints,
    )


def claim(directory: Path, config: ConfigDict) -> None:
    """Write the run's config, or refuse a directory that belongs to a different run."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / CONFIG
    mine = json.loads(json.dumps(config.to_dict()))
    if path.exists():
        theirs = _flat(json.loads(path.read_text()))
        for field, value in _flat(mine).items():
            if field not in RESUMABLE and theirs.get(field, value) != value:
                raise InputError(
                    f"this run was started with {theirs[field]!r}, not {value!r}; "
                    "choose another --config.run.dir or remove the old one",
                    file=directory,
                    field=field,
                )
    replace_file(path, json.dumps(mine, indent=2) + "\n")


def export(policy: Policy, state: TrainState, directory: Path) -> None:
    """Write the policy as a Hugging Face directory, whole or not at all."""
    temporary = directory.with_name(directory.name + ".partial")
    shutil.rmtree(temporary, ignore_errors=True)
    policy.save(temporary, state.params)
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(temporary, directory)


def write_report(directory: Path, run: Run, state: TrainState, skipped: list[str]) -> None:
    """``report.json``: that the run is finished, and what it left out."""
    report = {
        "iterations": run.iterations,
        "updates": int(state.step),
        "skipped_updates": int(state.skipped),
        "skipped_records": sorted(set(skipped)),
    }
    replace_file(directory / REPORT, json.dumps(report, indent=2) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text)
    os.replace(temporary, path)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        out.update(_flat(value, name + ".") if isinstance(value, dict) else {name: value})
    return out
