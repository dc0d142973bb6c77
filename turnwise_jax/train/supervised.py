"""Batches of given replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from turnwise_jax.rollout.features import Encoder, SliceFeatures
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import media_batch
from turnwise_jax.rollout.rows import blank_rows, sft_rows
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.train.ahead import Ahead
from turnwise_jax.train.batches import Collected, as_batch
from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.padding import padding
from turnwise_jax.train.reading import TurnClasses
from turnwise_jax.train.sharing import take_up
from turnwise_jax.train.state import Batch, TrainState


class SupervisedCollector:
    """Dialogues with given replies as rows, which the loader makes by ``sft_rows``.

    Attributes:
      buckets: of rows, the smallest first.
      classes: what decisions weigh.
    """

    def __init__(
        self,
        policy: Policy,
        loader: Ahead,
        skipped: list[str],
        buckets: Sequence[RowShapes],
        classes: TurnClasses,
        hosts: Hosts = ALONE,
        encoder: Encoder | None = None,
    ):
        """``encoder``: has the features of the updates, and keeps them; None: these encode."""
        self._policy, self._loader, self._skipped = policy, loader, skipped
        self.buckets, self.classes, self._hosts = buckets, classes, hosts
        self._encoder = encoder

    def __call__(self, state: TrainState, iteration: int) -> Collected:
        began = time.perf_counter()
        examples, made = next(self._loader)
        waited = time.perf_counter() - began
        room, kept = self.buckets.index(made[2]), self._encoder.kept if self._encoder else None
        held = kept is not None and kept.holds(examples, made[2])
        counts = [int(made[1].action_mask.sum()), int(made[1].valid.sum())]
        dialogues = [example.dialogue for example in examples]
        counts += self.classes.counts(dialogues)
        rooms, all_counts, skipped, all_held = zip(
            *self._hosts.gather([room, counts, self._skipped, held]), strict=True
        )
        held = all(all_held)
        if max(rooms) > room or held != isinstance(made[0], SliceFeatures):
            buckets = self.buckets[max(rooms) :]
            made = sft_rows(examples, self._policy, buckets, kept if held else None)
        media, rows, shapes = made
        timing = {"data_wait": waited}
        if self._encoder is not None:
            media = self._encoder(state.params, media)
            self._encoder.kept.note(examples, shapes, media)
            timing["features_kept"] = float(held)
        trained, tokens, *turns = np.sum(all_counts, axis=0).tolist()
        weights = self.classes.weights(dialogues, turns, (shapes.batch, shapes.turns))
        batch = as_batch(media, rows, weights)
        metrics = {
            "trained_tokens": trained,
            "skipped_records": len(set().union(*skipped)),
            "padding": padding(batch, self._hosts),
        }
        return Collected(batch, metrics, timing, [], tokens)

    def position(self) -> dict[str, Any]:
        return {"loader": self._loader.get_state(), "skipped": self._skipped}

    def memory(self) -> dict[str, np.ndarray]:
        """Nothing but the position."""
        return {}

    def seek(
        self, positions: list[dict[str, Any]], memory: dict[str, np.ndarray], iteration: int
    ) -> None:
        take_up(self._loader, self._skipped, positions, iteration, self._hosts)

    def close(self) -> None:
        self._loader.close()

    def shapes(self) -> list[Batch]:
        """One empty batch per bucket, for compiling ahead of the first step."""
        batches = []
        for s in self.buckets:
            media, rows = blank_rows(self._policy, s)
            if self._encoder is not None:
                media = self._encoder.shapes(self._policy.params, media)
            batches.append(as_batch(media, rows, np.zeros((s.batch, s.turns), np.float32)))
        return batches

    def programs(self, state: TrainState) -> list[Callable[[], None]]:
        """Calls that compile what encodes, if not the update does; the first batch is read."""
        self._loader.start()
        if self._encoder is None:
            return []
        return [
            partial(self._encoder.warm_up, state.params, media_batch([], self._policy, s)[0], s)
            for s in self.buckets
        ]
