"""The thinker of Qwen2.5-Omni (3B and 7B): images, videos and sound, positions by time."""

from turnwise_jax.models.qwen2_5_omni import weights
from turnwise_jax.models.qwen2_5_omni.audio import AudioInput
from turnwise_jax.models.qwen2_5_omni.config import Config
from turnwise_jax.models.qwen2_5_omni.model import Model, media_input
from turnwise_jax.models.qwen2_5_omni.positions import positions
from turnwise_jax.models.qwen2_5_omni.published import PUBLISHED
from turnwise_jax.models.qwen2_5_vl.vision import slots_for

CHAT = "qwen2_5_omni"

__all__ = [
    "CHAT",
    "PUBLISHED",
    "AudioInput",
    "Config",
    "Model",
    "media_input",
    "positions",
    "slots_for",
    "weights",
]
