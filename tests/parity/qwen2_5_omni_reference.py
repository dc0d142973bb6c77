"""Random Qwen2.5-Omni thinkers built by transformers, and both models run on one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx
from qwen2_5_omni_batch import (
    AUDIO,
    AUDIO_END,
    AUDIO_START,
    IMAGE,
    VIDEO,
    VISION_END,
    VISION_START,
    Batch,
)
from qwen2_5_vl_reference import MEAN, MERGE, STD
from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration
from transformers.initialization import no_init_weights

from turnwise_jax.models import io
from turnwise_jax.models.media import FeatureRows, media_index
from turnwise_jax.models.qwen2_5_omni import media_input, positions, slots_for

VOCAB = 300
TOKENS = {
    "image_token_index": IMAGE,
    "video_token_index": VIDEO,
    "audio_token_index": AUDIO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "audio_start_token_id": AUDIO_START,
    "audio_end_token_id": AUDIO_END,
}
TINY_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 3, 3],
    },
    "bos_token_id": None,
    "eos_token_id": None,
}
TINY_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
TINY_AUDIO = {
    "num_mel_bins": 20,
    "d_model": 32,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "output_dim": 64,
}


def build_reference(
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    audio: dict[str, Any] | None = None,
    *,
    tied: bool = False,
) -> Qwen2_5OmniThinkerForConditionalGeneration:
    """A reference thinker with every parameter random, biases and norms too."""
    config = Qwen2_5OmniThinkerConfig(
        text_config={**TINY_TEXT, "tie_word_embeddings": tied, **(text or {})},
        vision_config={**TINY_VISION, **(vision or {})},
        audio_config={**TINY_AUDIO, **(audio or {})},
        tie_word_embeddings=tied,
        **TOKENS,
    )
    with no_init_weights():
        model = Qwen2_5OmniThinkerForConditionalGeneration(config).eval()
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(-1, 1, generator=generator)
            if any(part in name for part in ("norm", "ln_")) and name.endswith("weight"):
                parameter.mul_(0.3).add_(1)
            elif parameter.ndim == 1:
                parameter.mul_(0.3)
            else:
                parameter.mul_(parameter[0].numel() ** -0.5 * 1.7)
    return model


def our_positions(batch: Batch, config) -> np.ndarray:
    """int32 ``[B, 3, T]``; ones in the padding, as transformers has them."""
    out = np.ones((len(batch.tokens), 3, batch.tokens.shape[1]), np.int32)
    for b, spans in enumerate(batch.spans):
        out[b][:, batch.valid[b]] = positions(batch.tokens[b][batch.valid[b]], spans, config)[0]
    return out


def our_index(batch: Batch, config) -> np.ndarray:
    """Feature row of every token, -1 for text and padding."""
    room = slots_for([grid for _, grid in batch.slices], config).tokens
    rows = FeatureRows(len(batch.slices), room, config.sound_tokens)
    index = np.full(batch.tokens.shape, -1, np.int32)
    for b, spans in enumerate(batch.spans):
        count = int(batch.valid[b].sum())
        index[b, batch.valid[b]] = media_index(count, spans, MERGE, rows)
    return index


def run_ours(directory: Path, batch: Batch, **options: str) -> dict[str, np.ndarray]:
    """``logits`` and the input of every layer, named as :func:`run_reference` names them."""
    graphdef, params, config = io.load(directory, **options)
    given = media_input(batch.slices, batch.sound_slices, config)
    given = None if given == (None, None) else given

    @jax.jit
    def run(params, media, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        rest = {"media_index": index, "valid": valid}
        encoded = None if media is None else model.encode_media(media)
        hidden, _ = model(tokens, positions, media=encoded, **rest)
        layers = model.layer_inputs(tokens, positions, media=media, **rest)
        return hidden @ model.head().astype(hidden.dtype), layers

    arrays = (batch.tokens, our_positions(batch, config), our_index(batch, config), batch.valid)
    logits, layers = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float32), run(params, given, *arrays)
    )
    out = _our_towers(batch, given, layers, config)
    for number, layer in enumerate(layers["text"]):
        out[f"layer {number}"] = layer[batch.valid]
    out["final norm"] = layers["hidden"][batch.valid]
    out["logits"] = logits[batch.valid]
    return out


def _our_towers(batch: Batch, given, layers, config) -> dict[str, np.ndarray]:
    out = {}
    sizes = [h * w // MERGE**2 for _, (h, w) in batch.slices]
    room = max(sizes, default=0)
    if batch.sounds:
        frames = given.audio.frames
        seen = np.arange(config.audio.n_window)[None] < ((frames + 1) // 2)[:, None]
        for number, block in enumerate(layers["audio"]):
            out[f"audio block {number}"] = block[seen]
        heard = layers["features"][len(sizes) * room :].reshape(len(frames), 50, -1)
        own = np.arange(50)[None] < ((frames + 1) // 4)[:, None]
        out["audio features"] = heard[own]
    for kind in sorted(set(batch.kinds)):
        ours = np.array([k == kind for k in batch.kinds])
        for number, block in enumerate(layers["vision"]):
            out[f"{kind} block {number}"] = block[ours][given.vision.valid[ours]]
        features = layers["features"][: len(sizes) * room].reshape(len(sizes), room, -1)
        own = zip(features, sizes, ours, strict=True)
        out[f"{kind} features"] = np.concatenate([f[:n] for f, n, k in own if k])
    return out


def run_reference(
    model: Qwen2_5OmniThinkerForConditionalGeneration, batch: Batch
) -> dict[str, np.ndarray]:
    """The same from transformers, at real tokens only, in the order in which they are computed."""
    out: dict[str, np.ndarray] = {}
    kind = ""

    def record(name):
        def hook(module, args, kwargs):
            state = (args[0] if args else kwargs["hidden_states"]).float().numpy()
            out[f"{kind} {name}" if kind else name] = state if kind else state[batch.valid]

        return hook

    inner = model.model
    parts = [(f"block {i}", block) for i, block in enumerate(inner.visual.blocks)]
    parts += [(f"block {i}", block) for i, block in enumerate(inner.audio_tower.layers)]
    parts += [(f"layer {i}", layer) for i, layer in enumerate(inner.language_model.layers)]
    parts += [("final norm", model.lm_head)]
    hooks = [
        module.register_forward_pre_hook(record(name), with_kwargs=True) for name, module in parts
    ]
    encoded, sound = {}, sound_arguments(batch)
    with torch.no_grad():
        if batch.sounds:
            kind = "audio"
            heard = inner.get_audio_features(**sound, return_dict=True).last_hidden_state
            out["audio features"] = heard.float().numpy()
        for kind in sorted(set(batch.kinds)):
            encode = getattr(inner, f"get_{kind}_features")
            grids = torch.tensor(batch.grids[kind])
            encoded[kind] = encode(torch.tensor(_pixels(batch, kind)), grids, return_dict=True)
            out[f"{kind} features"] = torch.cat(tuple(encoded[kind].pooler_output)).float().numpy()
        places = _places(model, batch)
        embedded = inner.get_input_embeddings()(torch.tensor(batch.tokens).long())
        if batch.sounds:
            embedded[torch.tensor(batch.tokens == AUDIO)] = heard.to(embedded.dtype)
        for kind, own in encoded.items():
            pad = torch.tensor(batch.tokens == {"image": IMAGE, "video": VIDEO}[kind])
            embedded[pad] = torch.cat(tuple(own.pooler_output)).to(embedded.dtype)
        kind = ""
        result = model(
            inputs_embeds=embedded,
            attention_mask=torch.tensor(batch.valid).long(),
            position_ids=places,
        )
    for hook in hooks:
        hook.remove()
    out["logits"] = result.logits.float().numpy()[batch.valid]
    return out


def _places(model: Any, batch: Batch) -> torch.Tensor:
    return model.model.get_rope_index(
        torch.tensor(batch.tokens).long(),
        attention_mask=torch.tensor(batch.valid).long(),
        **position_arguments(batch),
    )[0]


def run_whole_reference(model: Qwen2_5OmniThinkerForConditionalGeneration, batch: Batch):
    """Logits of transformers' own forward pass, which scatters features and finds positions."""
    pixels = {
        name: torch.tensor(_pixels(batch, kind))
        for name, kind in (("pixel_values", "image"), ("pixel_values_videos", "video"))
        if kind in batch.kinds
    }
    rest = position_arguments(batch)
    with torch.no_grad():
        result = model(
            input_ids=torch.tensor(batch.tokens).long(),
            attention_mask=torch.tensor(batch.valid).long(),
            image_grid_thw=rest["image_grid_thw"],
            video_grid_thw=rest["video_grid_thw"],
            video_second_per_grid=rest["second_per_grids"],
            use_audio_in_video=batch.audio_in_video,
            **pixels,
            **(sound_arguments(batch) if batch.sounds else {}),
        )
    return result.logits.float().numpy()[batch.valid]


