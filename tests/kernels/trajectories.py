"""Random and hand-made trajectories, as the kernels take them and as the reference takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turnwise_jax.kernels import ScoredTurns, Windows

from .reference import Decision

GARBAGE = (np.nan, np.inf, -np.inf, 1e30)


class Pair(NamedTuple):
    """One trajectory in both forms; `turn_index[j]` is the padded index of real decision j."""

    turns: ScoredTurns
    windows: Windows
    decisions: list[Decision]
    spans: list[tuple[int, float, float]]
    turn_index: list[int]


def both_forms(turns: ScoredTurns, windows: Windows) -> Pair:
    """Read the plain form off the padded arrays."""
    turn_index = [int(k) for k in np.flatnonzero(turns.mask)]
    decisions = [
        Decision(
            time=float(turns.time[k]),
            replied=bool(turns.replied[k]),
            scores=tuple(float(q) if np.isfinite(q) else None for q in turns.quality[k]),
            repetitive=bool(turns.repetitive[k]) if np.isfinite(turns.repetitive[k]) else None,
            shares_prefix=bool(turns.shares_prefix[k]),
        )
        for k in turn_index
    ]
    spans = [
        (int(w), float(windows.start[w]), float(windows.end[w]))
        for w in np.flatnonzero(windows.mask)
    ]
    return Pair(turns, windows, decisions, spans, turn_index)


def random_trajectory(seed: int, num_turns: int, num_windows: int) -> Pair:
    """Ties, borders, overlaps, zero-length and late windows, missing judgements, padding, holes."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(0, num_turns + 1))
    mask = np.arange(num_turns) < length
    if rng.random() < 0.2:
        mask &= rng.random(num_turns) < 0.7
    # Half the trajectories decide on a grid, so that times meet window borders exactly.
    grid = rng.random() < 0.5
    time = np.sort(rng.uniform(0, 60, num_turns))
    time = np.round(time / 4) * 4 if grid else time
    replied = rng.random(num_turns) < rng.choice([0.0, 0.3, 0.8, 1.0])
    quality = rng.integers(0, 5, (num_turns, num_windows)).astype(np.float32)
    quality[rng.random(quality.shape) < 0.2] = np.nan
    quality[rng.random(quality.shape) < 0.02] = np.inf
    repetitive = (rng.random(num_turns) < 0.4).astype(np.float32)
    repetitive[rng.random(num_turns) < 0.2] = np.nan
    shares_prefix = rng.random(num_turns) < 0.2

    start = rng.uniform(0, 70, num_windows)
    start = np.round(start / 4) * 4 if grid else start
    span = rng.choice([0.0, 4.0, 12.0, 30.0], num_windows) if grid else rng.uniform(0, 30)
    end = start + span
    window_mask = rng.random(num_windows) < 0.8

    padded = ~mask
    for array in (time, repetitive):
        array[padded] = rng.choice(GARBAGE, int(padded.sum()))
    quality[padded] = rng.choice(GARBAGE, quality[padded].shape)
    start[~window_mask] = rng.choice(GARBAGE, int((~window_mask).sum()))
    end[~window_mask] = rng.choice(GARBAGE, int((~window_mask).sum()))
    return both_forms(
        ScoredTurns(time.astype(np.float32), replied, quality, repetitive, shares_prefix, mask),
        Windows(start.astype(np.float32), end.astype(np.float32), window_mask),
    )


def simple(
    time,
    *,
    quality=None,
    repetitive=None,
    shares_prefix=None,
    windows=((0.0, 10.0),),
) -> tuple[ScoredTurns, Windows]:
    """A hand-made trajectory without padding: `quality[k]` None is silence, else one score (for all
    windows) or one per window."""
    num_turns, num_windows = len(time), len(windows)
    quality = [None] * num_turns if quality is None else quality
    rows = [np.broadcast_to(np.nan if q is None else q, (num_windows,)) for q in quality]
    turns = ScoredTurns(
        time=np.asarray(time, np.float32),
        replied=np.array([q is not None for q in quality], bool),
        quality=np.array(rows, np.float32).reshape(num_turns, num_windows),
        repetitive=np.array([0.0] * num_turns if repetitive is None else repetitive, np.float32),
        shares_prefix=np.array([False] * num_turns if shares_prefix is None else shares_prefix),
        mask=np.ones(num_turns, bool),
    )
    start, end = np.array(windows, np.float32).reshape(num_windows, 2).T
    return turns, Windows(start, end, np.ones(num_windows, bool))


def stack(items):
    """Stack a list of equal-shaped tuples of arrays leaf by leaf."""
    return type(items[0])(*(np.stack(leaves) for leaves in zip(*items, strict=True)))


def worked_example() -> tuple[ScoredTurns, Windows]:
    """Decisions at 2, 4, 6, 8, 10 s, one window [4, 8]; replies at 2, 4 (score 2), 8 (score 4) and
    10 (repetitive)."""
    return simple(
        [2.0, 4.0, 6.0, 8.0, 10.0],
        quality=[0.0, 2.0, None, 4.0, 0.0],
        repetitive=[0.0, 0.0, np.nan, 0.0, 1.0],
        windows=((4.0, 8.0),),
    )


WORKED_PREFIX_SCORES = [0.375, 0.125, 1.25, 1.25, 2.0, 1.25]
WORKED_INCREMENTS = [-0.25, 1.125, 0.0, 0.75, -0.75]
