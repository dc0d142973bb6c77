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
from turnwise_jax.train.forward import Forward
from turnwise_jax.train.state import Batch, TrainState, split_rows

Loss = Callable[[Actions, Array], Terms]


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    forward: Forward,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    accumulate: int = 1,
    fresh: bool = True,
) -> tuple[TrainState, dict[str, Array]]:
    """Sum the loss over micro-batches, divide once, clip, and update if all is finite.

    The frames are encoded once for the whole batch; each micro-batch adds to the gradient with
    respect to the features, which is pulled back through the vision tower once at the end (not at
    all when the tower is frozen). Splitting into micro-batches therefore changes no gradient.

    Args:
      forward: the policy's forward pass.
      loss: per-trajectory terms of the method, from ``algorithms/``.
      accumulate: micro-batches; must divide the number of rows.
      fresh: the batch was sampled from these very parameters, so the old log-probs are the current
        ones (stop-gradient) and no second forward pass is made.

    Returns:
      The next state and the step's metrics as scalars.
    """

    def encode(trained: nnx.State) -> Any:
        return forward.media(nnx.merge_state(trained, state.frozen), batch.vision)

    def micro_loss(trained: nnx.State, media: Any, rows: Batch) -> tuple[Array, Terms]:
        logp = forward.logprobs(nnx.merge_state(trained, state.frozen), media, rows)
        old = lax.stop_gradient(logp) if fresh else rows.old_logp_NA
        actions = Actions(logp, old, rows.sampler_logp_NA, rows.action_mask_NA, rows.turn_id_NA)
        terms = reduce_terms(jax.vmap(loss)(actions, rows.advantage_NK))
        return terms.total, terms

    def micro_step(sums: Any, rows: Batch) -> tuple[Any, Terms]:
        grads, terms = jax.grad(micro_loss, argnums=(0, 1), has_aux=True)(
            state.trained, media, rows
        )
        return jax.tree.map(jnp.add, sums, grads), terms

    media, pull_back = jax.vjp(encode, state.trained)
    zeros = jax.tree.map(jnp.zeros_like, (state.trained, media))
    (grads, media_grads), terms = lax.scan(micro_step, zeros, split_rows(batch, accumulate))
    grads = jax.tree.map(jnp.add, grads, *pull_back(media_grads))
    terms = reduce_terms(terms)
    count = jnp.maximum(terms.count, 1.0)
    grads = jax.tree.map(lambda g: (g / count).astype(g.dtype), grads)
    return apply_update(state, grads, terms, terms.total / count, optimizer)


def apply_update(
    state: TrainState,
    grads: nnx.State,
    terms: Terms,
    loss: Array,
    optimizer: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
    """One optimizer update; a non-finite loss or gradient leaves parameters and moments alone."""
    norm = optax.global_norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.trained)
    trained = optax.apply_updates(state.trained, updates)

    def keep(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    skipped = state.skipped + jnp.where(finite, 0, 1)
    metrics = {
        "loss": loss,
        "grad_norm": norm,
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
