"""``config.json`` of the published checkpoints, Qwen/Qwen2.5-VL-{3B,7B}-Instruct."""

from __future__ import annotations

from typing import Any


def _config(
    *, width: int, hidden: int, layers: int, heads: tuple[int, int], vocab: int, tied: bool
) -> dict[str, Any]:
    """``heads``: of queries, and of keys and values."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "vision_token_id": 151654,
        "image_token_id": 151655,
        "video_token_id": 151656,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": hidden,
        "max_position_embeddings": 128000,
        "max_window_layers": 70 if tied else 28,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": heads[0],
        "num_hidden_layers": layers,
        "num_key_value_heads": heads[1],
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "in_chans": 3,
            "out_hidden_size": width,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vocab_size": vocab,
    }


PUBLISHED: dict[str, dict[str, Any]] = {
    "3b": _config(width=2048, hidden=11008, layers=36, heads=(16, 2), vocab=151936, tied=True),
    "7b": _config(width=3584, hidden=18944, layers=28, heads=(28, 4), vocab=152064, tied=False),
}
