"""One short file per method; a config's ``algorithm.name`` is a key of ``ALGORITHMS``.

A method has ``Settings`` (its config fields, with ``check``) and ``loss`` (terms of one
trajectory). One that learns from rollouts of streaming dialogues (``STREAMING``) also has
``advantages`` (one group's credit) and ``schedule`` (what changes over the run, for the logs), and
its settings say whether that credit takes ``prefix_scores``.
AVATAR, which answers questions and replays its answers, has credit of its own for either part.
"""

from __future__ import annotations

from types import ModuleType

from turnwise_jax.algorithms import avatar, grpo, sft, turnwise

ALGORITHMS: dict[str, ModuleType] = {
    "turnwise": turnwise,
    "grpo": grpo,
    "avatar": avatar,
    "sft": sft,
}
STREAMING = ("turnwise", "grpo")
