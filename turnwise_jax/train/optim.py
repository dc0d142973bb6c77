"""The optimizer of a config: AdamW after global-norm clipping, with a warm-up and a schedule."""

from __future__ import annotations

from typing import NamedTuple

import optax
from ml_collections import ConfigDict


class Optimizer(NamedTuple):
    """An optax transformation (``init``, ``update``) and the rate it uses after n updates."""

    init: optax.TransformInitFn
    update: optax.TransformUpdateFn
    learning_rate: optax.Schedule


def learning_rate(config: ConfigDict, total_steps: int) -> optax.Schedule:
    """Linear warm-up from 0, then constant or cosine to zero at ``total_steps``."""
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, max(total_steps - warmup, 1))
    else:
        after = optax.constant_schedule(peak)
    if not warmup:
        return after
    # The first update already moves: step 0 uses peak / warmup.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])


def make_optimizer(config: ConfigDict, total_steps: int) -> Optimizer:
    """Clip by global norm, then AdamW (decoupled weight decay on every trained parameter)."""
    schedule = learning_rate(config, total_steps)
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
        ),
    )
    return Optimizer(chain.init, chain.update, schedule)
