"""``turnwise convert``: checkpoints from one form to another."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from turnwise_jax.cli.flags import parse, require
from turnwise_jax.errors import InputError
from turnwise_jax.train.convert import FORMATS, convert_checkpoint, convert_run

USAGE = """usage: turnwise convert --run=RUN_DIR --output=DIR [--step=N]
       turnwise convert --checkpoint=DIR --output=DIR [--format=hf|orbax] [--dtype=bfloat16]

Writes the policy of a training run's checkpoint (the newest by default), adapters merged, as a
Hugging Face directory that transformers and vLLM load; or a checkpoint directory in the other form:
"orbax" is what a pod reads fastest, "hf" is safetensors. Every command takes both as a checkpoint.
"""


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_string("run", None, "directory of a training run", **at)
    flags.DEFINE_string("checkpoint", None, "a checkpoint directory of either form", **at)
    flags.DEFINE_string("output", None, "directory to write; must not exist", **at)
    flags.DEFINE_integer("step", None, "which checkpoint (default: the newest)", **at)
    flags.DEFINE_enum("format", "hf", FORMATS, "form of a converted checkpoint", **at)
    flags.DEFINE_enum("dtype", "bfloat16", ("bfloat16", "float32"), "of its weights", **at)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    require(args, "output")
    if (args.run is None) == (args.checkpoint is None):
        raise InputError("name what to convert by --run or by --checkpoint")
    if args.run is not None:
        step = convert_run(args.run, args.output, step=args.step)
        print(f"wrote the policy after step {step} to {args.output}")
    else:
        convert_checkpoint(args.checkpoint, args.output, form=args.format, dtype=args.dtype)
        print(f"wrote {args.checkpoint} to {args.output} as {args.format}")
