"""The name table of Qwen2.5-VL, and the spellings its checkpoints have used.

Written names are those of the published checkpoints (``model.layers.*``, ``visual.*``,
``lm_head.weight``), which every version of transformers reads. Read are also
``model.language_model.*`` and ``model.visual.*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from turnwise_jax.models.params import Path
from turnwise_jax.models.qwen2_5_vl.config import Config
from turnwise_jax.models.weights import Entry

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_SPELLINGS = (
    (re.compile(r"^model\.language_model\."), "model."),
    (re.compile(r"^language_model\.model\."), "model."),
    (re.compile(r"^model\.visual\."), "visual."),
)
_BUFFER = re.compile(r"rotary_(pos_)?emb\.(inv_freq|original_inv_freq)$")


def published_name(name: str) -> str:
    """A tensor name of any spelling -> the published one."""
    for pattern, prefix in _SPELLINGS:
        name = pattern.sub(prefix, name)
    return name


def spelling(names: Iterable[str]) -> dict[str, str]:
    """Published name -> the name found among ``names``."""
    return {published_name(name): name for name in names}


def ignored(name: str) -> bool:
    """Tensors without information: rotary buffers that old checkpoints carry."""
    return _BUFFER.search(name) is not None


def entries(config: Config) -> list[Entry]:
    """One row per parameter, in the order in which they are written."""
    return [*_text(config), *_vision(config)]


def _linear(path: Path, name: str, out: int, inputs: int, *, bias: bool, layers: int | None):
    rows = [Entry((*path, "kernel"), f"{name}.weight", (out, inputs), True, layers)]
    if bias:
        rows.append(Entry((*path, "bias"), f"{name}.bias", (out,), False, layers))
    return rows


def _text(config: Config) -> list[Entry]:
    text = config.text
    width, hidden, layers = text.hidden_size, text.intermediate_size, text.num_hidden_layers
    queries = text.num_attention_heads * text.head_dim
    keys = text.num_key_value_heads * text.head_dim
    rows = [Entry(("text", "embed", "embedding"), EMBEDDING, (text.vocab_size, width))]
    path, name = ("text", "decoder", "layers"), "model.layers.{}"
    for ours, theirs in (
        ("attn_norm", "input_layernorm"),
        ("mlp_norm", "post_attention_layernorm"),
    ):
        rows.append(
            Entry((*path, ours, "scale"), f"{name}.{theirs}.weight", (width,), False, layers)
        )
    for part, out in (("q", queries), ("k", keys), ("v", keys)):
        rows += _linear(
            (*path, part), f"{name}.self_attn.{part}_proj", out, width, bias=True, layers=layers
        )
    rows += _linear(
        (*path, "o"), f"{name}.self_attn.o_proj", width, queries, bias=False, layers=layers
    )
    for part, out, inputs in (
        ("gate", hidden, width),
        ("up", hidden, width),
        ("down", width, hidden),
    ):
        rows += _linear(
            (*path, "mlp", part), f"{name}.mlp.{part}_proj", out, inputs, bias=False, layers=layers
        )
    rows.append(Entry(("text", "decoder", "norm", "scale"), "model.norm.weight", (width,)))
    if not config.tie_word_embeddings:
        rows.append(Entry(("text", "head", "kernel"), HEAD, (text.vocab_size, width), True))
    return rows


def _vision(config: Config) -> list[Entry]:
    vision = config.vision
    width, hidden, layers = vision.hidden_size, vision.intermediate_size, vision.depth
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    rows = [
        Entry(
            ("vision", "patch", "kernel"), "visual.patch_embed.proj.weight", (width, *patch), True
        )
    ]
    path, name = ("vision", "blocks"), "visual.blocks.{}"
    for norm in ("norm1", "norm2"):
        rows.append(Entry((*path, norm, "scale"), f"{name}.{norm}.weight", (width,), False, layers))
    for part, out in (("qkv", 3 * width), ("proj", width)):
        rows += _linear((*path, part), f"{name}.attn.{part}", out, width, bias=True, layers=layers)
    for part, out, inputs in (
        ("gate", hidden, width),
        ("up", hidden, width),
        ("down", width, hidden),
    ):
        rows += _linear(
            (*path, "mlp", part), f"{name}.mlp.{part}_proj", out, inputs, bias=True, layers=layers
        )
    joined = width * vision.spatial_merge_size**2
    path, name = ("vision", "merger"), "visual.merger"
    rows.append(Entry((*path, "norm", "scale"), f"{name}.ln_q.weight", (width,)))
    for ours, number, out in (("fc1", 0, joined), ("fc2", 2, vision.out_hidden_size)):
        rows += _linear((*path, ours), f"{name}.mlp.{number}", out, joined, bias=True, layers=None)
    return rows
