"""Qwen2.5-VL (3B and 7B): images and video grids, M-RoPE, windowed vision attention."""

from turnwise_jax.models.qwen2_5_vl import weights
from turnwise_jax.models.qwen2_5_vl.config import Config
from turnwise_jax.models.qwen2_5_vl.model import Model
from turnwise_jax.models.qwen2_5_vl.positions import positions
from turnwise_jax.models.qwen2_5_vl.published import PUBLISHED
from turnwise_jax.models.qwen2_5_vl.vision import (
    Slots,
    VisionInput,
    media_input,
    slots_for,
    vision_input,
)

CHAT = "qwen2_5_vl"

__all__ = [
    "CHAT",
    "PUBLISHED",
    "Config",
    "Model",
    "Slots",
    "VisionInput",
    "media_input",
    "positions",
    "slots_for",
    "vision_input",
    "weights",
]
