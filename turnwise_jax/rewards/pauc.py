"""The PAUC reward of MMDuet2 and TurnWise: ``R = 3 P - 2 D_rep - 0.5 D_out - 2 D_prefix`` (eq. 1).

PINTO0309/MMDuet2: rl/verl/recipe/proactive/reward_function.py and its run scripts, with the four
weights of those scripts. The texts are judged by ``quality``, ``repetition`` and ``shared_prefix``;
the kernels make the terms and the prefix scores from the judgements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from turnwise_jax.kernels import RewardWeights
from turnwise_jax.rewards.judges.protocol import Judge
from turnwise_jax.rewards.plan import Trajectory
from turnwise_jax.rewards.trajectory import Scores, score_trajectories

PREFIX_SCORES = True


class Settings(NamedTuple):
    """Weights of eq. 1; ``omega``: how little time counts; ``prefix_chars``: of D_prefix."""

    quality: float = 3.0
    repetition: float = 2.0
    out_of_window: float = 0.5
    shared_prefix: float = 2.0
    omega: float = 0.5
    prefix_chars: int = 50

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
    """The judgements of N trajectories; see `score_trajectories`."""
    turns, windows, stats = score_trajectories(
        trajs,
        judge,
        num_turns=num_turns,
        num_windows=num_windows,
        prefix_chars=settings.prefix_chars,
    )
    return Scores(turns, windows, None, stats)
