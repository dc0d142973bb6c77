"""Audio tower of Qwen2.5-Omni: two convolutions, attention inside a slice, pooling by two.

A slice is ``2 * n_window`` mel frames (2 s), or what is left at the end of a sound. Nothing in the
tower crosses slices, so they are its batch axis: ``[C slices, T steps]``. Steps past a slice's own
are masked, wherever a real step could see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from turnwise_jax.errors import InputError
from turnwise_jax.kernels.attention import Run
from turnwise_jax.models.attention import plain_values
from turnwise_jax.models.layers import Build, Embedding, LayerNorm, Linear, scan_layers
from turnwise_jax.models.qwen2_5_omni.config import AudioConfig

NORM_EPS = 1e-5
MARKER_STD = 0.02
SLOWEST = 10000.0  # wavelengths of the position vectors reach from 2 pi to this times 2 pi


class AudioInput(NamedTuple):
    """Audio slices of a batch.

    ``mel``: float32 ``[C, F, mel bins]``, log-mel frames, zero past the slice's own. ``frames``:
    int32 ``[C]``, how many of them are real; 0 for an empty slice.
    """

    mel: np.ndarray | jax.Array
    frames: np.ndarray | jax.Array


def audio_input(
    sounds: Sequence[np.ndarray], config: AudioConfig, num_sounds: int | None = None
) -> AudioInput:
    """Lay out audio slices for the tower (NumPy, on the host).

    Args:
      sounds: float32 ``[mel bins, frames]`` each.
      config: the tower.
      num_sounds: slices in the result, by default as many as there are; the ones past
        ``len(sounds)`` are empty.

    Raises:
      InputError: too many slices, or one of another shape or type.
    """
    count = len(sounds) if num_sounds is None else num_sounds
    if len(sounds) > count:
        raise InputError(f"{len(sounds)} audio slices, the batch holds {count}")
    mel = np.zeros((count, config.slice_frames, config.num_mel_bins), np.float32)
    frames = np.zeros(count, np.int32)
    for c, sound in enumerate(sounds):
        bins, length = sound.shape if sound.ndim == 2 else (0, 0)
        fits = bins == config.num_mel_bins and 1 <= length <= config.slice_frames
        if not fits or sound.dtype != np.float32:
            raise InputError(
                f"an audio slice is {sound.dtype} {sound.shape}, expected float32 "
                f"({config.num_mel_bins}, 1 to {config.slice_frames})"
            )
        mel[c, :length], frames[c] = sound.T, length
    return AudioInput(mel, frames)


class Convolution(nnx.Module):
    """``y[t] = kernel @ (x[stride * t - 1], x[stride * t], x[stride * t + 1]) + bias``.

    Outside ``[0, T)`` x is zero.
    """

    def __init__(self, build: Build, inputs: int, outputs: int, stride: int):
        self.taps = Linear(build, 3 * inputs, outputs, bias=True)
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[C, T, I]`` -> ``[C, T / stride, O]``."""
        padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
        last = x.shape[1] - 1
        near = [padded[:, tap : tap + last + 1 : self.stride] for tap in range(3)]
        return self.taps(jnp.stack(near, axis=-1).reshape(*near[0].shape[:2], -1))


class Block(nnx.Module):
    """``x + out(attention(norm(x)))``, then ``x + fc2(gelu(fc1(norm(x))))``."""

    def __init__(self, build: Build, config: AudioConfig):
        width, gain = config.d_model, (2 * config.encoder_layers) ** -0.5
        self.config = config
        self.norm1 = LayerNorm(build, width, NORM_EPS)
        self.q = Linear(build, width, width, bias=True)
        self.k = Linear(build, width, width)
        self.v = Linear(build, width, width, bias=True)
        self.out = Linear(build, width, width, bias=True, gain=gain)
        self.norm2 = LayerNorm(build, width, NORM_EPS)
        self.fc1 = Linear(build, width, config.encoder_ffn_dim, bias=True)
        self.fc2 = Linear(build, config.encoder_ffn_dim, width, bias=True, gain=gain)

    def __call__(self, x: jax.Array, valid: jax.Array) -> jax.Array:
        """``[C, T, W]`` -> the same; ``valid`` ``[C, T]`` are the steps that may be seen."""
        heads = self.config.encoder_attention_heads
        y = self.norm1(x)
        query, key, value = (
            part(y).reshape(*x.shape[:2], heads, -1) for part in (self.q, self.k, self.v)
        )
        key, value = jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)
        mixed = plain_values(query[:, :, :, None], [Run(key, value, valid)])
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.fc2(jax.nn.gelu(self.fc1(self.norm2(x)), approximate=False))


class Audio(nnx.Module):
    """Log-mel frames of the slices -> features of their tokens.

    ``markers`` ``[2, D]`` are part of every checkpoint, but no computation of the thinker uses
    them: the sound's start and end are ordinary text tokens.
    """

    def __init__(self, build: Build, config: AudioConfig, *, remat: str):
        width = config.d_model
        stacked = Build(build.rngs, build.dtype, build.param_dtype, (config.encoder_layers,))
        self.config = config
        self.conv1 = Convolution(build, config.num_mel_bins, width, 1)
        self.conv2 = Convolution(build, width, width, 2)
        self.markers = Embedding(build, 2, config.output_dim, MARKER_STD)
        self.blocks = Block(stacked, config)
        self.norm = LayerNorm(build, width, NORM_EPS)
        self.proj = Linear(build, width, config.output_dim, bias=True)
        self.dtype = jnp.dtype(build.dtype)
        self.remat = remat

    def __call__(
        self, audio: AudioInput, *, every_layer: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Features ``[C * A, D]`` and, if asked, each block's input ``[L, C, T, W]``.

        Of n frames, n / 2 steps (rounded up) and half as many tokens (rounded down) are real.
        """
        x = jnp.asarray(audio.mel).astype(self.dtype)
        real = jnp.arange(x.shape[1])[None] < audio.frames[:, None]
        x = jnp.where(real[..., None], jax.nn.gelu(self.conv1(x), approximate=False), 0)
        x = jax.nn.gelu(self.conv2(x), approximate=False)
        valid = jnp.arange(x.shape[1])[None] < (audio.frames[:, None] + 1) // 2
        x = x + jnp.asarray(sinusoids(x.shape[1], x.shape[2]), self.dtype)[None]

        def body(block, x, _):
            return block(x, valid), x if every_layer else None

        x, inputs = scan_layers(self.blocks, body, x, remat=self.remat)
        pairs = x.reshape(x.shape[0], -1, 2, x.shape[2])
        pooled = (pairs[:, :, 0] + pairs[:, :, 1]) / 2
        features = self.proj(self.norm(pooled))
        return features.reshape(-1, features.shape[-1]), inputs


def sinusoids(length: int, width: int) -> np.ndarray:
    """Position vectors, float32 ``[length, width]``: sines, then cosines, of ``width / 2`` rates.

    The rates fall geometrically from 1 to 1 / ``SLOWEST``. float32 throughout, as in the reference.
    """
    half = width // 2
    step = np.float32(math.log(SLOWEST) / (half - 1))
    rates = np.exp(-step * np.arange(half, dtype=np.float32))
    angle = np.arange(length, dtype=np.float32)[:, None] * rates[None]
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
