"""StreamingBench, Real-Time Visual Understanding: 2,500 questions in mid-video, four options each.

    turnwise eval --config=configs/eval/streamingbench.py --config.policy.checkpoint=DIR \
        --config.data.path=StreamingBench/data/questions_real.json \
        --config.data.root=StreamingBench/data --config.dir=runs/streamingbench

On disk: ``questions_real.json``, or the CSV of the Hugging Face release, and the videos, flat
(``videos/sample_<n>_real.mp4``) or unpacked (``real/sample_<n>/``).

The 60 s before the question are shown as 32 frames (the main table's context;
``--config.data.context=0`` shows all before it), with the official prompt, greedy; no judge. Rule,
line by line: ``turnwise_jax/eval/streamingbench.py``. Expected: TurnWise on Qwen3-VL-4B 79.52
(paper, Table 1; how many frames it shows is not stated).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("streamingbench")
    config.data.sound = False
    config.decoding.max_new_tokens = 32
    return config
