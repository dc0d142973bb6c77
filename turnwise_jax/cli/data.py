"""``turnwise data check`` and ``turnwise data make``: sets looked through, sets of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags

from turnwise_jax.cli.flags import parse, parse_mixed, require
from turnwise_jax.data import DATASETS
from turnwise_jax.data.checking.checking import check_set
from turnwise_jax.data.checking.summary import markdown, write_summary
from turnwise_jax.data.load import ON_BAD_RECORD
from turnwise_jax.data.making.cutting import REPLY_AT, CutSpec
from turnwise_jax.data.making.making import KINDS, Counts, MakeJob, make_set
from turnwise_jax.data.records import ClipSpec
from turnwise_jax.errors import InputError

MAKE = """usage: turnwise data make --input=list.json --output=DIR [--kind=rl|sft|both]
       turnwise data make --input=CAPTIONS --question="..." --output=DIR

Makes streaming sets of your own videos, in the MMDuet2 formats: RL parquet files with their user
turns, and SFT files. The input is a JSON list of videos with questions and timed answers, or .srt
and .vtt captions beside their videos (a file, or a folder of them), each caption an answer. The
folder is written whole or not at all. docs/data.md shows the forms.
"""
SHOWN = 20


def define_make(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    usual = CutSpec()
    flags.DEFINE_string("input", None, "JSON list, JSON lines, caption file or folder", **at)
    flags.DEFINE_string("output", None, "folder to make", **at)
    flags.DEFINE_enum("kind", "both", sorted(KINDS), "what to write", **at)
    flags.DEFINE_string("root", "", "where a list's video paths start (default: its folder)", **at)
    flags.DEFINE_string("question", "", "what captions answer", **at)
    flags.DEFINE_string("system", "", "system text (default: the built-in one)", **at)
    flags.DEFINE_float("interval", usual.interval, "seconds between frames", **at)
    flags.DEFINE_integer("turn_frames", usual.turn_frames, "frames before each decision", **at)
    flags.DEFINE_float("segment", usual.segment, "seconds that the policy decides (RL)", **at)
    flags.DEFINE_integer("max_frames", usual.max_frames, "of a dialogue, its past included", **at)
    flags.DEFINE_integer(
        "history_turns", usual.history_turns, "given turns before a segment; -1: all that fit", **at
    )
    flags.DEFINE_enum("reply_at", usual.reply_at, REPLY_AT, "of its window, a given reply", **at)
    flags.DEFINE_bool("sound", usual.sound, "turns play the videos' own sound", **at)
    flags.DEFINE_bool("keep_silent", usual.keep_silent, "keep what asks for no answer", **at)
    flags.DEFINE_float("held_out", 0.0, "share of the videos that make the test split", **at)
    flags.DEFINE_integer("seed", 0, "of that choice", **at)
    flags.DEFINE_enum("on_bad_record", "raise", ON_BAD_RECORD, "stop, or leave it out", **at)


def make(argv: Sequence[str]) -> None:
    args = parse(argv, MAKE, define_make)
    require(args, "input", "output")
    job = MakeJob(
        source=Path(args.input),
        output=Path(args.output),
        kind=args.kind,
        root=Path(args.root) if args.root else None,
        question=args.question,
        system=args.system or None,
        held_out=args.held_out,
        seed=args.seed,
        on_bad_record=args.on_bad_record,
        spec=CutSpec(*(getattr(args, name) for name in CutSpec._fields)),
    )
    counts, skipped = make_set(job)
    for line in made_lines(job, counts):
        print(line)
    for line in skipped[:SHOWN]:
        print(f"left out: {line}")
    if len(skipped) > SHOWN:
        print(f"left out: {len(skipped) - SHOWN} more")


def made_lines(job: MakeJob, counts: Counts) -> list[str]:
    """What was made, for the terminal."""
    lines = []
    for split, kinds in counts.records.items():
        if any(kinds.values()) or counts.videos[split]:
            records = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            lines.append(f"{job.output}: {split}: {records} of {counts.videos[split]} videos")
    lines.append(f"{counts.answers - counts.missed} of {counts.answers} answers")
    if counts.missed:
        span = job.spec.turn_seconds
        lines[-1] += f"; {counts.missed} have no decision in their window (one every {span:g} s)"
    if counts.cut:
        lines.append(f"{counts.cut} answers end with the next question or the video")
    return lines


CHECK = """usage: turnwise data check PATH --source=NAME [--output=DIR]

Reads a whole set record by record, opens every media file, and says what is in it and what is wrong
with it: counts, windows and the decisions in them, texts, missing and broken media, records that
cannot be used. PATH is a file of that source's format, or a folder of them. --output leaves
summary.md, problems.jsonl and summary.png. The status is 1 if a record is unusable.
"""


def define_check(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    usual = ClipSpec()
    flags.DEFINE_enum("source", None, sorted(DATASETS), "format of the records", **at)
    flags.DEFINE_string("output", "", "folder for summary, problems and picture", **at)
    flags.DEFINE_string("root", "", "where media paths start (default: the set's folder)", **at)
    flags.DEFINE_string("user_turns", "", "companion JSON, if not beside the parquet", **at)
    flags.DEFINE_bool("decode", False, "decode the last frame shown of each video", **at)
    whole = "of records that name a whole video: "
    flags.DEFINE_integer("frames", usual.frames, "of a question's clip, spread evenly", **at)
    flags.DEFINE_float("interval", usual.interval, f"{whole}seconds between frames", **at)
    flags.DEFINE_integer("turn_frames", usual.turn_frames, f"{whole}frames a turn", **at)
    flags.DEFINE_float("context", usual.context, f"{whole}seconds seen before a question", **at)


def check(argv: Sequence[str]) -> None:
    args, paths = parse_mixed(argv, CHECK, define_check)
    if len(paths) != 1:
        raise InputError("needs one PATH, as in `turnwise data check PATH --source=NAME`")
    require(args, "source")
    if args.output and Path(args.output).resolve() == Path(paths[0]).resolve():
        message = "is the set itself, which problems.jsonl may become a part of; choose another"
        raise InputError(message, file=args.output, field="output")
    if Path(args.output).is_file():
        raise InputError("is a file; name a folder", file=args.output, field="output")
    checked = check_set(
        args.source,
        paths[0],
        root=args.root or None,
        user_turns=args.user_turns or None,
        clip=ClipSpec(
            frames=args.frames,
            interval=args.interval,
            turn_frames=args.turn_frames,
            context=args.context,
        ),
        decode=args.decode,
    )
    print(markdown(checked), end="")
    if args.output:
        from turnwise_jax.data.checking.picture import draw_summary  # matplotlib is slow to import

        written = write_summary(checked, args.output)
        draw_summary(checked, Path(args.output) / "summary.png")
        print("\nwritten:", *written, Path(args.output) / "summary.png")
    elif checked.problems:
        print("\n--output=DIR lists every problem")
    if checked.unusable:
        raise SystemExit(1)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {"check": check, "make": make}
USAGE = """usage: turnwise data COMMAND [--flag=value]

commands:
  check     what is in a set, and all that is wrong with it
  make      RL and SFT sets from your own videos with questions and timed answers, or captions

`turnwise data COMMAND --help` lists the command's flags.
"""


def main(argv: Sequence[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        raise SystemExit(0 if argv else 2)
    if argv[0] not in COMMANDS:
        raise InputError(f"unknown command {argv[0]!r}; see `turnwise data --help`")
    COMMANDS[argv[0]](argv[1:])
