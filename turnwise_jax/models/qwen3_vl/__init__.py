"""Qwen3-VL (dense): images and timestamped video rows, interleaved M-RoPE, DeepStack."""

from turnwise_jax.models.qwen3_vl import weights
from turnwise_jax.models.qwen3_vl.config import Config
from turnwise_jax.models.qwen3_vl.model import Model
from turnwise_jax.models.qwen3_vl.positions import positions
from turnwise_jax.models.qwen3_vl.published import PUBLISHED
from turnwise_jax.models.qwen3_vl.vision import Slots, VisionInput, media_input, slots_for

CHAT = "qwen3_vl"

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
    "weights",
]
