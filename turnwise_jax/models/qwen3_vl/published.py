"""``config.json`` of the published dense checkpoints, Qwen/Qwen3-VL-{2B,4B,8B,32B}-Instruct."""

from __future__ import annotations

from typing import Any


def _config(
    text: tuple[int, int, int, int], vision: tuple[int, int, int, list[int]], *, tied: bool
) -> dict[str, Any]:
    """``text``: width, MLP width, layers, heads. ``vision``: depth, width, MLP width, taps."""
    width, hidden, layers, heads = text
    vision_depth, vision_width, vision_hidden, taps = vision
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151655,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "dtype": "bfloat16",
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": width,
            "initializer_range": 0.02,
            "intermediate_size": hidden,
            "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
            "rope_theta": 5000000,
            **({"tie_word_embeddings": True} if tied else {}),
            "use_cache": True,
            "vocab_size": 151936,
        },
        "tie_word_embeddings": tied,
        "video_token_id": 151656,
        "vision_config": {
            "deepstack_visual_indexes": taps,
            "depth": vision_depth,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": vision_width,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": vision_hidden,
            "model_type": "qwen3_vl",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": width,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    }


_SMALL = (24, 1024, 4096, [5, 11, 17])
_LARGE = (27, 1152, 4304, [8, 16, 24])

PUBLISHED: dict[str, dict[str, Any]] = {
    "2b": _config((2048, 6144, 28, 16), _SMALL, tied=True),
    "4b": _config((2560, 9728, 36, 32), _SMALL, tied=True),
    "8b": _config((4096, 12288, 36, 32), _LARGE, tied=False),
    "32b": _config((5120, 25600, 64, 64), _LARGE, tied=False),
}
