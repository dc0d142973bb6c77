"""Lengths, buckets and their padding as text and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from turnwise_jax.rollout.policy import Policy
from turnwise_jax.tables import markdown_table
from turnwise_jax.train.buckets.data import (
    Records,
    histograms,
    rollout_advice,
    supervised_advice,
)
from turnwise_jax.train.buckets.logs import logged_batches, row_advice, sampled_lengths
from turnwise_jax.train.buckets.options import Advice, Lengths, Option, override
from turnwise_jax.train.padding import mean_padding

BINS, WIDTH = 12, 40  # of a histogram in text


class Found(NamedTuple):
    """What the data and the logs of a run say about its shapes.

    ``heading``: what was read, a line each. ``logged``: mean padding in the run's own log.
    """

    heading: tuple[str, ...]
    lengths: tuple[Lengths, ...]
    advice: tuple[Advice, ...]
    logged: float | None


def find(config: ConfigDict, policy: Policy, directory: Path) -> Found:
    """Reads a run's records, and its logs if it has any.

    Args:
      config: checked.
      policy: its tokenizer and preprocessing count; it needs no parameters.
      directory: of a run on these data.

    Raises:
      InputError: records, files or logs that cannot be used.
    """
    records = Records.read(config, policy)
    lengths = histograms(records)
    order = "in random order" if config.data.shuffle else "in the order of the data"
    heading = [f"{records.plain} records, batches of {records.batch} {order}"]
    if records.supervised:
        return Found(
            tuple(heading), tuple(lengths), (supervised_advice(records),), mean_padding(directory)
        )
    advice = [rollout_advice(records)]
    batches = logged_batches(records, directory)
    if batches:
        heading.append(f"{len(batches)} logged steps of {directory}")
        lengths.append(sampled_lengths(batches))
        advice.append(row_advice(records, batches))
    else:
        heading.append(
            f"no log in {directory}: how long rows get depends on the policy; run this again once "
            "it has been trained for some steps, or name another run with --run=DIR"
        )
    return Found(tuple(heading), tuple(lengths), tuple(advice), mean_padding(directory))


def markdown(found: Found) -> str:
    """The whole report."""
    parts = ["\n".join(found.heading)]
    for lengths in found.lengths:
        parts.append(f"{lengths.name}: {lengths.what}\n{_quantiles(lengths.values)}")
        parts.append(_bars(lengths.values))
    for advice in found.advice:
        parts.append(f"{advice.title} ({advice.field}; * advised)\n\n{_table(advice)}")
    if found.logged is not None:
        parts.append(f"padding of the rows in the run's log: {found.logged:.1%} in the mean")
    flags = [override(a.field, a.advised.lengths) for a in found.advice]
    parts.append("\n".join(["use:", *(f"  {flag}" for flag in flags)]))
    return "\n\n".join(parts) + "\n"


def as_json(found: Found) -> dict[str, Any]:
    """All figures; a histogram as its distinct lengths with their counts."""
    return {
        "read": list(found.heading),
        "lengths": {
            lengths.name: {
                "what": lengths.what,
                "counts": [[int(v), int(c)] for v, c in zip(*_counts(lengths), strict=True)],
            }
            for lengths in found.lengths
        },
        "buckets": {
            advice.field: {
                "now": advice.now._asdict(),
                "options": [option._asdict() for option in advice.options],
                "advised": list(advice.advised.lengths),
            }
            for advice in found.advice
        },
        "logged_padding": found.logged,
    }


def _counts(lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(lengths.values, return_counts=True)


def _quantiles(values: np.ndarray) -> str:
    at = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}
    parts = [f"{name} {np.quantile(values, q):.0f}" for name, q in at.items()]
    return f"{len(values)} values: {', '.join(parts)}, mean {values.mean():.1f}"


def _bars(values: np.ndarray) -> str:
    """A histogram in text, a line a bin of whole lengths, those without a value included."""
    low, high = int(values.min()), int(values.max())
    step = -(-(high - low + 1) // BINS)
    starts = range(low, high + 1, step)
    counts = [int(((values >= start) & (values < start + step)).sum()) for start in starts]
    number = len(str(high))
    lines = []
    for start, count in zip(starts, counts, strict=True):
        bar = "#" * -(-count * WIDTH // max(counts))
        end = min(start + step - 1, high)
        lines.append(f"    {start:{number}d} to {end:{number}d}  {count:6d}  {bar}".rstrip())
    return "\n".join(lines)


def _table(advice: Advice) -> str:
    head = ("buckets", "padding", "lengths", "room (share of batches)")
    rows = [_row(f"now {len(advice.now.rooms)}", advice.now)]
    for option in advice.options:
        mark = " *" if option is advice.advised else ""
        rows.append(_row(f"{len(option.rooms)}{mark}", option))
    return markdown_table(head, rows, "rrll")


def _row(name: str, option: Option) -> tuple[str, str, str, str]:
    rooms = [f"{r} ({s:.0%})" for r, s in zip(option.rooms, option.shares, strict=True)]
    lengths = ", ".join(map(str, option.lengths)) or "halvings"
    return (name, f"{option.padding:.1%}", lengths, ", ".join(rooms))
