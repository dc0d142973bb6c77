"""StreamingBench, Proactive Output, official form: asked every second whether it is the right time.

    turnwise eval --config=configs/eval/streamingbench_polling.py --config.policy.checkpoint=DIR \
        --config.data.path=StreamingBench/data/questions_proactive.json \
        --config.data.root=StreamingBench/data --config.dir=runs/streamingbench_polling

On disk: as for ``configs/eval/streamingbench_proactive.py``.

Every second from 1 s after the question to 4 s after the moment makes two short dialogues on the
clip since the question, 32 frames each: the poll, and the plain question. That is about 13 polls a
question, 6,500 dialogues in all; those after a question's first yes are answered but not used. The
poll tells the policy the expected text. Greedy; no judge. Rule, line by line:
``turnwise_jax/eval/streamingbench_polling.py``.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("streamingbench_polling")
    config.data.sound = False
    config.decoding.max_new_tokens = 32
    return config
