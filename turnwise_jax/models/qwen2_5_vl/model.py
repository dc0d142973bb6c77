"""Qwen2.5-VL: vision tower, text decoder, and how features take the placeholders' places."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.models.cache import KVCache, empty_cache
from turnwise_jax.models.layers import Build
from turnwise_jax.models.media import Media
from turnwise_jax.models.qwen2_5_vl.config import Config
from turnwise_jax.models.qwen2_5_vl.text import Text
from turnwise_jax.models.qwen2_5_vl.vision import Vision, VisionInput

Remat = Literal["none", "full"]


class Model(nnx.Module):
    """The policy network; use it through ``nnx.merge(graphdef, params)`` inside ``jit``."""

    def __init__(
        self,
        config: Config,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
        remat: Remat = "none",
    ):
        """Random weights.

        Args:
          config: sizes and token ids.
          rngs: random source of the initial weights.
          dtype: compute dtype; norms, rotary angles and softmax are float32 in any case.
          param_dtype: dtype of the stored parameters.
          remat: "full" recomputes each layer in the backward pass.
        """
        build = Build(rngs, dtype, param_dtype)
        self.config = config
        self.text = Text(build, config, remat=remat == "full")
        self.vision = Vision(build, config, remat=remat == "full")

    def encode_media(self, vision: VisionInput) -> Media:
        """Features of every slice; row ``s * M + j`` is merged token j of slice s."""
        return Media(self.vision(vision)[0])

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        *,
        media: Media | None = None,
        media_index: jax.Array | None = None,
        valid: jax.Array | None = None,
        cache: KVCache | None = None,
        fresh: bool = False,
    ) -> tuple[jax.Array, KVCache | None]:
        """Decode a batch of token rows.

        Args:
          tokens: int ``[B, T]``.
          positions: int ``[B, 3, T]``, see ``positions``.
          media: encoded slices that ``media_index`` points into.
          media_index: int ``[B, T]``, feature row that stands in for the token, -1 for text.
          valid: bool ``[B, T]``, real tokens (default: all). Without a cache padding may be
            anywhere; with one, each row's real tokens come first.
          cache: earlier turns; each row's valid tokens are appended at its own length.
          fresh: the cache is still empty, so attention skips it (a cheaper first call).

        Returns:
          Hidden states after the final norm, ``[B, T, D]`` (undefined but finite where not valid),
          and the extended cache (None without one).
        """
        valid = jnp.ones(tokens.shape, bool) if valid is None else valid
        x = self._embed(tokens, media, media_index)
        hidden, cache, _ = self.text(x, positions, valid, cache, fresh=fresh)
        return hidden, cache

    def head(self) -> jax.Array:
        """The output projection ``[D, V]``: logits are ``hidden @ head()``."""
        return self.text.head_kernel()

    def init_cache(self, batch: int, length: int, dtype: DTypeLike | None = None) -> KVCache:
        """An empty cache of ``length`` slots per row, in the compute dtype by default."""
        text = self.config.text
        return empty_cache(
            text.num_hidden_layers,
            batch,
            text.num_key_value_heads,
            length,
            text.head_dim,
            self.text.embed.dtype if dtype is None else dtype,
        )

    def layer_inputs(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        *,
        vision: VisionInput | None = None,
        media_index: jax.Array | None = None,
        valid: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """What enters each layer, for locating a difference to another implementation.

        Keys in order: ``vision`` ``[L, S, NW, P, C]``, ``features`` ``[S * M, D]``, ``text``
        ``[L, B, T, D]``, ``hidden`` ``[B, T, D]``.
        """
        out: dict[str, jax.Array] = {}
        media = None
        if vision is not None:
            out["features"], blocks = self.vision(vision, every_layer=True)
            out = {"vision": blocks, **out}
            media = Media(out["features"])
        valid = jnp.ones(tokens.shape, bool) if valid is None else valid
        x = self._embed(tokens, media, media_index)
        hidden, _, layers = self.text(x, positions, valid, None, every_layer=True)
        return {**out, "text": layers, "hidden": hidden}

    def _embed(
        self, tokens: jax.Array, media: Media | None, media_index: jax.Array | None
    ) -> jax.Array:
        x = self.text.embed(tokens)
        if media is None or media_index is None:
            return x
        features = jnp.take(media.features, jnp.maximum(media_index, 0), axis=0, mode="clip")
        return jnp.where((media_index >= 0)[..., None], features.astype(x.dtype), x)
