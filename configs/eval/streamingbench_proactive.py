"""StreamingBench, Proactive Output, streamed: say the expected text within 2 s of the moment.

    turnwise eval --config=configs/eval/streamingbench_proactive.py \
        --config.policy.checkpoint=DIR \
        --config.data.path=StreamingBench/data/questions_proactive.json \
        --config.data.root=StreamingBench/data --config.dir=runs/streamingbench_proactive

On disk: ``questions_proactive.json`` (250 questions) or its CSV, and 50 videos
(``videos/sample_<n>_proactive.mp4`` or ``proactive/sample_<n>/``).

Streamed from the question to 4 s after the moment, greedy, a decision every 4 s (``data.interval``
x ``data.turn_frames``), so that one of them is within 2 s of any moment; no judge. Frames alone;
``--config.data.sound=True`` for a policy that hears. Rule, line by line:
``turnwise_jax/eval/streamingbench_proactive.py``; the official, polled form:
``configs/eval/streamingbench_polling.py``. Expected: TurnWise on Qwen3-VL-4B 38.40 (paper, Table 1;
which reply it counts is not stated).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("streamingbench_proactive")
    config.data.sound = False
    config.decoding.max_new_tokens = 100
    return config
