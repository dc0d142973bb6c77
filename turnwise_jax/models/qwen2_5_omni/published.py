"""Hyper-parameters of the published checkpoints, Qwen/Qwen2.5-Omni-{3B,7B}: the thinker's part.

The talker and its vocoder are left out, as this package leaves them out. Neither size ties its
head to the embedding, which is also transformers' default for a thinker.
"""

from __future__ import annotations

from typing import Any


def _config(
    *, width: int, hidden: int, layers: int, heads: tuple[int, int], vocab: int, window_from: int
) -> dict[str, Any]:
    """``heads``: of queries, and of keys and values."""
    return {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "enable_audio_output": False,
        "model_type": "qwen2_5_omni",
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "audio_token_index": 151646,
            "audio_start_token_id": 151647,
            "audio_end_token_id": 151648,
            "bos_token_id": 151644,
            "eos_token_id": 151645,
            "image_token_index": 151655,
            "video_token_index": 151656,
            "pad_token_id": 151643,
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
            "tie_word_embeddings": False,
            "user_token_id": 872,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
            "vision_token_id": 151654,
            "audio_config": _audio(width),
            "text_config": {
                "model_type": "qwen2_5_omni_text",
                "attention_dropout": 0.0,
                "hidden_act": "silu",
                "hidden_size": width,
                "initializer_range": 0.02,
                "intermediate_size": hidden,
                "max_position_embeddings": 32768,
                "max_window_layers": window_from,
                "num_attention_heads": heads[0],
                "num_hidden_layers": layers,
                "num_key_value_heads": heads[1],
                "rms_norm_eps": 1e-06,
                "rope_scaling": {
                    "mrope_section": [16, 24, 24],
                    "rope_type": "default",
                    "type": "default",
                },
                "rope_theta": 1000000.0,
                "sliding_window": 32768,
                "use_cache": True,
                "use_sliding_window": False,
                "vocab_size": vocab,
            },
            "vision_config": _vision(width),
        },
        "torch_dtype": "bfloat16",
    }


def _audio(width: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_audio_encoder",
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "d_model": 1280,
        "dropout": 0.0,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "encoder_layers": 32,
        "max_source_positions": 1500,
        "n_window": 100,
        "num_mel_bins": 128,
        "output_dim": width,
        "scale_embedding": False,
    }


def _vision(width: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_vision_encoder",
        "depth": 32,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_act": "silu",
        "hidden_size": 1280,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": width,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 25,
        "window_size": 112,
    }


PUBLISHED: dict[str, dict[str, Any]] = {
    "3b": _config(width=2048, hidden=11008, layers=36, heads=(16, 2), vocab=151936, window_from=70),
    "7b": _config(width=3584, hidden=18944, layers=28, heads=(28, 4), vocab=152064, window_from=28),
}
