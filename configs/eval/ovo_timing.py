"""OVO-Timing: whether replies come within 2 s of when they are due; F1 on CRR, SSR and REC.

    turnwise eval --config=configs/eval/ovo_timing.py --config.policy.checkpoint=DIR \
        --config.data.path=OVO-Bench/data/ovo_bench_new.json --config.data.root=OVO-Bench/data \
        --config.dir=runs/ovo_timing

On disk: OVO-Bench's annotation file (or its first version) and ``src_videos/``, or the last cut of
each record in ``chunked_videos/``. Only its 172 records of forward tasks are used; no judge is.

Streamed from 0 (REC, SSR) or from the question (CRR) to the last test point, the policy's own
replies as context, greedy, a decision every 4 s (``data.interval`` x ``data.turn_frames``): no due
time is farther than 2 s from a decision then. The number depends on this grid and on the wording of
the question. Videos are long: ``batch_size`` 2 keeps their caches small; raise it where memory
allows. Frames alone; ``--config.data.sound=True`` for a policy that hears. Rule, line by line:
``turnwise_jax/eval/ovo_timing.py``. Expected: TurnWise on Qwen2.5-VL-3B 21.59 (paper, Table 1).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("ovo_timing")
    config.data.sound = False
    config.decoding.update(max_new_tokens=100, batch_size=2, buckets=3)
    return config
