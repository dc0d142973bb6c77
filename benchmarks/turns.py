"""Rollouts with a barrier after every turn against rollouts without one.

    python benchmarks/turns.py [--rounds 5] [--words 40] [--json FILE]

8 prompts x 4 rollouts of a random checkpoint, 8 turns each, replies of 1 to 100 tokens: the policy
may say one of `--words` words or end its turn, all about equally likely, so that lengths are
ragged. A share `--silent` of the turns can also be made to end at once, as most turns of a
streaming policy do. The same seed gives the same tokens either way, which is checked first.

* `barrier`: all rollouts wait until the last has ended its turn.
* `desynchronised`: each goes on to its next turn (`rollout.desynchronised`), shown as soon as one
  waits, or when the share `show_at` of the rows does.

Printed are slot use (the share of rows in decoding steps that sampled a token), the use of the rows
in which turns were shown, seconds (median, least and most) and how many times as long each takes as
`desynchronised` within the same round.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from workload import (
    add_sizes,
    alternate,
    compare,
    flag_parser,
    machine,
    make_checkpoint,
    make_examples,
    make_prompts,
    measure_and_report,
    print_machine,
    print_times,
)

from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import Rollouts, StreamEngine

SHOW_AT = {"desynchronised": 0.0, "at_a_tenth": 0.1, "at_a_quarter": 0.25}
TITLES = {
    "barrier": "a barrier after every turn",
    "desynchronised": "desynchronised, shown at once",
    "at_a_tenth": "desynchronised, show_at 0.1",
    "at_a_quarter": "desynchronised, show_at 0.25",
}


class FewWords(Policy):
    """Samples only its marker and a few ordinary ids; the marker with a chance of its own."""

    words = 40

    @property
    def allowed(self) -> np.ndarray:
        mask = np.zeros(self.rows, bool)
        mask[np.flatnonzero(super().allowed)[: self.words]] = True
        mask[self.vocab.im_end] = True
        return mask


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The report: uses and times of every variant."""
    make_checkpoint(folder, args, tied=False)
    FewWords.words = args.words
    policy = FewWords.load(folder, dtype="float32")
    prompts, shapes = make_prompts(policy, make_examples(args, policy.spec), args.reply_tokens)
    engines = {"barrier": StreamEngine(policy, Sampling(), shapes)} | {
        name: StreamEngine(policy, Sampling(), shapes, desynchronised=True, show_at=share)
        for name, share in SHOW_AT.items()
    }

    def roll(engine: StreamEngine) -> Rollouts:
        return engine.rollout(policy.params, prompts, group_size=args.group, seed=0)

    made = {name: roll(engine) for name, engine in engines.items()}
    for name, rollouts in made.items():
        if not np.array_equal(rollouts.tokens, made["barrier"].tokens):
            raise SystemExit(f"{name} says something else than barrier")
    lengths = made["barrier"].length
    seconds = alternate({name: partial(roll, engine) for name, engine in engines.items()},
                        args.rounds)  # fmt: skip
    return machine(args) | {
        "lengths": {"mean": float(lengths.mean()), "most": int(lengths.max())},
        "use": {name: rollouts.use._asdict() for name, rollouts in made.items()},
        "times": compare(seconds, "desynchronised"),
    }


def print_report(report: Mapping[str, Any]) -> None:
    print_machine(report)
    print("replies of {mean:.1f} tokens, at most {most}".format(**report["lengths"]))
    for name, use in report["use"].items():
        print(f"{TITLES[name]:<42}slot use {use['decoding']:.2f}  shown {use['showing']:.2f}")
    print_times(report["times"], TITLES, "desynchronised")


def main() -> None:
    parser = flag_parser(__doc__)
    add_sizes(parser)
    parser.set_defaults(
        prompts=8, turns=8, reply_tokens=100, context_frames=4, vocabulary=2000, hidden=128
    )
    parser.add_argument("--words", type=int, default=40, help="that may be said besides the end")
    measure_and_report(parser.parse_args(), measure, print_report)


if __name__ == "__main__":
    main()
