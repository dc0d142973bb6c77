"""Text side of every family: token vectors, multi-axis rotary positions, decoder, output head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from turnwise_jax.models.decoder import Decoder, DecoderConfig, Inject, Stream
from turnwise_jax.models.layers import Build, Embedding, Linear
from turnwise_jax.models.rope import multi_axis_table


class Text(nnx.Module):
    """Embedding, decoder and head; with tied weights the head is the embedding transposed."""

    def __init__(self, build: Build, text: DecoderConfig, *, tied: bool, remat: str):
        self.config = text
        self.embed = Embedding(build, text.vocab_size, text.hidden_size, text.initializer_range)
        self.decoder = Decoder(build, text, remat=remat)
        self.head = None if tied else Linear(build, text.hidden_size, text.vocab_size)

    def stream(
        self, x: jax.Array, positions: jax.Array, valid: jax.Array, inject: Inject | None = None
    ) -> Stream:
        """Vectors ``[B, T, D]`` at positions ``[B, 3, T]``, ready for the decoder."""
        table = multi_axis_table(positions, self.config.rope_axes, self.config.rope_theta)
        return Stream(x, table, valid, inject)

    def head_kernel(self) -> jax.Array:
        """``[D, V]``, in the stored dtype."""
        if self.head is None:
            return jnp.swapaxes(self.embed.embedding[...], 0, 1)
        return self.head.kernel[...]
