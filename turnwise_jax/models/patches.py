"""Pictures on their way to a vision tower: checked on the host, normalised on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from turnwise_jax.errors import InputError
from turnwise_jax.models.layers import along_last

Slice = tuple[np.ndarray, tuple[int, int]]
"""uint8 ``[h * w, patch values]`` in merge-grouped raster order, and (h, w)."""


def check_slices(slices: Sequence[Slice], config: Any) -> None:
    """Refuse patches that do not make whole tokens of the configured size.

    Raises:
      InputError: a grid that is not a whole number of merged tokens, or patches of another shape.
    """
    merge, values_each = config.merge, config.vision.patch_dim
    for values, (h, w) in slices:
        if h < merge or w < merge or h % merge or w % merge:
            raise InputError(
                f"a {h} x {w} patch grid is not a whole number of {merge} x {merge} tokens"
            )
        if values.shape != (h * w, values_each) or values.dtype != np.uint8:
            raise InputError(
                f"patches are {values.dtype} {values.shape}, expected uint8 "
                f"{(h * w, values_each)} for a {h} x {w} grid"
            )


def slice_count(slices: Sequence[Slice], num_slices: int | None) -> int:
    """S: ``num_slices``, by default as many as there are, at least one.

    Raises:
      InputError: more slices than ``num_slices``.
    """
    count = max(len(slices), 1) if num_slices is None else num_slices
    if len(slices) > count:
        raise InputError(f"{len(slices)} slices, the batch holds {count}")
    return count


def refuse_sound(config: Any, sounds: Sequence[np.ndarray], num_sounds: int) -> None:
    """For families that see and do not hear.

    Raises:
      InputError: there are sounds.
    """
    if sounds or num_sounds:
        raise InputError(f"{config.model_type} has no audio tower, the dialogue has sound")


def normalise(patches: jax.Array | np.ndarray, config: Any, dtype: DTypeLike) -> jax.Array:
    """uint8 patches ``[..., channels * rest]`` -> ``(value / 255 - mean) / std`` per channel.

    Computed in float32 with the configuration's ``image_mean`` and ``image_std``.
    """
    each = config.vision.patch_dim // config.vision.in_channels
    mean = np.repeat(np.asarray(config.image_mean, np.float32) * 255.0, each)
    std = np.repeat(np.asarray(config.image_std, np.float32) * 255.0, each)
    values = jnp.asarray(patches).astype(jnp.float32)
    values = (values - along_last(jnp.asarray(mean), values)) / along_last(jnp.asarray(std), values)
    return values.astype(dtype)
