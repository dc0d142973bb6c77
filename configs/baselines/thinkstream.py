"""ThinkStream on Qwen2.5-VL-3B: a thought before every decision (arXiv 2603.12938).

    turnwise train --config=configs/baselines/thinkstream.py \
        --config.policy.checkpoint=SFT_DIR --config.data.path=rl.parquet --config.data.root=DIR \
        --config.judge.url=http://HOST:8000/v1 --config.run.dir=runs/thinkstream_3b

The policy is one that was taught the form, by the same SFT with
--config.policy.replies=thinkstream; evaluate it with the same field. Data in plain replies are put
into the form on reading, with empty think blocks, as its own data builder does where there is no
thought.

johncaged/ThinkStream (scripts/rl.sh, trainer/scope.py): GRPO with 8 rollouts, 8 prompts a batch
(one for each of 8 devices), 2e-7 with 3 % warm-up and cosine decay, no weight decay, gradient clip
1.0, temperature 1.0, top-k 50, top-p 0.95, 30 new tokens a turn, KL 1e-3 from the start, two frames
a turn. Different here: there a budget of 20 tokens ends the think block by force, and all that is
shown enters by one second; the mean over tokens is that of the whole batch, which the library that
it calls decides; frames have the size that TurnWise's have. Warm-up is given in updates: 3 % of
3,983 / 8. Answers that are no letter, digit, yes or no go to the judge: see
turnwise_jax/rewards/thinkstream.py.
Hardware: not timed on a TPU. Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.config import rl_config


def get_config() -> ConfigDict:
    config = rl_config("grpo", reward="thinkstream")
    config.run.dir = "runs/thinkstream_qwen2_5_vl_3b"
    config.data.max_pixels = 100_352  # 128 tokens of 28 x 28
    config.policy.replies = "thinkstream"
    config.policy.freeze = ()
    config.algorithm.update(reduction="batch_token", kl=1e-3)
    config.optimizer.update(
        learning_rate=2e-7, schedule="cosine", warmup_steps=15, weight_decay=0.0, accumulate=8
    )
    config.rollout.update(group_size=8, temperature=1.0, top_k=50, top_p=0.95, max_new_tokens=30)
    config.judge.kind = "openai"
    return config
