"""The optimizer of a config: AdamW after global-norm clipping, with a warm-up and a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    adam = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        kept_in(config.moments_dtype, adam),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    return Optimizer(chain.init, chain.update, schedule)


def kept_in(dtype: str, transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """A transformation computed in float32 whose state is kept in ``dtype`` between updates."""

    def cast(tree: Any, to: str) -> Any:
        def one(leaf: Any) -> Any:
            return leaf.astype(to) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(one, tree)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = transform.update(cast(grads, "float32"), cast(state, "float32"), params)
        return updates, cast(state, dtype)

    return optax.GradientTransformation(lambda params: cast(transform.init(params), dtype), update)
