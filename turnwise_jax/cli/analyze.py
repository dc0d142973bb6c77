"""``turnwise analyze``: training dynamics and credit redistribution from the logs of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from turnwise_jax.cli.flags import parse_mixed, require
from turnwise_jax.errors import InputError
from turnwise_jax.study.analyze import labelled, write_analysis

USAGE = """usage: turnwise analyze RUN_DIR [RUN_DIR ...] --output=DIR [--labels=A,B,...]

Draws and tabulates what training runs have logged, finished or not; no policy, judge or data is
needed. Writes PNG, CSV and Markdown: dynamics (reward, penalties, share of replies), redistribution
(shared against turn-level credit of every logged decision), and for runs on questions with an
answer their accuracy, signal and replay buffer. Runs with the same label are seeds of one variant.
"""


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_string("output", None, "directory for pictures and tables", **at)
    flags.DEFINE_list(
        "labels", [], "names of the runs in order (default: their directories')", **at
    )


def main(argv: Sequence[str]) -> None:
    args, directories = parse_mixed(argv, USAGE, define)
    require(args, "output")
    if Path(args.output).is_file():
        raise InputError("is a file; name a directory", file=args.output, field="output")
    for path in write_analysis(labelled(directories, args.labels), Path(args.output)):
        print(f"wrote {path}")
