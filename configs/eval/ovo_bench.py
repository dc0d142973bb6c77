"""OVO-Bench, official accuracy form: one question at every test point of a video cut there.

    turnwise eval --config=configs/eval/ovo_bench.py --config.policy.checkpoint=DIR \
        --config.data.path=OVO-Bench/data/ovo_bench_new.json --config.data.root=OVO-Bench/data \
        --config.dir=runs/ovo_bench

On disk: the annotation file (or its first version) and ``chunked_videos/`` (about 144 GB), or
``src_videos/`` (about 44 GB), of which the part up to the test point is shown. 1,640 records, 3,035
test points: 1,468 with options, 240 of CRR, 629 of SSR, 698 of REC.

Each is asked by itself, 64 frames spread over the clip, greedy, with the official prompts; no
judge. ``--config.data.on_bad_record=skip`` goes on without what cannot be read and counts it. Rule,
line by line: ``turnwise_jax/eval/ovo_bench.py``. Expected: published numbers of one model differ
widely between reports (25 to 49 on CRR for one Qwen2-VL); compare models under one protocol.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("ovo_bench")
    config.data.update(sound=False, frames=64)
    config.decoding.max_new_tokens = 32
    return config
