"""``turnwise score``: reward terms, prefix scores and turn advantages of finished dialogues."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from absl import flags
from rich.console import Console
from rich.table import Table

from turnwise_jax.cli.flags import parse, require
from turnwise_jax.cli.judging import define_judge, judge_fields
from turnwise_jax.eval.predictions import Prediction, read_predictions
from turnwise_jax.eval.scoring import Credit, assign_credit
from turnwise_jax.files import write_text
from turnwise_jax.rewards.judges import make_judge, misplaced_rule

USAGE = """usage: turnwise score --input=dialogues.jsonl [--output=scores.jsonl] [--judge=rule]

Scores each dialogue by eq. 1 of the TurnWise paper, scores its silence-completed prefixes, and
gives every turn its advantage among the dialogues that share its "group". Judgements in the file
("quality", "repetitive") are used as they are; the judge is asked about dialogues without.

One JSON object per line: id, times (s), replies, windows [{start, end, question, answer}], and
optionally history, group, quality, repetitive. A training run's groups.jsonl is such a file.
"""
SHOWN = 20


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_string("input", None, "JSONL file of dialogues", **at)
    flags.DEFINE_string("output", "", "JSONL file to write, one line per dialogue", **at)
    flags.DEFINE_float("alpha", 1.0, "0: shared GRPO credit, 1: turn-level credit", **at)
    flags.DEFINE_float("omega", 0.5, "weight of PAUC's time axis", **at)
    flags.DEFINE_integer("prefix_chars", 50, "least length of a shared prefix", **at)
    define_judge(values)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    require(args, "input")
    predictions = read_predictions(args.input)
    with make_judge(judge_fields(args)) as judge:
        credits, stats = assign_credit(
            predictions,
            judge,
            alpha=args.alpha,
            omega=args.omega,
            prefix_chars=args.prefix_chars,
            file=args.input,
        )
    if stats.total.asked:
        unjudged = (p for p in predictions if p.quality is None)
        answers = (window.answer for p in unjudged for window in p.windows)
        if warning := misplaced_rule(args.judge, answers, "--judge"):
            print(f"score: WARNING: {warning}", file=sys.stderr)
    if args.output:
        lines = [
            json.dumps({"id": p.id, "group": p.group, **c.to_json()}, allow_nan=False)
            for p, c in zip(predictions, credits, strict=True)
        ]
        write_text(args.output, "".join(line + "\n" for line in lines))
    Console().print(table(predictions, credits))
    if stats.total.failed:
        print(f"{stats.total.failed} judgements failed, now or in the file; they are left out")


def table(predictions: Sequence[Prediction], credits: Sequence[Credit]) -> Table:
    """The first dialogues, for the terminal; --output has all."""
    rest = len(predictions) - SHOWN
    out = Table(caption=f"and {rest} more; see --output" if rest > 0 else None)
    for name in ("id", "reward", "quality", "repetition", "out of window", "shared prefix"):
        out.add_column(name, justify="left" if name == "id" else "right")
    out.add_column("U by turn")
    out.add_column("advantage by turn (shared)")
    for prediction, credit in list(zip(predictions, credits, strict=True))[:SHOWN]:
        terms = [f"{value:.3f}" for value in credit.terms.values()]
        advantages = ""
        if credit.turn is not None:
            advantages = " ".join(f"{a:+.2f}" for a in credit.turn) + f" ({credit.shared:+.2f})"
        prefix = " ".join(f"{u:.2f}" for u in credit.prefix_scores)
        out.add_row(prediction.id, *terms, prefix, advantages)
    return out
