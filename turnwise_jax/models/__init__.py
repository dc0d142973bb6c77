"""Model families in Flax NNX, each reading and writing Hugging Face checkpoints.

``MODELS`` maps the ``model_type`` of a ``config.json`` to the family's package, which has
``Config``, ``Model``, ``weights``, ``positions``, ``media_input``, ``slots_for``, ``CHAT``, the
chat style that its checkpoints were trained with, and ``PUBLISHED``, their ``config.json`` by size.
``ALIASES`` are other names of a model type.
"""

from turnwise_jax.models import qwen2_5_omni, qwen2_5_vl, qwen3_vl

MODELS = {
    "qwen2_5_omni": qwen2_5_omni,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
}
ALIASES = {"qwen2_5_omni_thinker": "qwen2_5_omni"}
