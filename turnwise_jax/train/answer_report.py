"""What one batch of answers, fresh and replayed, looks like in the logs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from turnwise_jax.data.hints import is_hinted
from turnwise_jax.rewards.answers import final_answer
from turnwise_jax.rewards.judges import JudgeStats
from turnwise_jax.rewards.qa import AnswerTerms
from turnwise_jax.rollout.replay import Sample
from turnwise_jax.train.answer_credit import Mixed
from turnwise_jax.train.report import group_std
from turnwise_jax.train.sharing import Said


def answer_metrics(
    said: Said, terms: AnswerTerms, reward_BG: np.ndarray, batch: Mixed, judged: JudgeStats
) -> dict[str, Any]:
    """Means over the fresh samples, and how much of the batch carries a learning signal.

    ``zero_signal``: share of the batch's prompts whose fresh samples all have advantage 0, as in
    plain GRPO; ``zero_signal_mixed``: share of all prompts in the batch, replayed ones too, of
    which no sample has any. ``group_std``: of the fresh rewards, see :func:`report.group_std`.
    ``replay_age``: batches since the replayed samples were fresh.
    """
    lengths = said.length[..., 0]
    moved = defaultdict(bool)
    for sample, advantage in zip([*batch.fresh, *batch.drawn], batch.advantages, strict=False):
        moved[sample.prompt] |= bool(advantage != 0)
    fresh_BG = batch.advantages[: reward_BG.size].reshape(reward_BG.shape)
    ages = [batch.fresh[0].step - sample.step for sample in batch.drawn]
    return {
        "reward": _mean(reward_BG),
        "group_std": group_std(reward_BG),
        **{name: _mean(value) for name, value in terms._asdict().items()},
        "reply_tokens": float(lengths.mean()),
        "truncated": float(said.truncated.mean()),
        "hinted": float(np.mean([is_hinted(d.id) for d in said.dialogues])),
        "signal": float((fresh_BG != 0).any(axis=1).mean()),
        "zero_signal": float((fresh_BG == 0).all(axis=1).mean()),
        "zero_signal_mixed": 1.0 - float(np.mean(list(moved.values()))),
        "advantage_max": float(np.abs(batch.advantages).max()),
        "policy_kl": float(np.mean([sample.kl for sample in batch.fresh])),
        "replayed": len(batch.drawn),
        "replay_age": float(np.mean(ages)) if ages else 0.0,
        "replay_reward": _mean(np.array([sample.reward for sample in batch.drawn])),
        "invalid_rewards": int((~np.isfinite(reward_BG)).sum()),
        "judge_asked": judged.total.asked,
        "judge_failed": judged.total.failed,
        "skipped_records": len(said.skipped),
    }


def answer_records(said: Said, terms: AnswerTerms, batch: Mixed) -> list[dict[str, Any]]:
    """One JSON object per fresh sample, then one per replayed one."""
    texts = [replies[0] for group in said.text for replies in group]
    dialogues = [d for d, group in zip(said.dialogues, said.text, strict=True) for _ in group]
    records = []
    for n, sample in enumerate(batch.fresh):
        question = dialogues[n].question
        records.append(
            {
                **_common(sample, batch.advantages[n]),
                "replayed": False,
                "question": question.text,
                "category": question.category,
                "truth": question.answer,
                "reply": texts[n],
                "answer": final_answer(texts[n]),
                **{name: float(value[n]) for name, value in terms._asdict().items()},
            }
        )
    for n, sample in enumerate(batch.drawn, len(batch.fresh)):
        records.append({**_common(sample, batch.advantages[n]), "replayed": True})
    return records


def _common(sample: Sample, advantage: float) -> dict[str, Any]:
    return {
        "group": sample.prompt,
        "sampled": sample.step,
        "tokens": len(sample.tokens),
        "reward": sample.reward,
        "kl": sample.kl,
        "advantage": float(advantage),
    }


def _mean(values: np.ndarray) -> float | None:
    """Mean of the finite values; None if there is none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None
