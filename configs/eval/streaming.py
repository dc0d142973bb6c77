"""Streaming dialogues with reply windows: reward, PAUC, repetition, silence.

    turnwise eval --config=configs/eval/streaming.py --config.policy.checkpoint=DIR \
        --config.data.path=records.parquet --config.data.root=DIR --config.dir=runs/eval \
        --config.judge.kind=openai --config.judge.url=http://127.0.0.1:8000/v1 \
        --config.judge.model=MODEL --config.judge.cache=runs/eval/judge.jsonl

Without ``--config.judge.kind`` the rule judge grades, which compares words and is for the embedded
world only; on other data the report carries a warning. Numbers of different judges are not
comparable. Predictions made before are scored again, by another judge too, with
``--predictions=runs/eval/predictions.jsonl``.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    return eval_config("streaming")
