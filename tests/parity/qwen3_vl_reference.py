"""Random Qwen3-VL checkpoints built by transformers, and both models run on one batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from flax import nnx
from qwen2_5_vl_reference import Grid
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.initialization import no_init_weights

from turnwise_jax.models import io
from turnwise_jax.models.media import FeatureRows, media_index
from turnwise_jax.models.qwen3_vl import media_input, positions, slots_for

IMAGE, VIDEO, START, END, VOCAB = 290, 291, 292, 293, 300
MERGE, PATCH = 2, 1536
TINY_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [6, 3, 3],
        "mrope_interleaved": True,
    },
    "bos_token_id": None,
    "eos_token_id": None,
}
TINY_VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 49,
    "deepstack_visual_indexes": [0, 2],
}


class Span(NamedTuple):
    start: int
    grid: tuple[int, int, int]
    kind: str
    seconds_per_grid: float | None
    slice: int


@dataclass
class Batch:
    """Padded rows with everything either model takes; ``grids`` are whole videos, by kind."""

    tokens: np.ndarray
    valid: np.ndarray
    spans: list[list[Span]]
    slices: list[tuple[np.ndarray, tuple[int, int]]]
    kinds: list[str]
    grids: dict[str, list[tuple[int, int, int]]]


def build_reference(
    text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, *, tied: bool = False
) -> Qwen3VLForConditionalGeneration:
    """A reference model with every parameter random, biases and norms too."""
    config = Qwen3VLConfig(
        text_config={**TINY_TEXT, **(text or {})},
        vision_config={**TINY_VISION, **(vision or {})},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=tied,
    )
    with no_init_weights():
        model = Qwen3VLForConditionalGeneration(config).eval()
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(-1, 1, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.mul_(0.3).add_(1)
            elif parameter.ndim == 1 or "pos_embed" in name:
                parameter.mul_(0.3)
            else:
                parameter.mul_(parameter[0].numel() ** -0.5 * 1.7)
    return model


def make_batch(rows: list[list[int | Grid]], *, pad: str = "right", seed: int = 1) -> Batch:
    """Rows of text runs (a count of random tokens) and grids, padded with token 0.

    Every temporal row of a video stands behind a timestamp, one token more for each.
    """
    rng = np.random.default_rng(seed)
    batch = Batch(np.zeros(0), np.zeros(0), [], [], [], {"image": [], "video": []})
    lines = []
    for row in rows:
        tokens: list[int] = []
        spans: list[Span] = []
        for part in row:
            if isinstance(part, int):
                tokens += rng.integers(1, IMAGE, part).tolist()
                continue
            kind = "image" if part.fps is None else "video"
            batch.grids[kind].append(part[:3])
            for number in range(part.t):
                if kind == "video":
                    tokens += rng.integers(1, IMAGE, 1 + number).tolist()
                tokens.append(START)
                spans.append(Span(len(tokens), (1, *part[1:3]), kind, None, len(batch.slices)))
                count = part.h * part.w // MERGE**2
                tokens += [IMAGE if kind == "image" else VIDEO] * count + [END]
                values = rng.integers(0, 256, (part.h * part.w, PATCH), np.uint8)
                batch.slices.append((values, part[1:3]))
                batch.kinds.append(kind)
        lines.append(tokens)
        batch.spans.append(spans)
    length = max(len(line) for line in lines)
    batch.tokens = np.zeros((len(lines), length), np.int32)
    batch.valid = np.zeros((len(lines), length), bool)
    for b, line in enumerate(lines):
        place = slice(0, len(line)) if pad == "right" else slice(length - len(line), length)
        batch.tokens[b, place] = line
        batch.valid[b, place] = True
    return batch


def our_positions(batch: Batch, config) -> np.ndarray:
    """int32 ``[B, 3, T]``; zeros in the padding, as transformers has them."""
    out = np.zeros((len(batch.tokens), 3, batch.tokens.shape[1]), np.int32)
    for b, spans in enumerate(batch.spans):
        out[b][:, batch.valid[b]] = positions(batch.tokens[b][batch.valid[b]], spans, config)[0]
    return out


def our_index(batch: Batch, config) -> np.ndarray:
    """Feature row of every token, -1 for text and padding."""
    tokens = slots_for([grid for _, grid in batch.slices], config).tokens
    rows = FeatureRows(max(len(batch.slices), 1), tokens)
    index = np.full(batch.tokens.shape, -1, np.int32)
    for b, spans in enumerate(batch.spans):
        count = int(batch.valid[b].sum())
        index[b, batch.valid[b]] = media_index(count, spans, MERGE, rows)
    return index


def run_ours(directory: Path, batch: Batch, **options: str) -> dict[str, np.ndarray]:
    """``logits`` and the input of every layer, named as :func:`run_reference` names them."""
    graphdef, params, config = io.load(directory, **options)
    media = media_input(batch.slices, [], config)

    @jax.jit
    def run(params, media, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        rest = {"media_index": index, "valid": valid}
        encoded = model.encode_media(media)
        hidden, _ = model(tokens, positions, media=encoded, **rest)
        layers = model.layer_inputs(tokens, positions, media=media, **rest)
        return hidden @ model.head().astype(hidden.dtype), layers

    arrays = (batch.tokens, our_positions(batch, config), our_index(batch, config), batch.valid)
    logits, layers = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float32), run(params, media, *arrays)
    )
    out = {}
    sizes = [h * w // MERGE**2 for _, (h, w) in batch.slices]

    def tokens_of(kind, features):
        features = features.reshape(len(sizes), -1, features.shape[-1])
        own = zip(features, sizes, batch.kinds, strict=True)
        return np.concatenate([f[:n] for f, n, k in own if k == kind])

    for kind in sorted(set(batch.kinds)):
        ours = np.array([k == kind for k in batch.kinds])
        for number, block in enumerate(layers["vision"]):
            out[f"{kind} block {number}"] = block[ours][media.vision.valid[ours]]
        for number, deep in enumerate(layers["deep"]):
            out[f"{kind} deep {number}"] = tokens_of(kind, deep)
        out[f"{kind} features"] = tokens_of(kind, layers["features"])
    for number, layer in enumerate(layers["text"]):
        out[f"layer {number}"] = layer[batch.valid]
    out["final norm"] = layers["hidden"][batch.valid]
    out["logits"] = logits[batch.valid]
    return out


def run_reference(model: Qwen3VLForConditionalGeneration, batch: Batch) -> dict[str, np.ndarray]:
    """The same from transformers, at real tokens only, in the order in which they are computed."""
    out: dict[str, np.ndarray] = {}
    kind = ""

    def record(name):
        def hook(module, args):
            prefix = f"{kind} " if name.startswith("block") else ""
            state = args[0].float().numpy()
            out[prefix + name] = state if prefix else state[batch.valid]

        return hook

    text, visual = model.model.language_model, model.model.visual
    parts = [(f"block {i}", block) for i, block in enumerate(visual.blocks)]
    parts += [(f"layer {i}", layer) for i, layer in enumerate(text.layers)]
    parts += [("final norm", model.lm_head)]
    hooks = [module.register_forward_pre_hook(record(name)) for name, module in parts]
    encoded = {}
    with torch.no_grad():
        for kind in sorted(set(batch.kinds)):
            pixels = torch.tensor(_pixels(batch, kind))
            encode = getattr(model.model, f"get_{kind}_features")
            found = encode(pixels, torch.tensor(batch.grids[kind]), return_dict=True)
            for number, deep in enumerate(found.deepstack_features):
                out[f"{kind} deep {number}"] = torch.cat(tuple(deep)).float().numpy()
            out[f"{kind} features"] = torch.cat(tuple(found.pooler_output)).float().numpy()
            encoded[kind] = found
        result = model(
            input_ids=torch.tensor(batch.tokens).long(),
            attention_mask=torch.tensor(batch.valid).long(),
            **media_arguments(batch),
            mm_encoder_outputs=encoded or None,
        )
    for hook in hooks:
        hook.remove()
    out["logits"] = result.logits.float().numpy()[batch.valid]
    return out


def media_arguments(batch: Batch) -> dict[str, torch.Tensor | None]:
    """What transformers needs for M-RoPE."""
    types = torch.tensor((batch.tokens == IMAGE) * 1 + (batch.tokens == VIDEO) * 2)
    grids = {
        f"{kind}_grid_thw": torch.tensor(own) if own else None for kind, own in batch.grids.items()
    }
    return {"mm_token_type_ids": types.int(), **grids}


def _pixels(batch: Batch, kind: str) -> np.ndarray:
    values = [v for (v, _), k in zip(batch.slices, batch.kinds, strict=True) if k == kind]
    return (np.concatenate(values).astype(np.float64) / 127.5 - 1).astype(np.float32)
