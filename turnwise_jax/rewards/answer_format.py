"""Whether a reply keeps to ``<think>...</think><answer>...</answer>`` (paper, eq. 7).

The public code pays 1 and 0 where the paper says 1 and -1; the paper is followed.
"""

from __future__ import annotations

from turnwise_jax.rewards.answers import well_formed


def answer_format(text: str) -> float:
    """1.0 if `text` is well formed, else -1.0."""
    return 1.0 if well_formed(text) else -1.0
