"""The size and seed of the set that this folder's tests share."""

from __future__ import annotations

TRAIN, TEST, SEED = 4, 8, 5
