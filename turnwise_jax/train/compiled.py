"""The training step, jitted, and the compiling of everything before the first batch comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from turnwise_jax.progress import ProgressBar
from turnwise_jax.train.checkpoint import abstract
from turnwise_jax.train.forward import make_logprob_step, make_reference_step
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.state import Batch, TrainState
from turnwise_jax.train.step import train_step

Program = Callable[[], Any]
Lowering = Callable[[], jax.stages.Lowered]


class Update:
    """All updates of one batch as one function; the state is donated.

    Args:
      step_arguments: static arguments of ``train_step``.
      inner_epochs: updates per batch. With more than one, the old log-probs are fixed first.
      recorded: batches were sampled from an earlier policy and hold its log-probs as the old ones.
      layout: where batches go.
      shardings: where the state lives, a pytree like it; it stays there.
      reference: batches have a mixture, whose log-probs under the state's reference policy are
        taken here. Otherwise a mixture comes with them.
    """

    def __init__(
        self,
        step_arguments: Mapping[str, Any],
        *,
        inner_epochs: int,
        layout: Layout,
        shardings: TrainState,
        recorded: bool = False,
        reference: bool = False,
    ):
        self.inner_epochs = inner_epochs
        self._layout = layout
        fresh = inner_epochs == 1 and not recorded
        self._fixes_old = not fresh and not recorded
        self._step = jax.jit(
            partial(train_step, **step_arguments, fresh=fresh),
            donate_argnums=0,
            out_shardings=(shardings, layout.whole),
        )
        self.forward = step_arguments["forward"]
        self._old_logprobs = make_logprob_step(self.forward, layout.rows)
        self._reference = make_reference_step(self.forward, layout.rows) if reference else None

    def __call__(
        self, state: TrainState, batch: Batch, *, prepared: bool = False
    ) -> tuple[TrainState, dict[str, Any]]:
        """The next state and the metrics of the last inner epoch.

        ``prepared``: the batch comes from :meth:`prepare`, with other advantages.
        """
        batch = self._layout.place(batch) if prepared else self.prepare(state, batch)
        for _ in range(self.inner_epochs):
            state, metrics = self._step(state, batch)
        return state, metrics

    def prepare(self, state: TrainState, batch: Batch) -> Batch:
        """The batch on the devices, with log-probs of the policies that are not trained.

        Nothing here reads the advantages, and nothing waits for the devices.
        """
        batch = self._layout.place(batch)
        if self._reference is not None:
            ref_logp = self._reference(state, batch._replace(mixture=None))
            batch = batch._replace(mixture=batch.mixture._replace(ref_logp_A=ref_logp))
        if self._fixes_old:
            batch = batch._replace(old_logp_NA=self._old_logprobs(state, batch))
        return batch

    def programs(self, state: TrainState, batches: Sequence[Batch]) -> list[Program]:
        """Calls that compile the update for batches like these; a call of it then finds them."""
        shapes = jax.tree.map(abstract, state)
        return [
            partial(_compile, lower)
            for batch in batches
            for lower in self.lowerings(shapes, batch).values()
        ]

    def lowerings(self, state: TrainState, batch: Batch) -> dict[str, Lowering]:
        """By name, calls that lower the jitted functions of an update, from shapes alone."""
        functions = {"update": self._step}
        if self._fixes_old:
            functions["old_logprobs"] = self._old_logprobs
        shapes = self._layout.shapes(batch)
        lowerings = {name: partial(f.lower, state, shapes) for name, f in functions.items()}
        if self._reference is not None:
            fresh = shapes._replace(mixture=None)
            lowerings["reference"] = partial(self._reference.lower, state, fresh)
        return lowerings


def compile_all(programs: Sequence[Program]) -> None:
    """Compile everything that can come, showing progress."""
    with ProgressBar("compiling", len(programs)) as bar:
        for program in programs:
            program()
            bar.update()


def _compile(lower: Lowering) -> None:
    lower().compile()
