"""The name table of Qwen2.5-VL, and the spellings its checkpoints have used.

Written names are those of the published checkpoints (``model.layers.*``, ``visual.*``,
``lm_head.weight``), which every version of transformers reads. Read are also
``model.language_model.*`` and ``model.visual.*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from turnwise_jax.models.qwen2_5_vl.config import Config, VisionConfig
from turnwise_jax.models.text_weights import linear, text_entries
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
    head = None if config.tie_word_embeddings else HEAD
    return [*text_entries(config.text, prefix="model.", head=head), *vision_entries(config.vision)]


def vision_entries(
    vision: VisionConfig, *, prefix: str = "visual.", fused: bool = True
) -> list[Entry]:
    """One row per parameter of the group ``vision``, in the order in which they are written.

    Args:
      vision: the tower's sizes.
      prefix: what stands before ``patch_embed``, ``blocks`` and ``merger``, with its dot.
      fused: queries, keys and values are one projection.
    """
    width, hidden, layers = vision.hidden_size, vision.intermediate_size, vision.depth
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    rows = [
        Entry(
            ("vision", "patch", "kernel"), f"{prefix}patch_embed.proj.weight", (width, *patch), True
        )
    ]
    path, name = ("vision", "blocks"), f"{prefix}blocks.{{}}"
    for norm in ("norm1", "norm2"):
        rows.append(Entry((*path, norm, "scale"), f"{name}.{norm}.weight", (width,), False, layers))
    projections = {"qkv": 3 * width} if fused else {"q": width, "k": width, "v": width}
    for part, out in (*projections.items(), ("proj", width)):
        rows += linear((*path, part), f"{name}.attn.{part}", out, width, bias=True, layers=layers)
    for part, out, inputs in (
        ("gate", hidden, width),
        ("up", hidden, width),
        ("down", width, hidden),
    ):
        rows += linear(
            (*path, "mlp", part), f"{name}.mlp.{part}_proj", out, inputs, bias=True, layers=layers
        )
    joined = width * vision.spatial_merge_size**2
    path, name = ("vision", "merger"), f"{prefix}merger"
    rows.append(Entry((*path, "norm", "scale"), f"{name}.ln_q.weight", (width,)))
    for ours, number, out in (("fc1", 0, joined), ("fc2", 2, vision.out_hidden_size)):
        rows += linear((*path, ours), f"{name}.mlp.{number}", out, joined, bias=True, layers=None)
    return rows
