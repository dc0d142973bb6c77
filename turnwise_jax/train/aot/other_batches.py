"""Bytes of batches that are on the devices while a program runs that does not take them.

A batch's frames and sounds are put there when it is laid out, and stay while its rollouts run.
With ``data.workers`` that is a batch early: while one is sampled and trained, the next is there
already. With ``rollout.ahead`` the next batch's rollouts run beside the rows of the present one and
what these show, and what they show themselves stays through the present one's update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax

from turnwise_jax.rollout.features import Encoder
from turnwise_jax.rollout.prompts import empty_batch
from turnwise_jax.rollout.shapes import RowShapes, Shapes
from turnwise_jax.train.aot.plan import Plan
from turnwise_jax.train.run import samples_ahead


def other_batches(plan: Plan, names: Iterable[str]) -> dict[str, float]:
    """Bytes on one device beside each program of a plan, by its name.

    All batches are taken to be of the plan's shapes.
    """
    placed = 0.0 if _laid_out_late(plan) else held(plan.layout.split_shapes(_input(plan)))
    early = placed if plan.config.data.workers > 0 else 0.0
    if isinstance(plan.rooms, RowShapes):
        return dict.fromkeys(names, early)
    if plan.fresh is not None:
        beside = _beside_answers(plan, placed, early)
    else:
        beside = _beside_rollouts(plan, placed, early)
    rollouts = beside["rollouts"]
    return {name: beside.get(name, rollouts) for name in names}


def held(tree: Any) -> float:
    """Bytes of a pytree of shapes on one device."""
    return float(
        sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(tree)
        )
    )


def _beside_rollouts(plan: Plan, placed: float, early: float) -> dict[str, float]:
    """Of streaming dialogues; ``encode`` takes the input of its own batch, other rollouts do not.

    The passes of policies that are not trained come before anything is sampled ahead.
    """
    before = shown = 0.0
    if samples_ahead(plan.config):
        shown = _features(plan) if plan.keeps_features else placed
        before = held(plan.layout.shapes(plan.batch._replace(media=None))) + shown
    return {
        "encode": early + before,
        "rollouts": early + before + placed,
        "reference": early,
        "old_logprobs": early,
        "update": early + shown,
    }


def _beside_answers(plan: Plan, placed: float, early: float) -> dict[str, float]:
    """Of AVATAR, which keeps what its rollouts took until the batch of the update is made."""
    kept = plan.keeps_features and plan.config.data.features_mb > 0
    rows = early + placed + (_features(plan) if kept else 0.0)
    return {
        "encode": early,
        "rollouts": early + placed,
        "encode_rows": rows,
        "reference": rows,
        "update": early,
    }


def _laid_out_late(plan: Plan) -> bool:
    """Whether the rollouts put frames and sounds on the devices themselves, and drop them again."""
    return plan.fresh is not None and plan.config.hints.use


def _input(plan: Plan) -> Any:
    """Frames and sounds as the loader puts them on the devices."""
    if isinstance(plan.rooms, Shapes):
        return empty_batch(plan.policy, plan.rooms).media
    return plan.batch.media


def _features(plan: Plan) -> float:
    encoder = Encoder(plan.policy, plan.layout)
    return held(plan.layout.split_shapes(encoder.shapes(plan.policy.params, _input(plan))))
