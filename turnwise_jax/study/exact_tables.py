"""The exact study's results as Markdown tables and as comma-separated lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise_jax.study.exact_estimators import SUM
from turnwise_jax.study.exact_measure import MEANS, TOKEN_MEAN, TURN_MEAN, Row

MINUS, PLUS_MINUS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"
TITLES = {
    SUM: "sum",
    TOKEN_MEAN: "token mean",
    TURN_MEAN: "turn mean",
    "batch_token": "token mean of the group",
}
LEARNED = {
    "large groups": "endless groups",
    "pairs": "expected, G = 2",
    "sampled": "sampled",
}


def markdown(results: Mapping[str, Any]) -> str:
    """All tables, each under a heading that says what its numbers are."""
    parts = ["## The policies", _policies(results)]
    parts += ["## Bias: alignment of the expected update with the true gradient"]
    parts += [_quality(results, "alignment", 3)]
    parts += ["## Noise: variance of one group's update over its squared mean"]
    parts += [_quality(results, "noise", 1)]
    parts += [
        "## One update: expected cosine with the true gradient",
        _quality(results, "cosine", 3),
    ]
    parts += ["## Groups whose update is zero, %", _still(results)]
    parts += ["## Deviation of the credit at each decision", _decisions(results)]
    parts += ["## What a decision weighs, relative to the average one", _weights(results)]
    parts += ["## What an update does to silence", _directions(results)]
    parts += ["## Strength of the correction, G = 2, turn mean", _alphas(results)]
    parts += ["## Alignment by the length of a long reply, without normalisation"]
    parts += [_lengths(results)]
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


def _quality(results: Mapping[str, Any], field: str, decimals: int) -> str:
    """One line for each estimator, a column for each policy and group size."""
    groups = list(dict.fromkeys(row["group"] for row in results["estimators"]))
    policies = list(results["policies"])
    head = ["credit", "reduction", "normalised"]
    head += [f"{policy}, G = {group}" for policy in policies for group in groups]
    body = []
    for credit, reduction, normalised in main_rows(results):
        cells = estimator_title(credit, reduction, normalised)
        for policy in policies:
            for group in groups:
                row = find(
                    results,
                    policy=policy,
                    group=group,
                    credit=credit,
                    reduction=reduction,
                    normalised=normalised,
                )
                cells.append("" if row is None else _with_error(row, field, decimals))
        body.append(cells)
    return _grid(head, body)


def _still(results: Mapping[str, Any]) -> str:
    """Groups without an update, before and after normalisation, under either credit."""
    policies = list(results["policies"])
    groups = list(dict.fromkeys(row["group"] for row in results["estimators"]))
    head = ["credit", "normalised", *(f"{p}, G = {g}" for p in policies for g in groups)]
    body = []
    for credit in ("shared", "turn"):
        for normalised in (False, True):
            cells = [credit, "yes" if normalised else ""]
            for policy in policies:
                for group in groups:
                    wanted = {"policy": policy, "group": group, "credit": credit}
                    row = find(results, reduction=SUM, normalised=normalised, **wanted)
                    cells.append("" if row is None else _n(100 * row["still"], 1))
            body.append(cells)
    return _grid(head, body)


def _decisions(results: Mapping[str, Any]) -> str:
    names = ("shared", "turn", "critic")
    titles = {"shared": "reward", "turn": "remaining return", "critic": "reward less its value"}
    head = ["policy", "decision at", *(titles[name] for name in names)]
    body = [
        [row["policy"], f"{row['time']:g} s", *(_n(row[f"{name}_sd"], 3) for name in names)]
        for row in results["decisions"]
    ]
    return _grid(head, body)


def _weights(results: Mapping[str, Any]) -> str:
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


def _alphas(results: Mapping[str, Any]) -> str:
    alphas = alphas_of(results)
    head = ["policy", "normalised", "", *(f"alpha {alpha:g}" for alpha in alphas)]
    group = min(row["group"] for row in results["estimators"])
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


def _lengths(results: Mapping[str, Any]) -> str:
    rows = results["lengths"]
    lengths = list(dict.fromkeys(row["long_tokens"] for row in rows))
    head = ["policy", "credit", "reduction", *(f"{length} tokens" for length in lengths)]
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in sorted(rows, key=lambda r: list(results["policies"]).index(r["policy"])):
        key = (row["policy"], row["credit"], TITLES[row["reduction"]])
        found.setdefault(key, []).append(_n(row["alignment"], 3))
    return _grid(head, [[*key, *values] for key, values in found.items()])


def _learning(results: Mapping[str, Any]) -> str:
    head = ["updates", "credit", "reduction", "mean reward", "updates to 90 %", "reward at the end"]
    body = []
    rows = results["learning"]
    for kind in dict.fromkeys(row["updates_by"] for row in rows):
        for row in rows:
            if row["updates_by"] == kind:
                title = [LEARNED.get(kind, "true gradient"), row["credit"]]
                numbers = [_with_error(row, "mean", 3), _with_error(row, "updates", 1)]
                reduction = TITLES.get(row["reduction"], "")
                body.append([*title, reduction, *numbers, _with_error(row, "final", 3)])
    return _grid(head, body)


def _with_error(row: Row, field: str, decimals: int) -> str:
    text = _n(row[field], decimals)
    error = row.get(f"{field}_error")
    return text if error is None else f"{text} {PLUS_MINUS} {error:.{decimals}f}"


def _n(value: float, decimals: int, sign: str = "") -> str:
    return f"{value:{sign}.{decimals}f}".replace("-", MINUS)


def _grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table, every column to the left."""
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
