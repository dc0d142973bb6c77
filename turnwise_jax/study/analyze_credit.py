"""Where turn-level credit puts what shared credit gives to whole trajectories (paper 5.3, Fig. 4).

All shares are of complete trajectories. A decision *changes sign* if its shared and its turn-level
advantage have opposite signs. A trajectory has *both signs* if one of its turn-level advantages is
above 0 and another below. An advantage below 1e-4 in magnitude counts as 0 and has no sign: where
nothing is left to earn, the difference of float32 scores is rounding, and rounding has one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.study.ablation_tables import MINUS
from turnwise_jax.study.analyze_runs import Decisions, Run
from turnwise_jax.tables import markdown_table

# Section 5.3 and Fig. 4: Qwen2.5-VL-3B, 497 updates.
PAPER = ("paper, Qwen2.5-VL-3B", "", "11,116", "84,184", "21.2", "53.2", "2,972", "75.7", "81.6")
PAPER_REVERSED = "432 of 722 (59.8 %)"
SIGNED = 1e-4  # least magnitude of an advantage with a sign
HEAD = (
    *("run", "batches", "trajectories", "decisions", "change sign, %", "both signs, %"),
    *("repetitive replies", "negative, shared, %", "negative, turn, %"),
    "shared above 0, turn below",
)


class Redistribution(NamedTuple):
    """Counts over some runs' decisions; sums of runs are sums of counts.

    Attributes:
      batches, trajectories, left_out, decisions: what was looked at, and left out (see
        ``Decisions``).
      live: decisions with an advantage other than 0 under either credit.
      changed: decisions that change sign.
      mixed: trajectories with both signs.
      changed_literally, mixed_literally: the same two where rounding counts as a sign.
      repetitive: replies judged repetitive.
      shared_below, turn_below: repetitive replies with an advantage below 0 under either credit.
      shared_above, turn_above: the same above 0.
      reversed: repetitive replies above 0 under shared and below 0 under turn-level credit.
    """

    batches: int = 0
    trajectories: int = 0
    left_out: int = 0
    decisions: int = 0
    live: int = 0
    changed: int = 0
    mixed: int = 0
    changed_literally: int = 0
    mixed_literally: int = 0
    repetitive: int = 0
    shared_below: int = 0
    turn_below: int = 0
    shared_above: int = 0
    turn_above: int = 0
    reversed: int = 0

    @classmethod
    def of(cls, decisions: Decisions) -> Redistribution:
        shared, turn = _signs(decisions.shared_N), _signs(decisions.turn_N)
        owner = decisions.trajectory_N
        again = decisions.repetitive_N
        found = {
            "decisions": np.ones(len(turn), bool),
            "live": (shared != 0) | (turn != 0),
            "changed": shared * turn < 0,
            "mixed": _mixed(turn, owner),
            "changed_literally": decisions.shared_N * decisions.turn_N < 0,
            "mixed_literally": _mixed(decisions.turn_N, owner),
            "repetitive": again,
            "shared_below": again & (shared < 0),
            "turn_below": again & (turn < 0),
            "shared_above": again & (shared > 0),
            "turn_above": again & (turn > 0),
            "reversed": again & (shared > 0) & (turn < 0),
        }
        return cls(
            batches=decisions.batches,
            trajectories=len(np.unique(owner)),
            left_out=decisions.left_out,
            **{name: int(where.sum()) for name, where in found.items()},
        )

    def shares(self) -> dict[str, float | None]:
        """The paper's quantities, %; None where there is nothing to take a share of."""

        def share(part: int, whole: int) -> float | None:
            return 100.0 * part / whole if whole else None

        return {
            "sign_change": share(self.changed, self.decisions),
            "sign_change_of_live": share(self.changed, self.live),
            "both_signs": share(self.mixed, self.trajectories),
            "sign_change_literally": share(self.changed_literally, self.decisions),
            "both_signs_literally": share(self.mixed_literally, self.trajectories),
            "repetitive_negative_shared": share(self.shared_below, self.repetitive),
            "repetitive_negative_turn": share(self.turn_below, self.repetitive),
            "repetitive_reversed": share(self.reversed, self.shared_above),
        }


def _signs(advantages_N: np.ndarray) -> np.ndarray:
    """-1, 0 or 1."""
    return np.where(np.abs(advantages_N) < SIGNED, 0.0, np.sign(advantages_N))


def _mixed(advantages_N: np.ndarray, trajectory_N: np.ndarray) -> np.ndarray:
    """bool[M] trajectories with advantages above and below 0."""
    above, below = np.zeros((2, int(trajectory_N.max(initial=-1)) + 1), bool)
    above[trajectory_N[advantages_N > 0]] = True
    below[trajectory_N[advantages_N < 0]] = True
    return above & below


