"""Qwen2.5-Omni's thinker: vision and audio towers beside the shared text decoder."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.models.base import PolicyNetwork, Remat
from turnwise_jax.models.layers import Build
from turnwise_jax.models.media import Media, MediaInput
from turnwise_jax.models.patches import Slice
from turnwise_jax.models.qwen2_5_omni.audio import Audio, audio_input
from turnwise_jax.models.qwen2_5_omni.config import Config
from turnwise_jax.models.qwen2_5_vl.vision import Slots, Vision, vision_input


def media_input(
    slices: Sequence[Slice],
    sounds: Sequence[np.ndarray],
    config: Config,
    *,
    slots: Slots | None = None,
    num_slices: int | None = None,
    num_sounds: int | None = None,
) -> MediaInput:
    """Lay out frames and sounds for the towers (NumPy, on the host).

    Args:
      slices: ``(uint8 [h * w, patch values], (h, w))``, patches in merge-grouped raster order.
      sounds: audio slices, float32 ``[mel bins, frames]``, at most ``slice_frames`` each; every one
        of a sound but its last is full.
      config: the model.
      slots: room per vision slice; by default the least that holds these slices.
      num_slices, num_sounds: slices in the result, by default as many as there are; the ones past
        those given are empty. A part without any slices is None.

    Raises:
      InputError: a slice of another shape than the model's, too large for ``slots``, or too many.
    """
    seen = len(slices) if num_slices is None else num_slices
    heard = len(sounds) if num_sounds is None else num_sounds
    return MediaInput(
        vision_input(slices, config, slots=slots, num_slices=seen) if seen or slices else None,
        audio_input(sounds, config.audio, heard) if heard or sounds else None,
    )


class Model(PolicyNetwork):
    """Parameter groups ``text``, ``vision`` and ``audio``."""

    def __init__(
        self,
        config: Config,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
        remat: Remat = "none",
    ):
        """Random weights; see :class:`PolicyNetwork`.

        Args:
          config: sizes and token ids.
          rngs: random source of the initial weights.
          dtype: compute dtype.
          param_dtype: dtype of the stored parameters.
          remat: what the backward pass recomputes; see ``scan_layers``.
        """
        build = Build(rngs, dtype, param_dtype)
        super().__init__(build, config, remat=remat)
        self.vision = Vision(build, config, remat=remat, fused=False)
        self.audio = Audio(build, config.audio, remat=remat)

    def _encode(
        self, media: MediaInput, *, every_layer: bool = False
    ) -> tuple[Media, dict[str, jax.Array]]:
        """``vision`` ``[L, S, NW, P, C]`` and ``audio`` ``[L, C, T, W]`` enter the blocks."""
        features, blocks = [], {}
        for name, tower, part in (
            ("vision", self.vision, media.vision),
            ("audio", self.audio, media.audio),
        ):
            if part is None:
                continue
            found, inputs = tower(part, every_layer=every_layer)
            features.append(found)
            if inputs is not None:
                blocks[name] = inputs
        return Media(jnp.concatenate(features)), blocks
