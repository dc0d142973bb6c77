"""Questions over clips with or without sound: accuracy by category, counting errors, format.

    turnwise eval --config=configs/eval/qa.py --config.policy.checkpoint=DIR \
        --config.data.path=questions.jsonl --config.data.root=DIR --config.dir=runs/qa

Greedy, 32 frames of each clip and its sound, as in the AVATAR paper; no judge. The form of the JSON
lines is described in ``turnwise_jax/data/sources/qa.py``; the benchmarks' own files are read with
``--config.data.source=NAME``. What the answers owe to sound and to frames shows in the same command
with ``--config.control=muted`` or ``blanked`` and another ``--config.dir``. Predictions made before
are scored again with ``--predictions=runs/qa/predictions.jsonl``.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    return eval_config("qa")
