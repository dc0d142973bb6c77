"""transformers' Qwen2.5-VL on the benchmarks' checkpoint: loading, and frames through its tower.

Imports neither jax nor this package, so that a process of its own shows what torch alone needs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or idle threads spin on a small machine
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging

logging.disable_progress_bar()


def load(checkpoint: Path) -> Any:
    """The float32 model; torch uses as many threads as this process has cores."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)


def grids(frames: np.ndarray) -> torch.Tensor:
    """(1, h, w) of each square frame of f32 ``[rows, frames, patches, values]``."""
    side = round(frames.shape[2] ** 0.5)
    return torch.tensor([[1, side, side]] * (frames.shape[0] * frames.shape[1]))


def pixels(frames: np.ndarray) -> torch.Tensor:
    """The frames' patches one below the other, as the image processor gives them."""
    return torch.from_numpy(frames.reshape(-1, frames.shape[-1]))


def encode(model: Any, frames: np.ndarray) -> dict[str, Any]:
    """Features of every frame, in no graph, as the model takes what was encoded before."""
    with torch.no_grad():
        found = model.model.get_image_features(pixels(frames), grids(frames), return_dict=True)
    return {"image": found}
