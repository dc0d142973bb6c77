"""The text decoder that the Qwen families share: pre-norm GQA and SwiGLU, stacked and scanned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.kernels.attention import Run
from turnwise_jax.models.attention import mixed_values
from turnwise_jax.models.cache import KVCache
from turnwise_jax.models.layers import Build, Linear, RMSNorm, SwiGLU, scan_layers
from turnwise_jax.models.lora import is_adapter
from turnwise_jax.models.params import Path, named, replaced
from turnwise_jax.models.rope import interleaved_axes, rotate, section_axes
from turnwise_jax.models.sharding import brought_together, split_rows

STACK = ("text", "decoder", "layers")  # where the layers stand among a model's parameters
Table = tuple[jax.Array, jax.Array]
Inject = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and kinds of the decoder, named as in Hugging Face's text configuration.

    ``attention_bias``: query, key and value projections have one. ``qk_norm``: queries and keys are
    normalised per head before they are rotated. ``mrope_interleaved``: position axes alternate over
    the frequencies instead of standing in three sections.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, ...]
    max_position_embeddings: int
    initializer_range: float
    attention_bias: bool = True
    qk_norm: bool = False
    mrope_interleaved: bool = False

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def rope_axes(self) -> np.ndarray:
        """Position axis of each rotary frequency, int32 ``[head_dim / 2]``."""
        kind = interleaved_axes if self.mrope_interleaved else section_axes
        return kind(self.mrope_section)


class Stream(NamedTuple):
    """Rows of vectors on their way through the decoder.

    ``x``: ``[B, T, D]``. ``table``: rotary cosines and sines ``[B, T, C/2]``. ``valid``: bool
    ``[B, T]``; invalid keys are never seen. ``inject``: ``(layer number, its output) -> what the
    next layer reads``.
    """

    x: jax.Array
    table: Table
    valid: jax.Array
    inject: Inject | None = None


class DecoderLayer(nnx.Module):
    """One layer: ``x + o(attention(norm(x)))``, then ``x + mlp(norm(x))``."""

    def __init__(self, build: Build, config: DecoderConfig):
        width, heads = config.hidden_size, config.num_key_value_heads * config.head_dim
        gain = (2 * config.num_hidden_layers) ** -0.5
        self.config = config
        self.attn_norm = RMSNorm(build, width, config.rms_norm_eps)
        self.q = Linear(build, width, heads * config.group, bias=config.attention_bias)
        self.k = Linear(build, width, heads, bias=config.attention_bias)
        self.v = Linear(build, width, heads, bias=config.attention_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(build, config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(build, config.head_dim, config.rms_norm_eps)
        self.o = Linear(build, heads * config.group, width, gain=gain)
        self.mlp_norm = RMSNorm(build, width, config.rms_norm_eps)
        self.mlp = SwiGLU(build, width, config.intermediate_size, gain=gain)

    def __call__(
        self,
        x: jax.Array,
        table: Table,
        valid: jax.Array,
        past: Sequence[Run],
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Hidden states ``[B, T, D]`` -> the next ones and this layer's new ``[B, N, T, C]`` pair.

        ``valid`` says which new keys count, ``past`` are older runs of keys.
        """
        query, key, value = self._project(self.attn_norm(x), table)
        mixed = mixed_values(query, [*past, Run(key, value, valid, causal=True)])
        x = x + self.o(mixed.reshape(*x.shape[:2], -1))
        return x + self.mlp(self.mlp_norm(x)), (key, value)

    def _project(self, x: jax.Array, table: Table) -> tuple[jax.Array, jax.Array, jax.Array]:
        config, lead = self.config, x.shape[:2]
        heads, width = config.num_key_value_heads, config.head_dim
        query = self.q(x).reshape(*lead, heads, config.group, width)
        key = self.k(x).reshape(*lead, heads, width)
        value = self.v(x).reshape(*lead, heads, width)
        if config.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, table), rotate(key, table)
        return query, jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)


