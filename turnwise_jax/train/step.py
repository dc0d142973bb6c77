"""One optimizer update, as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array, lax

from turnwise_jax.algorithms.types import Actions, Terms, reduce_terms
from turnwise_jax.train.forward import Forward, behaviour_logprobs
from turnwise_jax.train.optim import Optimizer
from turnwise_jax.train.state import Batch, TrainState, split_rows

Loss = Callable[[Actions, Array], Terms]


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    forward: Forward,
    loss: Loss,
    optimizer: Optimizer,
    accumulate: int = 1,
    fresh: bool = True,
) -> tuple[TrainState, dict[str, Array]]:
    """Sum the loss over micro-batches, divide once, clip, and update if all is finite.

    Args:
      forward: the policy's forward pass.
      loss: per-trajectory terms of the method, from ``algorithms/``.
      accumulate: micro-batches; must divide the number of rows. Changes no gradient.
      fresh: the batch was sampled from these very parameters, so the old log-probs are the current
        ones (stop-gradient) and no second forward pass is made.

    Returns:
      The next state and the step's metrics as scalars.
    """
    grads, terms = gradients(
        state, batch, forward=forward, loss=loss, accumulate=accumulate, fresh=fresh
    )
    return apply_update(state, grads, terms, optimizer)


def gradients(
    state: TrainState,
    batch: Batch,
    *,
    forward: Forward,
    loss: Loss,
    accumulate: int,
    fresh: bool,
) -> tuple[nnx.State, Terms]:
    """Gradient of the batch's mean loss with respect to the trained parameters, and its terms.

    The frames are encoded once for the whole batch; each micro-batch adds to the gradient with
    respect to the features, which is pulled back through the towers once at the end (not at
    all when the tower is frozen). Sums are kept in float32 whatever the parameters' dtype.
    """

    def encode(trained: nnx.State) -> Any:
        return forward.media(nnx.merge_state(trained, state.frozen), batch.media)

    def micro_loss(trained: nnx.State, media: Any, rows: Batch) -> tuple[Array, Terms]:
        logp = forward.logprobs(nnx.merge_state(trained, state.frozen), media, rows)
        old = behaviour_logprobs(lax.stop_gradient(logp), rows) if fresh else rows.old_logp_NA
        actions = Actions(
            logp, old, rows.sampler_logp_NA, rows.action_mask_NA, rows.turn_id_NA, rows.mixture
        )
        terms = reduce_terms(jax.vmap(loss)(actions, rows.advantage_NK))
        return terms.total, terms

    def add_micro_batch(sums: Any, rows: Batch) -> tuple[Any, Terms]:
        grads, terms = jax.grad(micro_loss, argnums=(0, 1), has_aux=True)(
            state.trained, media, rows
        )
        return jax.tree.map(jnp.add, sums, grads), terms

    media, pull_back = jax.vjp(encode, state.trained)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (state.trained, media))
    (grads, media_grads), terms = lax.scan(add_micro_batch, nothing, split_rows(batch, accumulate))
    (more,) = pull_back(jax.tree.map(lambda g, m: g.astype(m.dtype), media_grads, media))
    terms = reduce_terms(terms)
    count = jnp.maximum(terms.count, 1.0)

    def mean(total: Array, rest: Array, param: Array) -> Array:
        return ((total + rest) / count).astype(param.dtype)

    return jax.tree.map(mean, grads, more, state.trained), terms


def apply_update(
    state: TrainState, grads: nnx.State, terms: Terms, optimizer: Optimizer
) -> tuple[TrainState, dict[str, Array]]:
    """One optimizer update; a non-finite loss or gradient leaves parameters and moments alone."""
    loss = terms.total / jnp.maximum(terms.count, 1.0)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.trained)
    trained = optax.apply_updates(state.trained, updates)

    def keep(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    skipped = state.skipped + jnp.where(finite, 0, 1)
    metrics = {
        "loss": loss,
        "grad_norm": norm,
        "learning_rate": optimizer.learning_rate(state.step - state.skipped),
        "skipped_updates": skipped,
        **{k: total / jnp.maximum(n, 1.0) for k, (total, n) in terms.means.items()},
        **terms.maxima,
    }
    return state._replace(
        step=state.step + 1,
        skipped=skipped,
        trained=keep(trained, state.trained),
        opt_state=keep(opt_state, state.opt_state),
    ), metrics