def position_arguments(batch: Batch) -> dict[str, Any]:
    """What ``get_rope_index`` needs besides tokens and mask."""
    lengths = [sound.shape[1] for sound in batch.sounds]
    return {
        **{
            f"{kind}_grid_thw": torch.tensor(own) if own else None
            for kind, own in batch.grids.items()
        },
        "use_audio_in_video": batch.audio_in_video,
        "audio_seqlens": torch.tensor(lengths) if lengths else None,
        "second_per_grids": torch.tensor(batch.seconds) if batch.seconds else None,
    }


def sound_arguments(batch: Batch) -> dict[str, torch.Tensor]:
    """Whole sounds, padded to the longest, and their mask."""
    longest = max((sound.shape[1] for sound in batch.sounds), default=0)
    padded = [np.pad(s, ((0, 0), (0, longest - s.shape[1]))) for s in batch.sounds]
    mask = [np.arange(longest) < s.shape[1] for s in batch.sounds]
    return {
        "input_features": torch.tensor(np.array(padded)),
        "feature_attention_mask": torch.tensor(np.array(mask)).long(),
    }


def _pixels(batch: Batch, kind: str) -> np.ndarray:
    values = [v for (v, _), k in zip(batch.slices, batch.kinds, strict=True) if k == kind]
    pixels = np.concatenate(values).astype(np.float64).reshape(-1, 3, 392) / 255.0
    pixels = (pixels - MEAN[None, :, None]) / STD[None, :, None]
    return pixels.reshape(-1, 1176).astype(np.float32)
