"""Qwen3-VL: the vision tower beside the shared text decoder, joined at several depths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from turnwise_jax.models.base import PolicyNetwork, Remat
from turnwise_jax.models.layers import Build
from turnwise_jax.models.media import Media, MediaInput
from turnwise_jax.models.qwen3_vl.config import Config
from turnwise_jax.models.qwen3_vl.vision import Vision


class Model(PolicyNetwork):
    """Parameter groups ``text`` and ``vision``."""

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
        self.vision = Vision(build, config, remat=remat)

    def _encode(
        self, media: MediaInput, *, every_layer: bool = False
    ) -> tuple[Media, dict[str, jax.Array]]:
        """``vision`` ``[L, S, P, C]`` enters the tower's blocks, ``deep`` ``[n, R, D]`` leaves."""
        found = self.vision(media.vision, every_layer=every_layer)
        encoded = Media(found.features, found.deep)
        if found.blocks is None:
            return encoded, {}
        return encoded, {"vision": found.blocks, "deep": found.deep}
