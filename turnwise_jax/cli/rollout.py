"""``turnwise rollout``: any checkpoint on any video file, decision by decision."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from absl import flags

from turnwise_jax.cli.flags import parse, require
from turnwise_jax.data.clip import Question, clip_dialogue
from turnwise_jax.data.pipeline import load_example
from turnwise_jax.data.records import is_silent
from turnwise_jax.data.reply_styles import STYLES, normalised, restyled
from turnwise_jax.eval.generate import as_prediction, shown
from turnwise_jax.eval.predictions import PredictionWriter
from turnwise_jax.rollout.policy import DTYPES, PARAM_DTYPES, load_sampler
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import Shapes, padded
from turnwise_jax.rollout.stream import StreamEngine

USAGE = """usage: turnwise rollout --checkpoint=DIR --video=clip.mp4 --question="..."

Streams the video through the policy and prints each decision as it is made. --question may be
repeated; "12:What now?" asks at 12 s. --output appends the finished dialogue as one JSON line, in
the form that `turnwise score` and `turnwise eval --predictions` read.
"""


def define(values: flags.FlagValues) -> None:
    at = {"flag_values": values}
    flags.DEFINE_string("checkpoint", None, "Hugging Face directory of the policy", **at)
    flags.DEFINE_string("video", None, "video file", **at)
    flags.DEFINE_multi_string("question", None, "what the user asks, TEXT or SECONDS:TEXT", **at)
    flags.DEFINE_string("output", "", "JSONL file that the dialogue is appended to", **at)
    flags.DEFINE_float("frame_interval", 2.0, "seconds between frames", **at)
    flags.DEFINE_integer("frames_per_turn", 2, "frames before each decision", **at)
    flags.DEFINE_float("start", 0.0, "first second of the video to show", **at)
    flags.DEFINE_float("end", None, "last second of the video to show", **at)
    flags.DEFINE_bool("sound", False, "play the video's audio track too (Qwen2.5-Omni)", **at)
    flags.DEFINE_bool("as_video", False, "show a turn's frames as one video, not as images", **at)
    flags.DEFINE_integer("max_pixels", 0, "of a frame; 0: what the checkpoint says", **at)
    flags.DEFINE_enum("replies", "plain", list(STYLES), "how it writes silence and replies", **at)
    flags.DEFINE_string("system", None, "system text (default: that of --replies)", **at)
    flags.DEFINE_integer("max_new_tokens", 100, "most tokens of a reply", **at)
    flags.DEFINE_float("temperature", 0.0, "0: greedy", **at)
    flags.DEFINE_integer("top_k", 0, "0: no limit", **at)
    flags.DEFINE_float("top_p", 1.0, "1: no limit", **at)
    flags.DEFINE_integer("seed", 0, "of the sampling", **at)
    flags.DEFINE_enum("dtype", "float32", DTYPES, "compute dtype", **at)
    flags.DEFINE_enum("param_dtype", "same", PARAM_DTYPES, "of parameters; same: --dtype", **at)
    flags.DEFINE_integer("fsdp", 1, "devices that hold parameters in parts", **at)
    flags.DEFINE_integer("tensor", 1, "devices that hold and compute heads in parts", **at)


def main(argv: Sequence[str]) -> None:
    args = parse(argv, USAGE, define)
    require(args, "checkpoint", "video", "question")
    dialogue = clip_dialogue(
        args.video,
        [question(text) for text in args.question],
        frame_interval=args.frame_interval,
        frames_per_turn=args.frames_per_turn,
        start=args.start,
        end=args.end,
        sound=args.sound,
        video=args.as_video,
    )
    dialogue = restyled(dialogue, args.replies)
    if args.system is not None:
        dialogue = replace(dialogue, system=args.system)
    policy, placement = load_sampler(
        args.checkpoint,
        dtype=args.dtype,
        param_dtype=args.param_dtype,
        max_pixels=args.max_pixels,
        mesh={"data": 1, "fsdp": args.fsdp, "tensor": args.tensor},
    )
    example = load_example(dialogue, policy.spec, policy.template.sound)
    shapes = Shapes.for_dialogues(
        [dialogue], [example.grids], policy, batch_size=1, new_tokens=args.max_new_tokens
    )
    shapes = padded(shapes, placement.row_parts)
    engine = StreamEngine(policy, Sampling.of(args), shapes, placement)
    replies = []
    for turn, result in zip(
        dialogue.turns, engine.stream(policy.params, example, seed=args.seed), strict=True
    ):
        if turn.text:
            print(f"{turn.time:8.1f} s  user:  {turn.text}")
        visible = normalised(result.text, args.replies)
        said = "-" if is_silent(visible) else f"reply: {one_line(visible)}"
        print(f"{result.time:8.1f} s  {said}{' [cut]' if result.truncated else ''}", flush=True)
        replies.append(result.text)
    if args.output:
        with PredictionWriter(args.output) as writer:
            writer.write(shown(as_prediction(dialogue, replies), args.replies))


def one_line(text: str) -> str:
    """Line breaks and control characters as escapes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def question(text: str) -> Question:
    """ "12.5:What now?" is asked at 12.5 s, anything else at the start."""
    timed = re.fullmatch(r"(\d+(?:\.\d+)?):(.+)", text, re.DOTALL)
    return Question(timed[2].strip(), float(timed[1])) if timed else Question(text)
