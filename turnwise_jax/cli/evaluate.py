"""``turnwise eval``: a checkpoint over a set of dialogues, or predictions made before."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags
from rich.console import Console

from turnwise_jax.cli.flags import EVALUATION, config_of, define_config, parse
from turnwise_jax.errors import InputError
from turnwise_jax.eval import compare
from turnwise_jax.eval.run import evaluate
from turnwise_jax.files import write_text

USAGE = """usage: turnwise eval --config=configs/eval/streaming.py [--config.field=value ...]
       turnwise eval --compare=A/report.json,B/report.json [--markdown=FILE]

Streams every dialogue through the policy, its own replies as context, and reports. A killed
evaluation goes on where it stopped. With --predictions=FILE nothing is run: the report is made
from dialogues in that JSONL file. With --compare finished reports are put beside one another.
"""


def define(values: flags.FlagValues) -> None:
    define_config(values)
    at = {"flag_values": values}
    flags.DEFINE_string("predictions", "", "JSONL file of finished dialogues to score", **at)
    flags.DEFINE_list("compare", [], "report.json files of one benchmark, A,B,...", **at)
    flags.DEFINE_string("markdown", "", "file for that comparison as Markdown", **at)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    if args["compare"].present:
        _compare(args)
        return
    if args.markdown:
        raise InputError("is for a comparison; also give --compare", field="markdown")
    report = evaluate(config_of(args, EVALUATION), predictions=args.predictions or None)
    Console().print(report.table())


def _compare(args: flags.FlagValues) -> None:
    for name in ("config", "predictions"):
        if args[name].present:
            raise InputError("cannot be given with --compare, which runs nothing", field=name)
    reports = compare.read_reports(args.compare)
    Console().print(compare.table(reports))
    if args.markdown:
        write_text(args.markdown, compare.markdown(reports))
