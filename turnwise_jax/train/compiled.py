"""The training step, jitted and compiled for every shape before the first batch comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from turnwise_jax.train.forward import make_logprob_step
from turnwise_jax.train.state import Batch, TrainState
from turnwise_jax.train.step import train_step

Update = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]


def compile_update(
    state: TrainState,
    shapes: Sequence[Batch],
    step_arguments: Mapping[str, Any],
    *,
    inner_epochs: int,
) -> Update:
    """All updates of one batch as one function, compiled for each of ``shapes``.

    Args:
      state: gives the parameters' shapes; not changed.
      shapes: an empty batch of every shape that can come.
      step_arguments: static arguments of ``train_step``.
      inner_epochs: updates per batch. With more than one, the old log-probs are fixed first.
    """
    once = inner_epochs == 1
    step = AheadOfTime(jax.jit(partial(train_step, **step_arguments, fresh=once), donate_argnums=0))
    old_logprobs = AheadOfTime(make_logprob_step(step_arguments["forward"]))
    for batch in shapes:
        step.compile(state, batch)
        if not once:
            old_logprobs.compile(state, batch)

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        if not once:
            batch = batch._replace(old_logp_NA=old_logprobs(state, batch))
        for _ in range(inner_epochs):
            state, metrics = step(state, batch)
        return state, metrics

    return update


class AheadOfTime:
    """A jitted function of (state, batch) whose variants are compiled before they are needed."""

    def __init__(self, jitted: Any):
        self._jitted = jitted
        self._compiled: dict[Any, Any] = {}

    def compile(self, state: TrainState, batch: Batch) -> None:
        self._compiled[self._key(batch)] = self._jitted.lower(state, batch).compile()

    def __call__(self, state: TrainState, batch: Batch) -> Any:
        return self._compiled[self._key(batch)](state, batch)

    @staticmethod
    def _key(batch: Batch) -> Any:
        return tuple(np.shape(x) for x in jax.tree.leaves(batch))
