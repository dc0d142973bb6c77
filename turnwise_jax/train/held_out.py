"""The loss of records that a supervised run never trains on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from turnwise_jax.algorithms.types import Actions, Terms, reduce_terms
from turnwise_jax.data.frame_cache import open_cache
from turnwise_jax.data.pipeline import Example, read_once
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.rows import blank_rows, sft_rows
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.train.batches import as_batch
from turnwise_jax.train.data import Data
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.hosts import Hosts
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.reading import TurnClasses
from turnwise_jax.train.state import Batch, TrainState, split_rows
from turnwise_jax.train.step import Loss
from turnwise_jax.train.supervised import SupervisedCollector

LossStep = Callable[[TrainState, Batch], Terms]


def make_held_out(
    config: ConfigDict,
    policy: Policy,
    data: Data,
    collect: SupervisedCollector,
    arguments: Mapping[str, Any],
    iterations: int,
    layout: Layout,
    hosts: Hosts,
) -> HeldOut | None:
    """The held-out loss of a supervised run; None where nothing is held out.

    Args:
      collect: of the run; its buckets have room for held-out records too.
      arguments: of ``train_step``.
      iterations: updates in all.
    """
    every = config.run.validate_every
    if not data.held_out:
        return None
    cache = open_cache(config.data.cache_dir, config.data.cache_gb)
    read = partial(
        read_once,
        spec=policy.spec,
        sound=policy.template.sound,
        workers=config.data.workers,
        ahead=collect.buckets[0].batch,
        cache=cache,
    )
    names = ("forward", "loss", "accumulate")
    return HeldOut(
        dialogues=data.held_out,
        read=read,
        skipped=data.skipped if config.data.on_bad_record == "skip" else None,
        policy=policy,
        buckets=collect.buckets,
        classes=collect.classes,
        step=make_loss_step(**{name: arguments[name] for name in names}, whole=layout.whole),
        layout=layout,
        hosts=hosts,
        every=every,
        iterations=iterations,
    )


def make_loss_step(
    forward: Forward, loss: Loss, accumulate: int, whole: NamedSharding | None = None
) -> LossStep:
    """Jitted (state, batch) -> the sums and counts of a batch's loss, no gradient.

    Args:
      accumulate: as in ``train_step``: micro-batches that are never in memory together.
      whole: where the result goes; None leaves it open.
    """

    @partial(jax.jit, out_shardings=whole)
    def loss_step(state: TrainState, batch: Batch) -> Terms:
        params = state.params
        media = forward.media(params, batch.media)

        def micro_batch(rows: Batch) -> Terms:
            logp = forward.logprobs(params, media, rows)
            actions = Actions(
                logp, logp, rows.sampler_logp_NA, rows.action_mask_NA, rows.turn_id_NA
            )
            return reduce_terms(jax.vmap(loss)(actions, rows.advantage_NK))

        return reduce_terms(lax.map(micro_batch, split_rows(batch, accumulate)))

    return loss_step


@dataclass
class HeldOut:
    """The loss of all held-out records together, as if they were one batch.

    Batches are taken in the order of the data and dealt out to the processes in turn. A last batch
    that is not full has empty rows, which count nothing. What is trained on is not touched.

    Attributes:
      dialogues: all of them, the same in every process.
      read: dialogues to their examples, or why there is none.
      skipped: where lines about unusable records go; None raises them.
      buckets, classes: of the run's supervised rows.
      every, iterations: updates between two losses, and of the whole run.
    """

    dialogues: Sequence[Dialogue]
    read: Callable[[Sequence[Dialogue]], Iterator[Example | InputError]]
    skipped: list[str] | None
    policy: Policy
    buckets: Sequence[RowShapes]
    classes: TurnClasses
    step: LossStep
    layout: Layout
    hosts: Hosts
    every: int
    iterations: int

    def due(self, done: int) -> bool:
        """Whether the loss is wanted after so many updates."""
        return done % self.every == 0 or done == self.iterations

    def __call__(
        self, state: TrainState, note: Callable[[str], None] = lambda _: None
    ) -> tuple[dict[str, float | None], dict[str, float | None]]:
        """Numbers for the logs, and what depends on the clock.

        Args:
          note: told how far this has come.

        Raises:
          InputError: a record that cannot be used, if those are not left out.
        """
        began = time.perf_counter()
        counts = self.classes.counts(self.dialogues)
        found: list[Terms] = []
        for number, examples in enumerate(self._parts(), 1):
            found.append(self.step(state, self.layout.place(self._batch(examples, counts))))
            jax.block_until_ready(found[-2:-1])  # so that batches do not pile up on the devices
            note(f"held out: {number} of {self._batches}")
        numbers = {"held_out_loss": _mean([(terms.total, terms.count) for terms in found])}
        for name in found[0].means:
            numbers[f"held_out_{name}"] = _mean([terms.means[name] for terms in found])
        return numbers, {"held_out_seconds": time.perf_counter() - began}

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Calls that compile the loss of every bucket."""
        return [partial(self._compile, state, shapes) for shapes in self.buckets]

    @property
    def _batches(self) -> int:
        return -(-len(self.dialogues) // (self.buckets[0].batch * self.hosts.count))

    def _parts(self) -> Iterator[list[Example]]:
        """This process's examples of each batch; of the last one there may be none."""
        own = self.dialogues[self.hosts.index :: self.hosts.count]
        records, size = self.read(own), self.buckets[0].batch
        for _ in range(self._batches):
            yield [x for x in islice(records, size) if self._usable(x)]

    def _usable(self, record: Example | InputError) -> bool:
        if isinstance(record, Example):
            return True
        if self.skipped is None:
            raise record
        if str(record) not in self.skipped:
            self.skipped.append(str(record))
        return False

    def _batch(self, examples: Sequence[Example], counts: Sequence[int]) -> Batch:
        """This process's rows in the bucket that all processes use."""
        made = sft_rows(examples, self.policy, self.buckets) if examples else None
        room = self.buckets.index(made[2]) if made else 0
        most = max(self.hosts.gather(room))
        shapes = self.buckets[most]
        if made and most > room:
            made = sft_rows(examples, self.policy, self.buckets[most:])
        media, rows = made[:2] if made else blank_rows(self.policy, shapes)
        shown = [example.dialogue for example in examples]
        return as_batch(
            media, rows, self.classes.weights(shown, counts, (shapes.batch, shapes.turns))
        )

    def _compile(self, state: TrainState, shapes: RowShapes) -> None:
        media, rows = blank_rows(self.policy, shapes)
        batch = as_batch(media, rows, np.zeros((shapes.batch, shapes.turns), np.float32))
        self.step.lower(state, self.layout.shapes(batch)).compile()


def _mean(parts: Sequence[tuple[Any, Any]]) -> float | None:
    """Sums over counts of all parts, divided once; None without any."""
    total, count = np.sum(np.asarray(jax.device_get(parts), np.float64), axis=0)
    return float(total / count) if count else None
