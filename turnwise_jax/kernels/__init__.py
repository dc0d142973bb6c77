"""The maths of TurnWise and AVATAR as pure functions: arrays in, arrays out, nothing but jax.

Each function takes one trajectory or one group; `jax.vmap` for many. All compute in float32, take
positional masks, and let nothing under a mask, NaN and inf included, reach a value or a gradient.
`README.md` beside this file lists them by paper symbol.
"""

from turnwise_jax.kernels.advantages import (
    alpha_warmup,
    group_advantages,
    has_signal,
    replay_advantages,
    turn_advantages,
)
from turnwise_jax.kernels.logprobs import logprobs_and_entropy, token_entropy, token_logprobs
from turnwise_jax.kernels.losses import (
    clipped_surrogate,
    clipped_tokens,
    cross_entropy,
    importance_ratio,
    kl_estimate,
    replay_mean,
)
from turnwise_jax.kernels.prefix_scores import prefix_scores, turn_increments
from turnwise_jax.kernels.reduce import (
    MeanTerms,
    mean_of_terms,
    token_mean,
    token_mean_terms,
    trajectory_mean,
    trajectory_mean_terms,
    turn_mean,
    turn_mean_terms,
    turn_sums,
)
from turnwise_jax.kernels.scoring import (
    RewardWeights,
    ScoredTurns,
    ScoreTerms,
    Windows,
    score_trajectory,
    window_quality,
)
from turnwise_jax.kernels.shaping import tas_weights

__all__ = [
    "MeanTerms",
    "RewardWeights",
    "ScoreTerms",
    "ScoredTurns",
    "Windows",
    "alpha_warmup",
    "clipped_surrogate",
    "clipped_tokens",
    "cross_entropy",
    "group_advantages",
    "has_signal",
    "importance_ratio",
    "kl_estimate",
    "logprobs_and_entropy",
    "mean_of_terms",
    "prefix_scores",
    "replay_advantages",
    "replay_mean",
    "score_trajectory",
    "tas_weights",
    "token_entropy",
    "token_logprobs",
    "token_mean",
    "token_mean_terms",
    "trajectory_mean",
    "trajectory_mean_terms",
    "turn_advantages",
    "turn_increments",
    "turn_mean",
    "turn_mean_terms",
    "turn_sums",
    "window_quality",
]
