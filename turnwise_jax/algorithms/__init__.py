"""One short file per method; a config's ``algorithm.name`` is a key of ``ALGORITHMS``.

A method has ``Settings`` (its config fields, with ``check``), ``loss`` (terms of one trajectory)
and, if it learns from rollouts, ``advantages`` (one group's credit) and ``schedule`` (what changes
over the run, for the logs).
"""

from __future__ import annotations

from types import ModuleType

from turnwise_jax.algorithms import grpo, sft, turnwise

ALGORITHMS: dict[str, ModuleType] = {
    "turnwise": turnwise,
    "grpo": grpo,
    "sft": sft,
}
