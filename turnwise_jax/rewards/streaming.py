"""The rewards of whole streaming dialogues; ``config.reward.kind`` is a key of the table.

A kind is a file with ``Settings`` (the other fields of ``config.reward``), ``score`` (trajectories
to `trajectory.Scores`) and ``PREFIX_SCORES``, whether the kernels can score the dialogue as it
would be with silence from any turn on; turn-level credit needs that. A kind without has ``Terms``,
a NamedTuple of f32 [N] with ``reward`` first.
"""

from __future__ import annotations

from types import ModuleType

from turnwise_jax.rewards import pauc, streampro, thinkstream

STREAMING_REWARDS: dict[str, ModuleType] = {
    "pauc": pauc,
    "thinkstream": thinkstream,
    "streampro": streampro,
}
