"""``turnwise hints``: hints for question-answering records, written by a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from turnwise_jax.cli.flags import parse, require
from turnwise_jax.data.load import ON_BAD_RECORD
from turnwise_jax.rewards.hint_teacher import HintTeacher
from turnwise_jax.rewards.judges.client import ChatClient
from turnwise_jax.train.write_hints import SOURCES, HintJob, write_hints

USAGE = """usage: turnwise hints --input=qa.jsonl --output=out.jsonl --url=http://HOST/v1 --model=M

Copies question-answering records and fills their field "hint": a strategy, never the answer, from a
vision-language model that is shown question, answer, the caption of the sound and a few frames. A
hint that gives the answer away is refused and asked for again. Records with a hint keep it. The
same command goes on after a kill.
"""


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_string("input", None, "JSONL file of question-answering records", **at)
    flags.DEFINE_string("output", None, "JSONL file to write", **at)
    flags.DEFINE_enum("source", "qa", SOURCES, "form of the records", **at)
    flags.DEFINE_string("root", "", "where media paths start (default: the input's folder)", **at)
    flags.DEFINE_string("url", None, "OpenAI-compatible endpoint, .../v1", **at)
    flags.DEFINE_string("model", None, "the endpoint's model", **at)
    flags.DEFINE_string("key_env", "", "environment variable that holds the API key", **at)
    flags.DEFINE_integer("frames", 8, "pictures of a clip at most; 0: none", **at)
    flags.DEFINE_integer("side", 448, "pixels of a picture's longer side at most", **at)
    flags.DEFINE_integer("attempts", 3, "hints asked for before a record is left without", **at)
    flags.DEFINE_integer("concurrency", 32, "requests under way at once", **at)
    flags.DEFINE_float("timeout", 60.0, "seconds for one call", **at)
    flags.DEFINE_integer("retries", 3, "calls made again after a passing fault", **at)
    flags.DEFINE_integer("max_tokens", 2048, "of an answer, reasoning included", **at)
    flags.DEFINE_enum("on_bad_record", "raise", ON_BAD_RECORD, "or copied without a hint", **at)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    require(args, "input", "output", "url", "model")
    job = HintJob(
        Path(args.input),
        Path(args.output),
        args.source,
        Path(args.root) if args.root else None,
        args.frames,
        args.side,
        args.on_bad_record,
    )
    client = ChatClient(
        args.url,
        args.model,
        role="teacher",
        api_key_env=args.key_env or None,
        concurrency=args.concurrency,
        timeout=args.timeout,
        retries=args.retries,
        max_tokens=args.max_tokens,
    )
    with client:
        counts = write_hints(job, HintTeacher(client, attempts=args.attempts))
    print(f"{args.output}: {counts.hints} of {counts.records} records have a hint")
    if counts.without:
        print(
            f"{counts.without} are without: in this run {counts.refused} only got hints that give "
            f"the answer away, {counts.failed} got none, {counts.unreadable} cannot be read"
        )
