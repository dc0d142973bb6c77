"""``turnwise eval``: a checkpoint over a set of dialogues, or predictions made before."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags
from rich.console import Console

from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.eval.run import evaluate

USAGE = """usage: turnwise eval --config=configs/eval/streaming.py [--config.field=value ...]

Streams every dialogue through the policy, its own replies as context, and reports. A killed
evaluation goes on where it stopped. With --predictions=FILE nothing is run: the report is made
from dialogues in that JSONL file.
"""


def define(values: flags.FlagValues) -> None:
    define_config(values)
    flags.DEFINE_string(
        "predictions", "", "JSONL file of finished dialogues to score", flag_values=values
    )


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    report = evaluate(args.config, predictions=args.predictions or None)
    Console().print(report.table())
