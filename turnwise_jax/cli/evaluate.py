"""``turnwise eval``: a checkpoint over a set of dialogues, or predictions made before."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags
from rich.console import Console

from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.eval import compare
from turnwise_jax.eval.files import write_text
from turnwise_jax.eval.run import evaluate

USAGE = """usage: turnwise eval --config=configs/eval/streaming.py [--config.field=value ...]
       turnwise eval --compare=A/report.json,B/report.json [--markdown=FILE]

Streams every dialogue through the policy, its own replies as context, and reports. A killed
evaluation goes on where it stopped. With --predictions=FILE nothing is run: the report is made
from dialogues in that JSONL file. With --compare finished reports are put beside one another.
"""


def define(values: flags.FlagValues) -> None:
    define_config(values)
    flags.DEFINE_string(
        "predictions", "", "JSONL file of finished dialogues to score", flag_values=values
    )


def define_compare(values: flags.FlagValues) -> None:
    flags.DEFINE_list("compare", [], "report.json files of one benchmark", flag_values=values)
    flags.DEFINE_string("markdown", "", "also write the comparison here", flag_values=values)


def main(argv: Sequence[str]) -> None:
    if any(word.lstrip("-").split("=")[0] == "compare" for word in argv):
        _compare(argv)
        return
    args = parse(argv, USAGE, define)
    report = evaluate(args.config, predictions=args.predictions or None)
    Console().print(report.table())


def _compare(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define_compare)
    reports = compare.read_reports(args.compare)
    Console().print(compare.table(reports))
    if args.markdown:
        write_text(args.markdown, compare.markdown(reports))