def pooled(found: Sequence[Redistribution]) -> Redistribution:
    """The counts of several runs together."""
    return Redistribution(*map(sum, zip(*found, strict=True))) if found else Redistribution()


def with_credit(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """The runs that have decisions to look at, by label; no empty label."""
    found = {
        label: [run for run in group if run.decisions is not None and run.decisions.turn_N.size]
        for label, group in runs.items()
    }
    return {label: group for label, group in found.items() if group}


def redistributions(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Redistribution]]:
    """Label -> the counts of each of its runs, in order."""
    return {
        label: [Redistribution.of(run.decisions) for run in group if run.decisions is not None]
        for label, group in runs.items()
    }


def markdown(runs: Mapping[str, Sequence[Run]]) -> str:
    """One row per label, its runs pooled, below the paper's; then what the numbers are."""
    body = [[*PAPER, PAPER_REVERSED]]
    body += [_row(label, pooled(found)) for label, found in redistributions(runs).items()]
    return "\n\n".join([markdown_table(HEAD, body), *_notes(runs)]) + "\n"


def _row(label: str, found: Redistribution) -> list[str]:
    shares = {name: _percent(value) for name, value in found.shares().items()}
    changed = f"{found.reversed:,} of {found.shared_above:,}"
    if shares["repetitive_reversed"]:
        changed += f" ({shares['repetitive_reversed']} %)"
    return [
        label,
        *(f"{count:,}" for count in (found.batches, found.trajectories, found.decisions)),
        shares["sign_change"],
        shares["both_signs"],
        f"{found.repetitive:,}",
        shares["repetitive_negative_shared"],
        shares["repetitive_negative_turn"],
        changed,
    ]


def _notes(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    notes = [
        "Shared: the trajectory's advantage in its group (eq. 2). Turn: the advantage of remaining "
        "return at alpha = 1 (eq. 4), clipped. Change sign: share of decisions whose advantages "
        "have opposite signs. Both signs: share of trajectories with turn advantages above and "
        "below 0. Negative: share of the replies judged repetitive. Runs of one name are pooled.",
    ]
    literally = [
        f"{label} {_percent(shares['sign_change_literally'])} and "
        f"{_percent(shares['both_signs_literally'])} %"
        for label, found in redistributions(runs).items()
        for shares in [pooled(found).shares()]
    ]
    notes.append(
        "An advantage below 1e-4 in magnitude is rounding and counts as 0. If its sign is taken "
        f"literally, decisions change sign and trajectories have both in: {', '.join(literally)}."
    )
    logged, recomputed = _by_source(runs)
    if logged:
        notes.append(
            f"As trained, batches with alpha = 1 only (complete trajectories): {', '.join(logged)}."
        )
    if recomputed:
        notes.append(
            "Trained with other credit, turn advantages recomputed from the logged prefix scores, "
            f"all batches: {', '.join(recomputed)}."
        )
    left_out = sum(found.left_out for group in redistributions(runs).values() for found in group)
    if left_out:
        notes.append(f"Left out because they are not complete: {left_out:,} trajectories.")
    return notes


def _by_source(runs: Mapping[str, Sequence[Run]]) -> tuple[list[str], list[str]]:
    """(labels with runs as trained, labels with recomputed runs)."""
    sources = {
        label: {run.decisions.recomputed for run in group if run.decisions is not None}
        for label, group in runs.items()
    }
    return (
        [label for label, found in sources.items() if False in found],
        [label for label, found in sources.items() if True in found],
    )


def comma_separated(runs: Mapping[str, Sequence[Run]]) -> str:
    """Every count and share: a line for each run, and one for the runs of each label together."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    shares = list(Redistribution().shares())
    writer.writerow(["label", "run", "advantages", *Redistribution._fields, *shares])
    for label, group in runs.items():
        counts = redistributions({label: group})[label]
        rows = [
            (str(run.directory), "recomputed" if run.decisions.recomputed else "logged", found)
            for run, found in zip(group, counts, strict=True)
            if run.decisions is not None
        ]
        kinds = {kind for _, kind, _ in rows}
        rows.append(("all", kinds.pop() if len(kinds) == 1 else "both", pooled(counts)))
        for name, kind, found in rows:
            values = ["" if value is None else value for value in found.shares().values()]
            writer.writerow([label, name, kind, *found, *values])
    return buffer.getvalue()


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}".replace("-", MINUS)
