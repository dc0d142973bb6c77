"""``turnwise convert``: training checkpoints to Hugging Face directories."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from turnwise_jax.cli.flags import parse, require
from turnwise_jax.train.convert import convert

USAGE = """usage: turnwise convert --run=RUN_DIR --output=HF_DIR [--step=N]

Writes the policy of a training run's checkpoint (the newest by default) as a Hugging Face
directory that transformers and vLLM load, and that any command takes as a checkpoint.
"""


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_string("run", None, "directory of a training run", **at)
    flags.DEFINE_string("output", None, "directory to write; must not exist", **at)
    flags.DEFINE_integer("step", None, "which checkpoint (default: the newest)", **at)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    require(args, "run", "output")
    step = convert(args.run, args.output, step=args.step)
    print(f"wrote the policy after step {step} to {args.output}")
