"""The exact study's results as Markdown tables and as comma-separated lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise_jax.study.exact_estimators import SUM
from turnwise_jax.study.exact_measure import MEANS, TOKEN_MEAN, TURN_MEAN, Row
from turnwise_jax.tables import markdown_table

MINUS, PLUS_MINUS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"
TITLES = {
    SUM: "sum",
    TOKEN_MEAN: "token mean",
    TURN_MEAN: "turn mean",
    "batch_token": "token mean of the group",
}
_MEASURES = (  # (title, field of Quality, decimals, factor)
    ("alignment", "alignment", 3, 1.0),
    ("noise", "noise", 1, 1.0),
    ("cosine", "cosine", 3, 1.0),
    ("no update, %", "still", 1, 100.0),
)
_EXPLAINED = """\
Alignment: cosine of the expected update and the true gradient. Noise: variance of one group's
update over the squared length of the expected one. Cosine: expected cosine of one group's update
and the true gradient. No update: groups whose update is zero. After a plus-minus sign: standard
errors of sampled groups, by jackknife, which can take a cosine a little above 1; without one:
enumerated. Critic: the reward less the exact value of the history, without a group."""
_LEARNT = """\
Means and standard errors over starts that differ in the noise of their logits. Mean reward: over
all updates. Against the first: difference run by run, so without what the starts contribute."""
LEARNED = {
    "large groups": "endless groups",
    "pairs": "expected, G = 2",
    "sampled": "sampled",
}


def markdown(results: Mapping[str, Any]) -> str:
    """All tables, each under a heading that says what its numbers are."""
    parts = ["## The policies", _policies(results)]
    parts += ["## Estimators", _EXPLAINED]
    for policy in results["policies"]:
        parts += [f"### {policy}", _quality(results, policy)]
    parts += ["## Deviation of the credit at each decision", decision_table(results)]
    parts += ["## Turn over shared credit by the number of windows, G = 2", window_table(results)]
    parts += ["## What a decision weighs, relative to the average one", weight_table(results)]
    parts += ["## What an update does to silence", _directions(results)]
    group = min(row["group"] for row in results["estimators"])
    parts += [f"## Strength of the correction, G = {group}, turn mean", _alphas(results, group)]
    parts += ["## Alignment by the length of a long reply, without normalisation"]
    parts += [length_table(results)]
    parts += ["## Learning", _learning(results)]
    return "\n\n".join(parts) + "\n"


def comma_separated(rows: Sequence[Row]) -> str:
    """A line for each row, a column for each of its numbers and names; curves are left out."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    kept = [n for n in names if not any(isinstance(row.get(n), list) for row in rows)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, kept, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def main_rows(results: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(credit, reduction, normalised) of the estimators that the tables show, in their order."""
    credits = ("shared", "turn")
    plain = [(credit, name, False) for name in TITLES for credit in credits]
    critic = [("critic", name, False) for name in (SUM, *MEANS)]
    return [*plain, *critic, *((credit, name, True) for name in TITLES for credit in credits)]


def find(results: Mapping[str, Any], **wanted: Any) -> Row | None:
    """The first estimator row with these values; None if it was not measured."""
    rows = results["estimators"]
    return next((r for r in rows if all(r[key] == value for key, value in wanted.items())), None)


def estimator_title(credit: str, reduction: str, normalised: bool) -> list[str]:
    """What the tables' first columns say of an estimator."""
    return [credit, TITLES[reduction], "yes" if normalised else ""]


def _policies(results: Mapping[str, Any]) -> str:
    body = [
        [name, _n(b["reward"], 3), _n(100 * b["replies"], 1), _n(100 * b["repetitive"], 1)]
        for name, b in results["policies"].items()
    ]
    problem = results["problem"]
    told = (
        f"{problem['trajectories']} trajectories, {problem['parameters']} parameters. Rewards: "
        f"best {problem['best_reward']:.3f}, worst {_n(problem['worst_reward'], 3)}, all silent "
        f"{problem['silent_reward']:.3f}."
    )
    head = ["policy", "expected reward", "replies, % of decisions", "repetitive, % of replies"]
    return f"{told}\n\n{_grid(head, body)}"


def _quality(results: Mapping[str, Any], policy: str) -> str:
    """One line for each estimator, a column for each measure and group size."""
    groups = list(dict.fromkeys(row["group"] for row in results["estimators"]))
    head = ["credit", "reduction", "normalised"]
    head += [f"{title}, G = {group}" for title, *_ in _MEASURES for group in groups]
    body = []
    for credit, reduction, normalised in main_rows(results):
        wanted = {"credit": credit, "reduction": reduction, "normalised": normalised}
        cells = estimator_title(credit, reduction, normalised)
        for _, field, decimals, factor in _MEASURES:
            for group in groups:
                row = find(results, policy=policy, group=group, **wanted)
                cells.append("" if row is None else _with_error(row, field, decimals, factor))
        body.append(cells)
    return _grid(head, body)


