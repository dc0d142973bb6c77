"""StreamingBench, Sequential Question Answering: questions that refer to earlier ones.

    turnwise eval --config=configs/eval/streamingbench_sqa.py --config.policy.checkpoint=DIR \
        --config.data.path=StreamingBench/data/questions_sqa.json \
        --config.data.root=StreamingBench/data --config.dir=runs/streamingbench_sqa

On disk: ``questions_sqa.json`` (50 lists of five questions) or its CSV, and the videos
(``videos/sample_<n>_sqa.mp4`` or ``sqa/sample_<n>/``).

The prompt tells the questions asked before with their true answers, as the official one does. The
60 s before the question are shown as 32 frames, greedy; no judge. The rule is that of the real-time
part: ``turnwise_jax/eval/streamingbench.py``.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("streamingbench")
    config.data.update(source="streamingbench_sqa", sound=False)
    config.decoding.max_new_tokens = 32
    return config
