"""ProactiveVideoQA: PAUC at omega 0, 0.5 and 1 and repetition, by subset and as equal means.

    turnwise eval --config=configs/eval/proactive_videoqa.py --config.policy.checkpoint=DIR \
        --config.data.path=ProactiveVideoQA --config.dir=runs/proactive_videoqa \
        --config.judge.kind=openai --config.judge.url=http://127.0.0.1:8000/v1 \
        --config.judge.model=MODEL --config.judge.cache=runs/proactive_videoqa/judge.jsonl

On disk: the benchmark's folder with ``{EGO,TV,VAD,WEB}/anno.json`` and ``videos/`` beside each; one
``anno.json`` as ``data.path`` runs that subset alone. The whole set has 1,427 questions and 3,510
windows; the TurnWise paper reports 300 questions, which ones is not known.

Streamed from 0 to the video's end, the policy's own replies as context, greedy. A decision every
4 s (2 frames, 2 s apart), the grid that MMDuet2 trains on; many windows of WEB hold one decision or
none on it, and ``--config.data.interval=1`` halves it. Numbers from different grids are not
comparable, nor are those of different judges (the rule judge is for the embedded world only).
Frames alone; ``--config.data.sound=True`` for a policy that hears. Rule, line by line:
``turnwise_jax/eval/proactive_videoqa.py``. Expected: silence 25.0 in every subset; in the paper,
with its judge and its 300 questions, Qwen2.5-VL-3B 22.15 untrained, 28.74 after SFT, 43.56 with
TurnWise.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.eval.config import eval_config


def get_config() -> ConfigDict:
    config = eval_config("proactive_videoqa")
    config.data.sound = False
    # of a turn 100 tokens, as in RL (MMDuet2 evaluates with 512); videos last 10 s to 360 s
    config.decoding.update(max_new_tokens=100, buckets=4)
    return config
