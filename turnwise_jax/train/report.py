"""What one batch of judged rollouts looks like in the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise_jax.data.records import Dialogue
from turnwise_jax.kernels import ScoredTurns
from turnwise_jax.rewards.judges import JudgeStats
from turnwise_jax.rewards.trajectory import Trajectory
from turnwise_jax.rollout.stream import Rollouts
from turnwise_jax.train.credit import Credit


def reward_metrics(
    rollouts: Rollouts, turns: ScoredTurns, credit: Credit, stats: JudgeStats
) -> dict[str, Any]:
    """Means over the batch's rollouts, and how much of the batch carries a learning signal.

    ``signal``: share of groups in which any advantage is not zero; ``signal_turns``: share of
    (group, turn) pairs; ``signal_by_turn``: the latter per turn index. With no signal the loss and
    its gradient are zero, which is the first thing to look at when training stands still.
    ``group_std``: see :func:`group_std`. Terms have the names that the kind of reward gives them;
    the quality of windows is ``pauc``.
    """
    mask_NK, replied_NK = np.asarray(turns.mask), np.asarray(turns.replied)
    decisions, replies = mask_NK.sum(), (replied_NK & mask_NK).sum()
    lengths_BGK = rollouts.length
    sampled_BGK = np.broadcast_to(rollouts.turn_mask[:, None], lengths_BGK.shape)
    spoken_BGK = replied_NK.reshape(lengths_BGK.shape) & sampled_BGK
    moved_BK = np.any(credit.advantages != 0, axis=1)
    exists_BK = rollouts.turn_mask
    terms = {name: _mean(value) for name, value in credit.terms._asdict().items()}
    scaled = {}
    if "quality" in terms:
        quality = terms.pop("quality")
        scaled["pauc"] = None if quality is None else 100.0 * quality
    return {
        "reward": terms.pop("reward"),
        "group_std": group_std(credit.terms.reward),
        **scaled,
        **terms,
        "non_silent": replies / max(decisions, 1),
        "reply_tokens": float(lengths_BGK[spoken_BGK].mean()) if spoken_BGK.any() else 0.0,
        "truncated": float(rollouts.truncated[sampled_BGK].mean()),
        "signal": float(moved_BK.any(axis=1).mean()),
        "signal_turns": float(moved_BK[exists_BK].mean()),
        "signal_by_turn": [
            float(moved_BK[exists_BK[:, k], k].mean()) if exists_BK[:, k].any() else None
            for k in range(exists_BK.shape[1])
        ],
        "advantage_max": float(np.abs(credit.advantages).max()),
        "invalid_rewards": int((~np.isfinite(credit.terms.reward)).sum()),
        "judge_asked": stats.total.asked,
        "judge_failed": stats.total.failed,
        **{name: float(value) for name, value in credit.schedule.items()},
    }


def group_std(reward_BG: np.ndarray) -> float | None:
    """Mean over groups of the sample standard deviation of a group's rewards.

    Rewards that are not finite are left out, and so are groups with fewer than two others; None if
    no group is left.
    """
    valid = [row[np.isfinite(row)] for row in np.asarray(reward_BG, np.float64)]
    spreads = [row.std(ddof=1) for row in valid if row.size > 1]
    return float(np.mean(spreads)) if spreads else None


def group_records(
    trajectories: Sequence[Trajectory],
    dialogues: Sequence[Dialogue],
    turns: ScoredTurns,
    credit: Credit,
) -> list[dict[str, Any]]:
    """One JSON object per rollout, in the form that ``eval.predictions`` reads, with its credit.

    Of a reward without prefix scores there are none, and no judgements of eq. 1. What was sampled
    stands in ``raw`` where its style is not plain.
    """
    group_size = credit.shared.shape[1]
    records = []
    for n, trajectory in enumerate(trajectories):
        b, g = divmod(n, group_size)
        k, w = len(trajectory.times), len(trajectory.windows)
        terms = {name: float(v[b, g]) for name, v in credit.terms._asdict().items()}
        if "quality" in terms:
            terms["window_quality"] = terms.pop("quality")
        judged, prefixes = {}, {}
        if credit.prefix_scores is not None:
            judged["quality"] = np.asarray(turns.quality)[n, :k, :w].tolist()
            judged["repetitive"] = np.asarray(turns.repetitive)[n, :k].tolist()
            prefixes["prefix_scores"] = credit.prefix_scores[b, g, : k + 1].tolist()
        records.append(
            {
                "id": trajectory.id,
                "group": dialogues[b].id,
                "times": trajectory.times,
                "replies": trajectory.replies,
                **({"raw": trajectory.raw} if trajectory.raw else {}),
                "windows": [window._asdict() for window in trajectory.windows],
                "history": trajectory.history,
                **judged,
                **terms,
                **prefixes,
                "turn_advantages": credit.advantages[b, g, :k].tolist(),
                "shared_advantage": float(credit.shared[b, g]),
            }
        )
    return records


def _mean(values: np.ndarray) -> float | None:
    """Mean of the finite values; None if there is none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None
