"""Policies out of training checkpoints, and checkpoint directories from one form to another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from jax.typing import DTypeLike
from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.models.io import save_orbax
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.directory import CONFIG, export
from turnwise_jax.train.loop import CHECKPOINTS, restored
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.run import keeps_reference, load_policy
from turnwise_jax.train.state import create_state

FORMATS = ("hf", "orbax")


def convert_checkpoint(
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    form: str,
    dtype: DTypeLike,
) -> None:
    """Write a checkpoint directory, of either form, in the form asked for.

    Args:
      checkpoint: a directory that ``Policy.load`` reads.
      output: the directory to write, whole or not at all.
      form: one of ``FORMATS``.
      dtype: of the written weights.

    Raises:
      InputError: an unusable checkpoint, or the output is there already.
    """
    output = _new(output)
    policy = Policy.load(checkpoint, param_dtype=dtype)
    part = output.with_name(f".{output.name}.partial")
    shutil.rmtree(part, ignore_errors=True)
    if form == "orbax":
        save_orbax(part, policy.config, policy.params, source=checkpoint)
    else:
        policy.save(part)
    os.replace(part, output)


def convert_run(
    run: str | os.PathLike[str], output: str | os.PathLike[str], *, step: int | None = None
) -> int:
    """Write the policy of one checkpoint of a run as a Hugging Face directory.

    Tokenizer, preprocessor and model configuration come from the checkpoint that the run started
    from, weights from the run.

    Args:
      run: directory of a training run, finished or not.
      output: the directory to write, whole or not at all.
      step: which checkpoint; the newest if None.

    Returns:
      The step that was written.

    Raises:
      InputError: no such run or checkpoint, or the output is there already.
    """
    run, output = Path(run), _new(output)
    try:
        config = ConfigDict(json.loads((run / CONFIG).read_text()))
    except (OSError, ValueError) as error:
        raise InputError(f"is no training run: {error}", file=run) from error
    checkpoints = Checkpointer(run / CHECKPOINTS, read_only=True)
    step = checkpoints.latest_step() if step is None else step
    if step is None or step not in checkpoints.steps():
        there = ", ".join(map(str, checkpoints.steps())) or "none"
        raise InputError(f"has no checkpoint of step {step}; there are: {there}", file=run)
    policy = load_policy(config)
    like = create_state(
        policy.params,
        make_optimizer(config.optimizer, 1),
        config.policy.freeze,
        reference=keeps_reference(config),
    )
    state, _ = restored(checkpoints, step, like)
    checkpoints.close()
    export(policy, state, output)
    return step


def _new(output: str | os.PathLike[str]) -> Path:
    output = Path(output)
    if output.exists():
        raise InputError("is there already; choose another directory", file=output)
    return output
