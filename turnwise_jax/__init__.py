"""RL post-training for video policies that act turn by turn: TurnWise and AVATAR in JAX.

Importing this package imports nothing else; pick the part you need, for instance
``turnwise_jax.kernels``, which depends on jax alone.
"""

__version__ = "0.1.0"
