"""Logs of made-up runs in the form that runs leave, and of directories that hold them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

BATCHES, PROMPTS, GROUP = 12, 3, 4


def write_run(place: Path, metrics, groups=(), algorithm=None) -> Path:
    """A run's directory with these lines."""
    place.mkdir(parents=True)
    for name, lines in (("metrics", metrics), ("groups", groups)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if algorithm is not None:
        (place / "config.json").write_text(json.dumps({"algorithm": algorithm}))
    return place


def rollout(step: int, prompt: str, g: int, scores, repetitive, **more) -> dict:
    """A line of ``groups.jsonl``: K + 1 prefix scores, K marks (None: silent or not judged)."""
    turns = len(scores) - 1
    return {
        "step": step,
        "id": f"{prompt}/{g}",
        "group": prompt,
        "times": [2.0 * (k + 1) for k in range(turns)],
        "replies": ["NO REPLY" if mark is None else "A reply." for mark in repetitive],
        "repetitive": repetitive,
        "reward": scores[-1],
        "prefix_scores": scores,
        **more,
    }


def shared_of(rewards: list[float]) -> list[float]:
    """Eq. 2, written out."""
    mean = sum(rewards) / len(rewards)
    sigma = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (sigma + 1e-6) for r in rewards]


def turn_of(scores: list[list[float]], i: int, t: int, alpha: float = 1.0) -> float:
    """Eq. 5 of turn t (from 0) of rollout i, written out; clipped at 5."""
    rewards = [own[-1] for own in scores]
    mean = sum(rewards) / len(rewards)
    sigma = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    accrued = [own[t] - own[0] for own in scores]
    correction = accrued[i] - sum(accrued) / len(accrued)
    value = (rewards[i] - mean - alpha * correction) / (sigma + 1e-6)
    return max(-5.0, min(5.0, value))


def streaming_run(place: Path, *, credit: str = "turn", seed: int = 0) -> Path:
    """Random groups whose logged advantages are those of eq. 5; alpha warms up for 3 batches."""
    rng = np.random.default_rng(seed)
    metrics, groups = [], []
    for step in range(BATCHES):
        alpha = min(1.0, step / 3) if credit == "turn" else 0.0
        metrics.append(
            {
                "step": step,
                **{name: rng.random() for name in ("reward", "repetition", "non_silent")},
                **{name: rng.random() for name in ("out_of_window", "signal")},
                "pauc": None if step == 4 else 100 * rng.random(),
                "alpha": alpha,
            }
        )
        for b in range(PROMPTS):
            turns = int(rng.integers(3, 6))
            steps = rng.choice([0.0, 0.0, 0.5, 1.0, -0.7], (GROUP, turns))
            scores = (0.375 + np.pad(np.cumsum(steps, 1), ((0, 0), (1, 0)))).tolist()
            shared = shared_of([own[-1] for own in scores])
            for g in range(GROUP):
                marks = [[None, 0.0, 1.0][rng.integers(3)] for _ in range(turns)]
                advantages = [turn_of(scores, g, t, alpha) for t in range(turns)]
                credits = {"turn_advantages": advantages, "shared_advantage": shared[g]}
                groups.append(rollout(step, f"clip-{b}", g, scores[g], marks, **credits))
    algorithm = {"name": "turnwise", "credit": credit, "alpha": 1.0, "eps": 1e-6}
    return write_run(place, metrics, groups, {**algorithm, "max_advantage": 5.0})


def answering_run(place: Path, *, seed: int = 0) -> Path:
    """A run on questions, with a buffer that fills."""
    rng = np.random.default_rng(seed)
    metrics = [
        {
            "step": step,
            **{name: rng.random() for name in ("reward", "accuracy", "zero_signal")},
            "zero_signal_mixed": rng.random(),
            **{f"buffer_{tier}": step * size for size, tier in enumerate(("easy", "hard"), 1)},
            "buffer_medium": 3 * step,
        }
        for step in range(10)
    ]
    groups = [{"step": 0, "group": "q1", "reward": 1.0, "advantage": 0.5, "replayed": False}]
    return write_run(place, metrics, groups, {"name": "avatar"})
