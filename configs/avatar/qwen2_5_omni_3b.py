"""AVATAR on Qwen2.5-Omni-3B (tables 7 and 8): one stage of off-policy GRPO at the paper's setting.

    turnwise train --config=configs/avatar/qwen2_5_omni_3b.py:2 \
        --config.policy.checkpoint=STAGE1_DIR --config.data.path=stage2.jsonl \
        --config.data.root=DIR --config.run.dir=runs/avatar_3b_stage2

The argument is the stage: 1 visual reasoning (format and accuracy), 2 audio-visual (and majority
vote), 3 localisation (format and the stepwise judge, at --config.judge.url); the weights are the
paper's text, with which its table 6 and its code disagree (``rewards/qa.py``). All stages in one
command: configs/avatar/curriculum.py. From the paper: 32 frames, 4 fresh and 4 replayed samples of
each prompt, tiers of 25, 35 and 40 %, moving averages of 20. From its code where the paper gives no
value: LoRA of rank 8 and alpha 32, learning rate 5e-7, 5 % warm-up, temperature 1, top-k 50, 2,048
new tokens, 50,176 pixels a frame, KL weight 0.1, buffer of 10,000 samples. Not from it: adapters on
the text decoder alone, 30 seconds of sound assumed for ``turnwise compile``. Warm-up is given in
updates: 50, which is 5 % of 1,000; for another number of them set optimizer.warmup_steps.
Hardware: v5e:2x2 (4 chips) with --config.mesh.fsdp=4, 3.7 of 15.75 GiB a chip as compiled ahead of
time (docs/compile.md). Not timed on a TPU.
Expected: not measured.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.train.recipes import avatar_stage


def get_config(stage: str = "1") -> ConfigDict:
    return avatar_stage("3b", stage)
