"""Random tiny Qwen2.5-VL checkpoints built by transformers, and both models run on one batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from flax import nnx
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from turnwise_jax.models import io
from turnwise_jax.models.media import FeatureRows, MediaInput, media_index
from turnwise_jax.models.qwen2_5_vl import positions, vision_input

IMAGE, VIDEO, START, END, VOCAB = 290, 291, 292, 293, 300
MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])
MERGE = 2


class Span(NamedTuple):
    start: int
    grid: tuple[int, int, int]
    kind: str
    seconds_per_grid: float | None
    slice: int


class Grid(NamedTuple):
    """A picture or video in a row, in patches; ``fps`` marks a video."""

    t: int
    h: int
    w: int
    fps: float | None = None


@dataclass
class Batch:
    """Padded rows with everything either model takes."""

    tokens: np.ndarray
    valid: np.ndarray
    spans: list[list[Span]]
    slices: list[tuple[np.ndarray, tuple[int, int]]]
    kinds: list[str]


def save_reference(
    directory: Path,
    *,
    tied: bool,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
) -> Qwen2_5_VLForConditionalGeneration:
    """A reference model with every parameter random, biases and norms too, saved on the way.

    ``text`` and ``vision`` override the tiny sizes.
    """
    config = Qwen2_5_VLConfig(
        text_config={
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
            **(text or {}),
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
            **(vision or {}),
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=tied,
    )
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name or "ln_q" in name
            size = 0.1 if parameter.ndim == 1 else min(0.1, parameter[0].numel() ** -0.5)
            parameter.copy_(1 + 0.2 * noise if is_norm else size * noise)
    model.to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    return model


def make_batch(rows: list[list[int | Grid]], *, pad: str = "right", seed: int = 1) -> Batch:
    """Rows of text runs (a count of random tokens) and grids, padded with token 0."""
    rng = np.random.default_rng(seed)
    lines, spans, slices, kinds = [], [], [], []
    for row in rows:
        tokens: list[int] = []
        row_spans: list[Span] = []
        for part in row:
            if isinstance(part, int):
                tokens += rng.integers(1, IMAGE, part).tolist()
                continue
            kind = "image" if part.fps is None else "video"
            seconds = None if part.fps is None else 2.0 / part.fps
            tokens.append(START)
            row_spans.append(Span(len(tokens), part[:3], kind, seconds, len(slices)))
            count = part.t * part.h * part.w // MERGE**2
            tokens += [IMAGE if kind == "image" else VIDEO] * count + [END]
            for _ in range(part.t):
                slices.append((rng.integers(0, 256, (part.h * part.w, 1176), np.uint8), part[1:3]))
                kinds.append(kind)
        lines.append(tokens)
        spans.append(row_spans)
    length = max(len(line) for line in lines)
    tokens_BT = np.zeros((len(lines), length), np.int32)
    valid_BT = np.zeros((len(lines), length), bool)
    for b, line in enumerate(lines):
        place = slice(0, len(line)) if pad == "right" else slice(length - len(line), length)
        tokens_BT[b, place] = line
        valid_BT[b, place] = True
    return Batch(tokens_BT, valid_BT, spans, slices, kinds)


def our_positions(batch: Batch, config) -> np.ndarray:
    """int32 ``[B, 3, T]``; zeros in the padding, as transformers has them."""
    out = np.zeros((len(batch.tokens), 3, batch.tokens.shape[1]), np.int32)
    for b, spans in enumerate(batch.spans):
        out[b][:, batch.valid[b]] = positions(batch.tokens[b][batch.valid[b]], spans, config)[0]
    return out


def run_ours(directory: Path, batch: Batch, **options: str) -> dict[str, np.ndarray]:
    """``logits`` and the input of every layer, named as :func:`run_reference` names them."""
    graphdef, params, config = io.load(directory, **options)
    vision = vision_input(batch.slices, config)
    index = np.full(batch.tokens.shape, -1, np.int32)
    for b, spans in enumerate(batch.spans):
        count = int(batch.valid[b].sum())
        index[b, batch.valid[b]] = media_index(
            count, spans, MERGE, FeatureRows(0, vision.tokens.shape[1])
        )

    @jax.jit
    def run(params, vision, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        rest = {"media_index": index, "valid": valid}
        media = model.encode_media(MediaInput(vision))
        hidden, _ = model(tokens, positions, media=media, **rest)
        layers = model.layer_inputs(tokens, positions, media=MediaInput(vision), **rest)
        return hidden @ model.head().astype(hidden.dtype), layers

    logits, layers = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float32),
        run(params, vision, batch.tokens, our_positions(batch, config), index, batch.valid),
    )
    out = {}
    for kind in sorted(set(batch.kinds)):
        ours = np.array([k == kind for k in batch.kinds])
        for number, block in enumerate(np.asarray(layers["vision"])):
            out[f"{kind} block {number}"] = block[ours][vision.valid[ours]]
        sizes = [h * w // MERGE**2 for _, (h, w) in batch.slices]
        features = np.asarray(layers["features"]).reshape(len(sizes), -1, config.text.hidden_size)
        out[f"{kind} features"] = np.concatenate(
            [f[:n] for f, n, own in zip(features, sizes, ours, strict=True) if own]
        )
    for number, layer in enumerate(np.asarray(layers["text"])):
        out[f"layer {number}"] = layer[batch.valid]
    out["final norm"] = np.asarray(layers["hidden"])[batch.valid]
    out["logits"] = np.asarray(logits)[batch.valid]
    return out


def run_reference(model: Qwen2_5_VLForConditionalGeneration, batch: Batch) -> dict[str, np.ndarray]:
    """The same from transformers, at real tokens only, in the order in which they are computed."""
    out: dict[str, np.ndarray] = {}
    kind = ""

    def record(number):
        def hook(module, args):
            out[f"{kind} block {number}"] = args[0].numpy()

        return hook

    blocks = model.model.visual.blocks
    hooks = [block.register_forward_pre_hook(record(i)) for i, block in enumerate(blocks)]
    encoded = {}
    with torch.no_grad():
        for kind in sorted(set(batch.kinds)):
            pixels = torch.tensor(_pixels(batch, kind))
            encode = getattr(model.model, f"get_{kind}_features")
            encoded[kind] = encode(pixels, _grids(batch, kind), return_dict=True)
            out[f"{kind} features"] = torch.cat(tuple(encoded[kind].pooler_output)).numpy()
        result = model(
            input_ids=torch.tensor(batch.tokens).long(),
            attention_mask=torch.tensor(batch.valid).long(),
            output_hidden_states=True,
            **media_arguments(batch),
            mm_encoder_outputs=encoded or None,
        )
    for hook in hooks:
        hook.remove()
    states = [state.numpy()[batch.valid] for state in result.hidden_states]
    for number, state in enumerate(states[:-1]):
        out[f"layer {number}"] = state
    out["final norm"] = states[-1]
    out["logits"] = result.logits.numpy()[batch.valid]
    return out


def media_arguments(batch: Batch) -> dict[str, torch.Tensor | None]:
    """What transformers needs for M-RoPE; without token types it uses 1-D positions."""
    types = torch.tensor((batch.tokens == IMAGE) * 1 + (batch.tokens == VIDEO) * 2)
    seconds = [s.seconds_per_grid for row in batch.spans for s in row if s.kind == "video"]
    return {
        "mm_token_type_ids": types.int(),
        "image_grid_thw": _grids(batch, "image"),
        "video_grid_thw": _grids(batch, "video"),
        "second_per_grid_ts": torch.tensor(seconds) if seconds else None,
    }


def first_difference(
    ours: dict[str, np.ndarray], reference: dict[str, np.ndarray], tolerance: float
) -> str | None:
    """The first stage that differs by more than ``tolerance``, and by how much."""
    assert set(ours) == set(reference)
    for name, expected in reference.items():
        if ours[name].shape != expected.shape:
            return f"{name}: shape {ours[name].shape}, reference {expected.shape}"
        worst = float(np.abs(ours[name] - expected).max())
        if not worst <= tolerance:
            return f"{name}: differs by {worst:.3g}, allowed {tolerance:.3g}"
    return None


def _grids(batch: Batch, kind: str) -> torch.Tensor | None:
    grids = [span.grid for row in batch.spans for span in row if span.kind == kind]
    return torch.tensor(grids) if grids else None


def _pixels(batch: Batch, kind: str) -> np.ndarray:
    values = [v for (v, _), k in zip(batch.slices, batch.kinds, strict=True) if k == kind]
    pixels = np.concatenate(values).astype(np.float64).reshape(-1, 3, 392) / 255.0
    pixels = (pixels - MEAN[None, :, None]) / STD[None, :, None]
    return pixels.reshape(-1, 1176).astype(np.float32)
