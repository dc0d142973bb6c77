"""Sizes of video frames equal those of transformers' video processor of Qwen3-VL.

That of Qwen2.5-VL needs torchvision; its rule for a frame is the image processor's.
"""

from __future__ import annotations

import numpy as np
import pytest
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as qwen3_size

from turnwise_jax.data.images import FrameSpec, VideoSize, smart_resize


@pytest.mark.parametrize(("low", "high"), [(4096, 25165824), (32 * 32 * 128, 32 * 32 * 768)])
def test_the_whole_video_is_bounded_as_in_qwen3_vl(low, high):
    spec = FrameSpec(patch_size=16, video=VideoSize(low, high, True))
    rng = np.random.default_rng(0)
    for _ in range(500):
        height, width = (int(2 ** rng.uniform(3, 11)) for _ in range(2))
        frames = int(rng.integers(2, 200))
        want = qwen3_size(frames, height, width, 2, 32, low, high)
        assert smart_resize(height, width, spec, frames=frames) == want, (height, width, frames)
