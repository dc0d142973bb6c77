"""The policy as the trainer sees it: frames to features, rows to action log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding

from turnwise_jax.kernels import token_logprobs
from turnwise_jax.models.media import Media
from turnwise_jax.models.sharding import on_mesh
from turnwise_jax.train.state import Batch


class Forward(NamedTuple):
    """Static description of the forward pass; parameters are always arguments.

    Attributes:
      graphdef: the model's structure.
      temperature: logits are divided by it on both sides of the ratio (DESIGN 5.6).
      chunk: vocabulary entries per block of the log-prob kernel.
      slices: how the work on a batch's frames is split over devices; None leaves it open.
    """

    graphdef: Any
    temperature: float
    chunk: int
    slices: NamedSharding | None = None

    def media(self, params: nnx.State, media: Any) -> Any:
        """Features of the batch's distinct frames and sounds; None without any.

        Media that are encoded already, by towers that are not trained, are returned as they are.
        """
        if media is None or isinstance(media, Media):
            return media
        if self.slices is not None:
            media = jax.lax.with_sharding_constraint(media, self.slices)
        return nnx.merge(self.graphdef, params).encode_media(media)

    def logprobs(self, params: nnx.State, media: Any, rows: Batch) -> Array:
        """f32[N, A] log-probabilities of the rows' actions, 0 outside their mask.

        Hidden states are gathered at the action positions before the head, and the head is applied
        a vocabulary block at a time: no [T, V] array exists.
        """
        model, context = nnx.merge(self.graphdef, params), rows.context
        if context is not None and media is None:
            context = context._replace(media_index=None)
        with on_mesh(self.slices.mesh if self.slices is not None else None):
            hidden_NTD, _ = model(
                rows.tokens_NT,
                rows.positions_N3T,
                media=media,
                media_index=None if media is None else rows.media_index_NT,
                valid=rows.valid_NT,
                context=context,
            )
        hidden_NAD = jnp.take_along_axis(hidden_NTD, rows.action_pos_NA[..., None], axis=1)
        n, a, d = hidden_NAD.shape
        logp = token_logprobs(
            hidden_NAD.reshape(n * a, d),
            model.head(),
            rows.action_target_NA.reshape(n * a),
            temperature=self.temperature,
            chunk=self.chunk,
            mask_T=rows.action_mask_NA.reshape(n * a),
        )
        return logp.reshape(n, a)


def behaviour_logprobs(logp_NA: Array, rows: Batch) -> Array:
    """f32[N, A] log-probabilities under the policy that sampled each row.

    Args:
      logp_NA: under the current parameters, which sampled all rows but the replayed ones; of those
        ``rows`` holds what was recorded when they were sampled.
    """
    if rows.mixture is None:
        return logp_NA
    return jnp.where(rows.mixture.replayed[:, None], rows.old_logp_NA, logp_NA)


def make_logprob_step(
    forward: Forward, rows: NamedSharding | None = None
) -> Callable[[Any, Batch], Array]:
    """Jitted (state, batch) -> f32[N, A], for old log-probs when a batch is used more than once.

    ``rows``: where the result goes; None leaves it open.
    """

    @partial(jax.jit, out_shardings=rows)
    def logprob_step(state: Any, batch: Batch) -> Array:
        params = state.params
        logp_NA = forward.logprobs(params, forward.media(params, batch.media), batch)
        return behaviour_logprobs(logp_NA, batch)

    return logprob_step


def make_reference_step(
    forward: Forward, rows: NamedSharding | None = None
) -> Callable[[Any, Batch], Array]:
    """Jitted (state, batch) -> f32[N, A] log-probabilities under the state's reference policy."""

    @partial(jax.jit, out_shardings=rows)
    def reference_step(state: Any, batch: Batch) -> Array:
        params = state.reference_params
        return forward.logprobs(params, forward.media(params, batch.media), batch)

    return reference_step
