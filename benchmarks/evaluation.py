"""Evaluation of many dialogues at once against one after the other.

    python benchmarks/evaluation.py [--videos 32] [--rounds 5] [--sizes 1 8] [--json FILE]

A tiny untrained policy streams held-out dialogues of the embedded world: real .mp4 files, decoded
while it computes, every turn left to it, its own replies as context, greedy, up to 24 new tokens a
turn. Each round evaluates the whole set once at every batch size, and every other round starts with
the largest, so that a slow moment of the machine meets all sizes. Rates are those after the first
batch, which compiles; `turnwise eval` measures them in the same way and leaves them in
`throughput.json`.

Printed are videos per minute and decisions per second for each size (median, least and most over
the rounds), and how many times as fast the largest is as the smallest: the median of the rounds'
own ratios with their least and most. The replies are compared too: batch sizes round differently,
so a reply may differ where two tokens are equally likely.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from workload import flag_parser, in_turn, measure_and_report, summary, where

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import Dialogue
from turnwise_jax.eval.generate import Decoding, generate
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.throughput import Meter
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.worlds import streamworld
from turnwise_jax.worlds.settings import WORLDS

RATES = ("videos_per_minute", "decisions_per_second")
Rates = dict[str, float]


def prepare(root: Path, videos: int) -> tuple[Policy, list[Dialogue]]:
    """A policy and the dialogues that it is to stream, from their first turn on."""
    world = WORLDS["demo"]
    files = streamworld.generate(root / "world", world, train=1, test=videos, progress=False)
    dialogues, _ = load_dialogues("mmduet2_rl", files.rl("test"))
    policy = Policy.load(make_tiny_policy(root / "policy", world), dtype="float32")
    return policy, [dialogue.reopened() for dialogue in dialogues]


def alternate(
    run: Callable[[int, int], Rates], sizes: Sequence[int], rounds: int
) -> dict[int, list[Rates]]:
    """``run(size, round)`` for every size in every round, forwards and backwards in turn."""
    found: dict[int, list[Rates]] = {size: [] for size in sizes}
    for number, size in in_turn(sizes, rounds):
        found[size].append(run(size, number))
    return found


def compare(found: dict[int, list[Rates]]) -> dict[str, Any]:
    """Rates of every size, and the largest over the smallest within each round."""
    small, large = min(found), max(found)
    pairs = zip(found[large], found[small], strict=True)
    ratios = [a["decisions_per_second"] / b["decisions_per_second"] for a, b in pairs]
    return {
        "rates": {
            size: {name: summary([row[name] for row in rows]) for name in RATES}
            for size, rows in found.items()
        },
        "faster": {"batch_sizes": [small, large], **summary(ratios)},
    }


def measure(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Run all rounds and return what `print_report` prints."""
    jax.config.update("jax_compilation_cache_dir", str(root / "compiled"))
    policy, dialogues = prepare(root, args.videos)
    if len(dialogues) <= max(args.sizes):
        raise SystemExit(f"{len(dialogues)} dialogues are one batch: ask for more --videos")
    said: dict[int, list[Prediction]] = {}

    def run(size: int, number: int) -> Rates:
        meter = Meter()
        said[size] = generate(
            policy,
            dialogues,
            root / f"{size}-{number}.jsonl",
            decoding=Decoding(new_tokens=args.new_tokens, batch_size=size),
            title=f"round {number + 1}, batches of {size}",
            meter=meter,
        )
        return meter.to_json()["after_first_batch"]

    found = compare(alternate(run, sorted(args.sizes), args.rounds))
    small, large = found["faster"]["batch_sizes"]
    replies = [[text for p in said[size] for text in p.replies] for size in (small, large)]
    return {
        **where(),
        "dialogues": len(dialogues),
        "decisions": len(replies[0]),
        "rounds": args.rounds,
        "equal_replies": statistics.fmean(a == b for a, b in zip(*replies, strict=True)),
        **found,
    }


def print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['dialogues']} dialogues, {report['decisions']} decisions, "
        f"{report['rounds']} rounds, {report['device']}, {report['cores']} cores, "
        f"jax {report['jax']}"
    )
    print(f"{'batch size':<12}{'videos/min':>26}{'decisions/s':>26}")
    for size, rates in report["rates"].items():
        cells = [f"{r['median']:.1f} ({r['least']:.1f} - {r['most']:.1f})" for r in rates.values()]
        print(f"{size:<12}{cells[0]:>26}{cells[1]:>26}")
    faster = report["faster"]
    small, large = faster["batch_sizes"]
    print(
        f"batches of {large} are {faster['median']:.2f} times as fast as batches of {small} "
        f"({faster['least']:.2f} - {faster['most']:.2f}); {report['equal_replies']:.1%} of the "
        "replies are equal"
    )


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument(
        "--videos", type=int, default=32, help="held-out videos, two dialogues each"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs=2, default=[1, 8], help="batch sizes")
    parser.add_argument("--new-tokens", type=int, default=24, help="most tokens of a turn")
    measure_and_report(parser.parse_args(), measure, print_report)


if __name__ == "__main__":
    main()
