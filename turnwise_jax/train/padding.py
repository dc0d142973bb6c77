"""How much of a batch's room holds nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from turnwise_jax.train.hosts import ALONE, Hosts
from turnwise_jax.train.metrics import METRICS, read_jsonl
from turnwise_jax.train.state import Batch


def padding(batch: Batch, hosts: Hosts = ALONE, *, copies: int = 1) -> float:
    """Share of token slots without a token, of the rows and of the contexts that they share.

    Args:
      batch: this process's part; the share is of all of them.
      copies: how often each context stands in the batch; it counts once.
    """
    masks = [batch.valid_NT]
    if batch.context is not None:
        masks.append(batch.context.valid[::copies])
    own = [sum(int(mask.sum()) for mask in masks), sum(mask.size for mask in masks)]
    tokens, slots = (sum(part) for part in zip(*hosts.gather(own), strict=True))
    return 1.0 - tokens / slots


def mean_padding(directory: Path) -> float | None:
    """Of all logged steps of a run; None if none has it."""
    lines = read_jsonl(directory / METRICS)
    shares = [line["padding"] for line in lines if line.get("padding") is not None]
    return float(np.mean(shares)) if shares else None
