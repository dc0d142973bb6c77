"""The exact study's problem once more in plain Python: nested loops, dictionaries, eq. 1 by hand.

Written from the rules of the problem alone; a policy is a dictionary of logits by (decision,
memory) and by the tokens said so far in the turn.
"""

from __future__ import annotations

import itertools
import math

SILENT = ("silence",)


def replies(num_facts: int) -> list[tuple[str, ...]]:
    """Every reply as the tokens that are chosen: ("silence",) or (fact, detail)."""
    facts = [f"fact {n + 1}" for n in range(num_facts)]
    return [SILENT, *itertools.product(facts, ("brief", "long"))]


def trajectories(num_facts: int, num_turns: int) -> list[tuple[tuple[str, ...], ...]]:
    return list(itertools.product(replies(num_facts), repeat=num_turns))


def reward(said, times, windows, scores=(2.0, 4.0)) -> float:
    """Eq. 1 with omega 0.5 and start score 0.5 of 4."""
    last = times[-1]
    windows = [(f"fact {n + 1}", *w) for n, w in enumerate(windows) if w[0] <= last]
    areas = []
    for fact, start, end in windows:
        height, since, area = 0.5, start, 0.0
        for time, reply in zip(times, said, strict=True):
            if reply != SILENT and start <= time <= end:
                shrunk = start + (time - start) / 2
                area += height * (shrunk - since)
                since = shrunk
                height = (scores[0] if reply[1] == "brief" else scores[1]) * (reply[0] == fact)
        areas.append((area + height * (end - since)) / (4 * (end - start)))
    replied = [reply for reply in said if reply != SILENT]
    repeated, same_opening, known = 0, 0, {}
    for fact, detail in replied:
        level = {"brief": 1, "long": 2}[detail]
        repeated += known.get(fact, 0) >= level
        same_opening += level == 2 and known.get(fact, 0) == 2
        known[fact] = max(level, known.get(fact, 0))
    outside = [
        reply
        for time, reply in zip(times, said, strict=True)
        if not any(a <= time <= b for _, a, b in windows)
    ]
    share_outside = sum(r != SILENT for r in outside) / len(outside) if outside else 0.0
    return (
        3 * sum(areas) / len(areas)
        - 2 * (repeated / len(replied) if replied else 0.0)
        - 0.5 * share_outside
        - 2 * same_opening / len(said)
    )


def prefix_scores(said, times, windows) -> list[float]:
    """U_0 .. U_K: every prefix completed with silence and scored from nothing."""
    num = len(said)
    return [reward((*said[:t], *[SILENT] * (num - t)), times, windows) for t in range(num + 1)]


def probability(said, logits) -> float:
    """``logits[decision, memory, prefix][token]``; memory is the sorted pairs of what was told."""
    chance, known = 1.0, {}
    for turn, reply in enumerate(said):
        for place, token in enumerate(reply):
            table = logits[turn, tuple(sorted(known.items())), reply[:place]]
            chance *= math.exp(table[token]) / sum(math.exp(value) for value in table.values())
        if reply != SILENT:
            level = {"brief": 1, "long": 2}[reply[1]]
            known[reply[0]] = max(level, known.get(reply[0], 0))
    return chance
