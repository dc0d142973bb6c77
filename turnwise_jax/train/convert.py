"""Policies out of training checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.train.checkpoint import Checkpointer
from turnwise_jax.train.directory import CONFIG, export
from turnwise_jax.train.loop import CHECKPOINTS
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.run import load_policy
from turnwise_jax.train.state import create_state


def convert(
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
    run, output = Path(run), Path(output)
    if output.exists():
        raise InputError("is there already; choose another directory", file=output)
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
    like = create_state(policy.params, make_optimizer(config.optimizer, 1), config.policy.freeze)
    state, _ = checkpoints.restore(step, like)
    checkpoints.close()
    export(policy, state, output)
    return step
