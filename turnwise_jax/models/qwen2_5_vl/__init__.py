"""Qwen2.5-VL (3B and 7B): images and video grids, M-RoPE, windowed vision attention."""

from turnwise_jax.models.qwen2_5_vl import weights
from turnwise_jax.models.qwen2_5_vl.config import Config
from turnwise_jax.models.qwen2_5_vl.model import Model
from turnwise_jax.models.qwen2_5_vl.text import positions
from turnwise_jax.models.qwen2_5_vl.vision import Slots, VisionInput, slots_for, vision_input

__all__ = [
    "Config",
    "Model",
    "Slots",
    "VisionInput",
    "positions",
    "slots_for",
    "vision_input",
    "weights",
]
