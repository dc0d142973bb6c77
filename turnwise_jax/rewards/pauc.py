"""The PAUC reward of MMDuet2 and TurnWise: ``R = 3 P - 2 D_rep - 0.5 D_out - 2 D_prefix`` (eq. 1).

PINTO0309/MMDuet2: rl/verl/recipe/proactive/reward_function.py and its run scripts, with the four
weights of those scripts. The texts are judged by ``quality``, ``repetition`` and ``shared_prefix``;
the kernels make the terms and the prefix scores from the judgements.

A reply in a window that the judge failed to grade (all its tries) leaves no point on the curve: the
published rule, and that of evaluation. In a group it would be compared with the others as silence,
and a right reply would be taught to be worse than the same reply graded. ``on_failure`` says what
happens to such a rollout in training: "drop_rollout" leaves it out of its group, "drop_reply" is
the published rule. A failed verdict of repetition leaves both counts of D_rep either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.kernels import RewardWeights
from turnwise_jax.rewards.judges.protocol import Judge
from turnwise_jax.rewards.plan import Trajectory
from turnwise_jax.rewards.quality import unanswered
from turnwise_jax.rewards.trajectory import Scores, score_trajectories

PREFIX_SCORES = True
ON_FAILURE = ("drop_rollout", "drop_reply")


class Settings(NamedTuple):
    """Weights of eq. 1; ``omega``: how little time counts; ``prefix_chars``: of D_prefix."""

    quality: float = 3.0
    repetition: float = 2.0
    out_of_window: float = 0.5
    shared_prefix: float = 2.0
    omega: float = 0.5
    prefix_chars: int = 50
    on_failure: str = "drop_rollout"  # one of ON_FAILURE: a reply in a window without a grade

    @property
    def weights(self) -> RewardWeights:
        """As the kernels take them."""
        return RewardWeights(self.quality, self.repetition, self.out_of_window, self.shared_prefix)


def score(
    trajs: Sequence[Trajectory],
    judge: Judge,
    settings: Settings,
    *,
    num_turns: int | None = None,
    num_windows: int | None = None,
) -> Scores:
    """The judgements of N trajectories, see `score_trajectories`, and whose are all there."""
    turns, windows, stats = score_trajectories(
        trajs,
        judge,
        num_turns=num_turns,
        num_windows=num_windows,
        prefix_chars=settings.prefix_chars,
    )
    known = None
    if settings.quality and settings.on_failure == "drop_rollout":
        pairs = zip(trajs, turns.quality, strict=True)
        known = np.array([not unanswered(own, quality_KW) for own, quality_KW in pairs], bool)
    return Scores(turns, windows, None, stats, known)
