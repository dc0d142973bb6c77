"""The name table of Qwen3-VL: one spelling, that of the published checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from turnwise_jax.models.params import Path
from turnwise_jax.models.qwen3_vl.config import Config
from turnwise_jax.models.text_weights import linear, text_entries
from turnwise_jax.models.weights import Entry

TEXT = "model.language_model."
VISION = "model.visual."
EMBEDDING = f"{TEXT}embed_tokens.weight"
HEAD = "lm_head.weight"


def spelling(names: Iterable[str]) -> dict[str, str]:
    """Published name -> the name found among ``names``."""
    return {name: name for name in names}


def ignored(name: str) -> bool:
    """No tensor is without information."""
    return False


def entries(config: Config) -> list[Entry]:
    """One row per parameter, in the order in which they are written."""
    head = None if config.tie_word_embeddings else HEAD
    return [*text_entries(config.text, prefix=TEXT, head=head), *_vision(config)]


def _vision(config: Config) -> list[Entry]:
    vision = config.vision
    width, layers = vision.hidden_size, vision.depth
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    proj = f"{VISION}patch_embed.proj"
    rows = [
        Entry(("vision", "patch", "kernel"), f"{proj}.weight", (width, *patch), True),
        Entry(("vision", "patch", "bias"), f"{proj}.bias", (width,)),
        Entry(
            ("vision", "positions", "embedding"),
            f"{VISION}pos_embed.weight",
            (vision.num_position_embeddings, width),
        ),
    ]
    path, name = ("vision", "blocks"), f"{VISION}blocks.{{}}"
    for norm in ("norm1", "norm2"):
        rows += _norm((*path, norm), f"{name}.{norm}", width, layers)
    for part, out in (("qkv", 3 * width), ("proj", width)):
        rows += linear((*path, part), f"{name}.attn.{part}", out, width, bias=True, layers=layers)
    hidden = vision.intermediate_size
    for part, out, inputs in (("fc1", hidden, width), ("fc2", width, hidden)):
        theirs = f"{name}.mlp.linear_{part}"
        rows += linear((*path, "mlp", part), theirs, out, inputs, bias=True, layers=layers)
    joined = width * vision.spatial_merge_size**2
    rows += _merger("merger", f"{VISION}merger", config, width, None)
    taps = len(vision.deepstack_visual_indexes)
    return rows + _merger("deep", f"{VISION}deepstack_merger_list.{{}}", config, joined, taps)


def _merger(ours: str, name: str, config: Config, normed: int, layers: int | None) -> list[Entry]:
    joined = config.vision.hidden_size * config.vision.spatial_merge_size**2
    rows = _norm(("vision", ours, "norm"), f"{name}.norm", normed, layers)
    for part, out in (("fc1", joined), ("fc2", config.vision.out_hidden_size)):
        theirs = f"{name}.linear_{part}"
        rows += linear(("vision", ours, part), theirs, out, joined, bias=True, layers=layers)
    return rows


def _norm(path: Path, name: str, size: int, layers: int | None) -> list[Entry]:
    return [
        Entry((*path, "scale"), f"{name}.weight", (size,), False, layers),
        Entry((*path, "bias"), f"{name}.bias", (size,), False, layers),
    ]