class Decoder(nnx.Module):
    """All layers and the final norm."""

    def __init__(self, build: Build, config: DecoderConfig, *, remat: str):
        stacked = Build(build.rngs, build.dtype, build.param_dtype, (config.num_hidden_layers,))
        self.layers = DecoderLayer(stacked, config)
        self.norm = RMSNorm(build, config.hidden_size, config.rms_norm_eps)
        self.remat = remat

    def __call__(
        self,
        rows: Stream,
        cache: KVCache | None = None,
        *,
        fresh: bool = False,
        context: Stream | None = None,
        shared: KVCache | None = None,
        every_layer: bool = False,
    ) -> tuple[jax.Array, KVCache | None, jax.Array | None]:
        """Decode rows causally.

        Args:
          rows: B rows. With a cache the valid ones of a row come first.
          cache: earlier keys and values of each row; the new ones are appended to the returned
            cache.
          fresh: the cache is empty, so it is written but not read.
          context: what stands before the rows, decoded along with them. It has b rows where b
            divides B; ``B / b`` consecutive rows share one.
          shared: the same, decoded before: read and not returned.
          every_layer: also return the input of each layer, ``[L, B, T, D]``.

        The caches are read-only inside the layer loop, and the rows' one is written once behind it,
        so a decoding step never copies them.
        """
        reads = cache is not None and not fresh

        def body(layer, streams, inputs):
            number, kept = inputs
            past = [Run(*run, _filled(held)) for run, held in zip(kept, caches, strict=True)]
            ahead, x = streams
            if context is not None:
                ahead, new = layer(split_rows(ahead), context.table, context.valid, [])
                ahead = _injected(context.inject, number, ahead)
                past = [Run(*new, context.valid), *past]
            x = split_rows(x)
            y, new = layer(x, rows.table, rows.valid, past)
            y = _injected(rows.inject, number, y)
            return (ahead, y), (new if cache is not None else None, x if every_layer else None)

        def prepare(layer):
            # Single tokens are cheaper to send round than weights.
            single = rows.x.shape[1] == 1
            return layer if single else brought_together(layer, STACK, self.layers.q.dtype)

        caches = [*([shared] if shared is not None else []), *([cache] if reads else [])]
        numbers = jnp.arange(self.layers.config.num_hidden_layers)
        begin = (None if context is None else context.x, rows.x)
        (_, x), (new, inputs) = scan_layers(
            self.layers,
            body,
            begin,
            (numbers, [(held.k, held.v) for held in caches]),
            remat=self.remat,
            prepare=prepare,
        )
        if cache is not None:
            cache = cache.append(*new, jnp.sum(rows.valid, axis=1, dtype=jnp.int32))
        return self.norm(x), cache, inputs


def cast_kernels(params: nnx.State, dtype: DTypeLike) -> nnx.State:
    """Parameters, or their shapes, with the layers' kernels as every pass casts them.

    Many passes then cast once, and what they compute is the same. Head and embedding keep their
    dtype, as the trainer's log-probs take them.
    """
    leaves = named(params)
    kernels = {
        path: leaf
        for path, leaf in leaves.items()
        if path[: len(STACK)] == STACK and (path[-1] == "kernel" or is_adapter(path))
    }
    wide = {path: leaf for path, leaf in kernels.items() if leaf.dtype != jnp.dtype(dtype)}
    if not wide:
        return params
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in wide.values()):
        cast = {path: leaf.update(dtype=jnp.dtype(dtype)) for path, leaf in wide.items()}
    else:
        cast = _cast(wide, jnp.dtype(dtype))
    return replaced(params, {**leaves, **cast})


@partial(jax.jit, static_argnames="dtype")
def _cast(leaves: dict[Path, jax.Array], dtype: jnp.dtype) -> dict[Path, jax.Array]:
    return {path: leaf.astype(dtype) for path, leaf in leaves.items()}


def _filled(cache: KVCache) -> jax.Array:
    return jnp.arange(cache.capacity)[None, :] < cache.length[:, None]


def _injected(inject: Inject | None, number: jax.Array, x: jax.Array) -> jax.Array:
    return x if inject is None else inject(number, x)
