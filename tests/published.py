"""A directory such as a user downloads: published sizes cut in depth, random bfloat16 weights.

    PYTHONPATH=.:tests python tests/published.py DIR

writes Qwen2.5-VL-3B with two decoder layers and two vision blocks, its real widths, vocabulary and
tokenizer (1 GB), to try a command before the real weights are there.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from qwen_vocab import qwen_ranks, write_qwen_tokenizer

from turnwise_jax.data.images import FrameSpec
from turnwise_jax.models import io
from turnwise_jax.models.params import named, replaced
from turnwise_jax.models.qwen2_5_vl import PUBLISHED, Config

DEPTH = {"num_hidden_layers": 2}
VISION_DEPTH = {"depth": 2, "fullatt_block_indexes": [1]}


def write_published(
    directory: Path,
    size: str = "3b",
    *,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Writes tokenizer, preprocessor, ``config.json`` and weights in three or more shards.

    Args:
      directory: the target; made.
      size: of ``PUBLISHED``; its depth is cut to two layers and two vision blocks.
      text, vision: other fields of ``config.json`` and its vision section to replace.
      seed: of the weights.
    """
    raw = copy.deepcopy(PUBLISHED[size]) | DEPTH | dict(text or {})
    raw["vision_config"] |= VISION_DEPTH | dict(vision or {})
    config = Config.from_hf(raw)
    rng = np.random.default_rng(seed)
    params = io.build(config, param_dtype="bfloat16")[1]
    values = {path: _draw(rng, path[-1], leaf.shape) for path, leaf in named(params).items()}
    directory.mkdir(parents=True)
    write_qwen_tokenizer(directory, qwen_ranks())
    FrameSpec(max_pixels=16384 * 28 * 28).save(directory)
    total = sum(value.nbytes for value in values.values())
    io.save(directory, config, replaced(params, values), max_shard_bytes=total // 3)


def _draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "scale":
        return np.ones(shape, jnp.bfloat16)
    return (0.02 * rng.standard_normal(shape, np.float32)).astype(jnp.bfloat16)


if __name__ == "__main__":
    write_published(Path(sys.argv[1]))
