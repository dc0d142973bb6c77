"""The exact study: shared and turn-level credit, token and turn mean, against the true gradient.

    turnwise study --config=configs/worlds/exact.py

Enumerates all trajectories of a streaming problem with four decisions and two facts to tell, scores
them with the real kernels and leaves tables and pictures in runs/exact; no model, no video. Takes
about 100 seconds of one CPU core; docs/exact.md has what came out.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.study.exact_config import exact_config


def get_config() -> ConfigDict:
    return exact_config()
