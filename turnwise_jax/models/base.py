"""The policy network that every family fills in: text decoder, media towers, placeholders."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.models.cache import KVCache, empty_cache
from turnwise_jax.models.decoder import Inject, Stream
from turnwise_jax.models.layers import Build
from turnwise_jax.models.media import Media, MediaInput
from turnwise_jax.models.text import Text

Remat = Literal["none", "dots", "full"]  # see ``scan_layers``


class TokenRows(NamedTuple):
    """Rows of tokens, as ``PolicyNetwork`` takes them: ``[B, T]``, positions ``[B, 3, T]``."""

    tokens: jax.Array
    positions: jax.Array
    media_index: jax.Array | None = None
    valid: jax.Array | None = None


class PolicyNetwork(nnx.Module):
    """A policy; use it through ``nnx.merge(graphdef, params)`` inside ``jit``.

    A family calls this constructor, adds its towers and implements ``_encode``.
    """

    def __init__(self, build: Build, config: Any, *, remat: Remat):
        """
        Args:
          build: random source and dtypes; norms, rotary angles and softmax are float32 in any case.
          config: the family's sizes and token ids.
          remat: what the backward pass recomputes; see ``scan_layers``.
        """
        self.config = config
        self.text = Text(build, config.text, tied=config.tie_word_embeddings, remat=remat)

    def _encode(
        self, media: MediaInput, *, every_layer: bool = False
    ) -> tuple[Media, dict[str, jax.Array]]:
        """Features of the media and, if asked, what enters each layer of each tower, by name."""
        raise NotImplementedError

    def encode_media(self, media: MediaInput) -> Media:
        """Features of every slice, in the order that ``media_index`` counts."""
        return self._encode(media)[0]

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
        context: TokenRows | None = None,
        shared: KVCache | None = None,
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
          context: tokens that stand before the rows, decoded once for all rows that share them.
          shared: the same as keys and values, decoded before. Of either, b rows where b divides B:
            ``B / b`` consecutive rows share one.

        Returns:
          Hidden states after the final norm, ``[B, T, D]`` (undefined but finite where not valid),
          and the extended cache (None without one).
        """
        rows = TokenRows(tokens, positions, media_index, valid)
        hidden, cache, _ = self.text.decoder(
            self._stream(rows, media),
            cache,
            fresh=fresh,
            context=None if context is None else self._stream(context, media),
            shared=shared,
        )
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
        media: MediaInput | None = None,
        media_index: jax.Array | None = None,
        valid: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """What enters each layer, for locating a difference to another implementation.

        Keys in order: those of the family's towers, ``features`` ``[R, D]``, ``text``
        ``[L, B, T, D]``, ``hidden`` ``[B, T, D]``.
        """
        out: dict[str, jax.Array] = {}
        encoded = None
        if media is not None:
            encoded, towers = self._encode(media, every_layer=True)
            out = {**towers, "features": encoded.features}
        rows = self._stream(TokenRows(tokens, positions, media_index, valid), encoded)
        hidden, _, layers = self.text.decoder(rows, every_layer=True)
        return {**out, "text": layers, "hidden": hidden}

    def _stream(self, rows: TokenRows, media: Media | None) -> Stream:
        valid = jnp.ones(rows.tokens.shape, bool) if rows.valid is None else rows.valid
        x = self._embed(rows.tokens, media, rows.media_index)
        inject = _deep_features(media, rows.media_index)
        return self.text.stream(x, rows.positions, valid, inject)

    def _embed(
        self, tokens: jax.Array, media: Media | None, media_index: jax.Array | None
    ) -> jax.Array:
        x = self.text.embed(tokens)
        if media is None or media_index is None:
            return x
        features = _placed(media.features, media_index)
        return jnp.where((media_index >= 0)[..., None], features.astype(x.dtype), x)


def _placed(features: jax.Array, media_index: jax.Array) -> jax.Array:
    """Feature rows ``[R, D]`` at their tokens, ``[B, T, D]``; anything where there is none."""
    return jnp.take(features, jnp.maximum(media_index, 0), axis=0, mode="clip")


def _deep_features(media: Media | None, media_index: jax.Array | None) -> Inject | None:
    """Adds ``media.deep[i]`` to the media tokens behind layer i, for the first layers."""
    if media is None or media.deep is None or media_index is None:
        return None
    deep = media.deep

    def inject(number: jax.Array, x: jax.Array) -> jax.Array:
        def add() -> jax.Array:
            features = _placed(jnp.take(deep, number, axis=0, mode="clip"), media_index)
            return x + jnp.where((media_index >= 0)[..., None], features.astype(x.dtype), 0)

        return jax.lax.cond(number < len(deep), add, lambda: x)

    return inject
