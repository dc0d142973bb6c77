"""Streaming dialogues with reply windows: reward, PAUC, repetition, silence.

    turnwise eval --config=configs/eval/streaming.py --config.policy.checkpoint=DIR \
        --config.data.path=records.parquet --config.data.root=DIR --config.dir=runs/eval

Predictions made before are scored again with ``--predictions=runs/eval/predictions.jsonl``.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    return eval_config("streaming")
