"""The kernels under jit, settings static: compiled once per shape, tests spend less time compiling.

That eager calls give the same is `test_contract`'s business.
"""

from __future__ import annotations

import jax

from turnwise_jax import kernels

_CURVE = ("omega", "start_score", "top_score")

group_advantages = jax.jit(kernels.group_advantages, static_argnames=("eps", "ddof"))
has_signal = jax.jit(kernels.has_signal)
turn_advantages = jax.jit(kernels.turn_advantages, static_argnames=("alpha", "eps", "clip"))
replay_advantages = jax.jit(kernels.replay_advantages, static_argnames=("kind", "eps", "floor"))
tas_weights = jax.jit(kernels.tas_weights, static_argnames=("strength", "shape"))
window_quality = jax.jit(kernels.window_quality, static_argnames=_CURVE)
score_trajectory = jax.jit(kernels.score_trajectory, static_argnames=_CURVE)
prefix_scores = jax.jit(kernels.prefix_scores, static_argnames=_CURVE)
turn_mean = jax.jit(kernels.turn_mean, static_argnums=3)
turn_mean_terms = jax.jit(kernels.turn_mean_terms, static_argnums=3)
turn_sums = jax.jit(kernels.turn_sums, static_argnums=3)
token_mean = jax.jit(kernels.token_mean)