def decision_table(results: Mapping[str, Any]) -> str:
    """Deviations of the credits at each decision, and the best strength."""
    names = ("shared", "turn", "critic")
    titles = {"shared": "reward", "turn": "remaining return", "critic": "reward less its value"}
    head = ["policy", "decision at", *(titles[name] for name in names), "best alpha"]
    body = [
        [
            row["policy"],
            f"{row['time']:g} s",
            *(_n(row[f"{name}_sd"], 3) for name in names),
            "" if row["best_alpha"] is None else _n(row["best_alpha"], 2),
        ]
        for row in results["decisions"]
    ]
    return _grid(head, body)


def window_table(results: Mapping[str, Any]) -> str:
    """Turn-level over shared credit in the other problems."""
    head = ["problem", "policy", "reduction", "normalised", "noise, ratio", "cosine, ratio"]
    head += ["alignment, shared", "alignment, turn", "best alpha by decision"]
    body = [
        [
            row["problem"].replace("_", " "),
            row["policy"],
            TITLES[row["reduction"]],
            "yes" if row["normalised"] else "",
            _n(row["noise_ratio"], 2),
            _n(row["cosine_ratio"], 2),
            _n(row["shared_alignment"], 3),
            _n(row["turn_alignment"], 3),
            ", ".join(_n(alpha, 2) for alpha in row["best_alphas"]),
        ]
        for row in results["windows"]
    ]
    return _grid(head, body)


def weight_table(results: Mapping[str, Any]) -> str:
    """What decisions and choices of each kind weigh under the two means."""
    head = ["policy", "reduction", "kind", "% of decisions", "whole decision", "its choice"]
    body = [
        [
            row["policy"],
            TITLES[row["reduction"]],
            row["kind"],
            _n(100 * row["share"], 1),
            _n(row["loss"], 2),
            _n(row["choice"], 2),
        ]
        for row in results["weights"]
    ]
    return _grid(head, body)


def _directions(results: Mapping[str, Any]) -> str:
    head = ["policy", "credit", "reduction", "where a reply helps", "elsewhere"]
    body = [
        [
            row["policy"],
            row["credit"],
            TITLES.get(row["reduction"], ""),
            _n(row["useful"], 4, "+"),
            _n(row["useless"], 4, "+"),
        ]
        for row in results["directions"]
    ]
    return _grid(head, body)


def _alphas(results: Mapping[str, Any], group: int) -> str:
    alphas = alphas_of(results)
    head = ["policy", "normalised", "", *(f"alpha {alpha:g}" for alpha in alphas)]
    body = []
    for policy in results["policies"]:
        for normalised in (False, True):
            for field, decimals in (("alignment", 3), ("noise", 1), ("cosine", 3)):
                wanted = {"policy": policy, "normalised": normalised, "group": group}
                rows = [find(results, alpha=a, reduction=TURN_MEAN, **wanted) for a in alphas]
                values = ["" if r is None else _n(r[field], decimals) for r in rows]
                body.append([policy, "yes" if normalised else "", field, *values])
    return _grid(head, body)


def alphas_of(results: Mapping[str, Any]) -> list[float]:
    """The strengths that were measured, rising."""
    return sorted({r["alpha"] for r in results["estimators"] if r["alpha"] is not None})


def length_table(results: Mapping[str, Any]) -> str:
    """Alignment by the length of a long reply."""
    rows = results["lengths"]
    lengths = list(dict.fromkeys(row["long_tokens"] for row in rows))
    head = ["policy", "credit", "reduction", *(f"{length} tokens" for length in lengths)]
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in sorted(rows, key=lambda r: list(results["policies"]).index(r["policy"])):
        key = (row["policy"], row["credit"], TITLES[row["reduction"]])
        found.setdefault(key, []).append(_n(row["alignment"], 3))
    return _grid(head, [[*key, *values] for key, values in found.items()])


def _learning(results: Mapping[str, Any]) -> str:
    head = ["updates", "credit", "reduction", "mean reward", "against the first of its kind"]
    head += ["updates to 90 %", "reward at the end"]
    body = []
    rows = results["learning"]
    for kind in dict.fromkeys(row["updates_by"] for row in rows):
        mine = [row for row in rows if row["updates_by"] == kind]
        for row in mine:
            apart = np.subtract(row["means"], mine[0]["means"])
            error = np.std(apart, ddof=1) / np.sqrt(len(apart))
            told = f"{_n(apart.mean(), 3, '+')} {PLUS_MINUS} {error:.3f}"
            body.append(
                [
                    LEARNED.get(kind, "true gradient"),
                    row["credit"],
                    TITLES.get(row["reduction"], ""),
                    _with_error(row, "mean", 3),
                    "" if row is mine[0] else told,
                    _with_error(row, "updates", 1),
                    _with_error(row, "final", 3),
                ]
            )
    return f"{_LEARNT}\n\n{_grid(head, body)}"


def _with_error(row: Row, field: str, decimals: int, factor: float = 1.0) -> str:
    text = _n(factor * row[field], decimals)
    error = row.get(f"{field}_error")
    return text if error is None else f"{text} {PLUS_MINUS} {factor * error:.{decimals}f}"


def _n(value: float, decimals: int, sign: str = "") -> str:
    return f"{value:{sign}.{decimals}f}".replace("-", MINUS)


def _grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, body, "l" * len(head))
