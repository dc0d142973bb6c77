"""What the benchmarks of training and rollouts share: a model, dialogues, rounds and their summary.

The model is a Qwen2.5-VL of the sizes that the flags say, with random weights, as a checkpoint
directory that transformers loads too. The dialogues have the shape of MMDuet2's streaming RL data:
a system text, a past of turns of ``--turn-frames`` frames with given replies, then ``--turns``
decisions. The last turn of the context is the first that is decided, so ``--context-frames`` counts
its frames too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from turnwise_jax.data.chat import DEFAULT_SYSTEM
from turnwise_jax.data.images import FrameSpec, normalise, patchify
from turnwise_jax.data.pipeline import Example
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.data.tokens import build_tokenizer
from turnwise_jax.models import io
from turnwise_jax.models.qwen2_5_vl import Config
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import PromptBatch, prompt_batch
from turnwise_jax.rollout.shapes import Shapes

Name = TypeVar("Name")
HEAD_DIM, MROPE = 32, (4, 6, 6)
TOKENS = 600  # of the tokenizer: enough for the words of the texts below
REPLIES = (
    "NO REPLY",
    "NO REPLY",
    "A person opens the door and walks into the kitchen.",
    "Now the pan is on the stove.",
)
QUESTIONS = (
    "What is the person doing? Tell me whenever it changes.",
    "Describe each step of the recipe as soon as it begins.",
    "When does the red car turn left, and where does it stop after that?",
)


def flag_parser(text: str | None) -> argparse.ArgumentParser:
    """A parser that shows ``text``, a script's docstring, and has the flag that all have."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the report here")
    return parser


def measure_and_report(
    args: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Path], dict[str, Any]],
    print_report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure in a folder that goes away; print the report and write it where ``--json`` says."""
    with tempfile.TemporaryDirectory() as folder:
        report = measure(args, Path(folder))
    print_report(report)
    write_json(report, args.json)
    return report


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Flags of the model and the dialogues."""
    for name, value, text in (
        ("hidden", 256, f"width of the decoder, a multiple of {HEAD_DIM}"),
        ("layers", 4, "of the decoder"),
        ("vocabulary", 32000, "rows of the output head"),
        ("vision-hidden", 128, f"width of the vision tower, a multiple of {HEAD_DIM}"),
        ("vision-layers", 3, "of the vision tower"),
        ("pixels", 84, "side of a square frame; 28 x 28 pixels are a token"),
        ("prompts", 2, "B"),
        ("group", 4, "G, rollouts of each prompt"),
        ("context-frames", 24, "frames before the first decision"),
        ("turns", 8, "K, decisions of each rollout"),
        ("turn-frames", 2, "frames of each turn"),
        ("reply-tokens", 32, "L, most tokens of a reply"),
        ("rounds", 5, "timed rounds"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} ({value})")


def make_checkpoint(
    directory: Path,
    args: argparse.Namespace,
    *,
    tied: bool,
    spread: float = 0.02,
    marker_gain: float = 1.0,
    only_allowed: bool = False,
) -> None:
    """Write a checkpoint with random weights.

    Args:
      args: the flags of :func:`add_sizes`.
      tied: the output head is the embedding.
      spread: standard deviation of the decoder's weights. At 0.02 an untrained decoder hardly looks
        beyond its last token; wider ones depend on all that was said before.
      marker_gain: factor on the end marker's column of an untied head, so that greedy replies end.
      only_allowed: columns of an untied head whose ids a policy may not choose are 0, so that a
        greedy choice falls on none of them where nothing is masked.
    """
    room = min(TOKENS, args.vocabulary)
    vocab = build_tokenizer((DEFAULT_SYSTEM, *REPLIES, *QUESTIONS), room, directory)
    heads = args.hidden // HEAD_DIM
    config = Config.tiny(
        args.vocabulary,
        image_token_id=vocab.image_pad,
        video_token_id=vocab.video_pad,
        vision_start_token_id=vocab.vision_start,
        vision_end_token_id=vocab.vision_end,
        tie_word_embeddings=tied,
        text_hidden_size=args.hidden,
        text_intermediate_size=4 * args.hidden,
        text_num_hidden_layers=args.layers,
        text_num_attention_heads=heads,
        text_num_key_value_heads=max(1, heads // 4),
        text_head_dim=HEAD_DIM,
        text_mrope_section=MROPE,
        text_initializer_range=spread,
        vision_hidden_size=args.vision_hidden,
        vision_intermediate_size=3 * args.vision_hidden,
        vision_depth=args.vision_layers,
        vision_num_heads=args.vision_hidden // HEAD_DIM,
        vision_window_size=112,
        vision_fullatt_block_indexes=(args.vision_layers - 1,),
    )
    FrameSpec(min_pixels=args.pixels**2, max_pixels=args.pixels**2).save(directory)
    params = io.init(config, 0)
    if not tied:
        kernel = params["text"]["head"]["kernel"]
        kernel[...] = kernel[...].at[:, vocab.im_end].multiply(marker_gain)
        if only_allowed:
            forbidden = vocab.forbidden_mask(args.vocabulary)
            kernel[...] = jnp.where(forbidden, 0.0, kernel[...])
    io.save(directory, config, params)


def make_examples(args: argparse.Namespace, spec: FrameSpec) -> list[Example]:
    """B dialogues of random frames; their texts, and so their contexts, differ in length."""
    given = args.context_frames // args.turn_frames - 1
    if given < 0:
        raise SystemExit("--context-frames must be at least --turn-frames")
    rng = np.random.default_rng(1)
    examples = []
    for number in range(args.prompts):
        turns: list[Turn] = []
        shown = 0
        for index in range(given + args.turns):
            names = [f"{number}-{shown + i}.png" for i in range(args.turn_frames)]
            shown += args.turn_frames
            turns.append(
                Turn(
                    frames=tuple(Frame(name) for name in names),
                    text="" if index else QUESTIONS[number % len(QUESTIONS)],
                    time=float(shown),
                    reply=REPLIES[rng.integers(len(REPLIES))] if index < given else None,
                    video=False,
                )
            )
        pixels = rng.integers(0, 256, (shown, args.pixels, args.pixels, 3), np.uint8)
        patches = [patchify(pixels[i : i + 1], spec) for i in range(shown)]
        examples.append(
            Example(
                Dialogue(f"dialogue-{number}", tuple(turns), file="random"),
                tuple(p.values for p in patches),
                tuple(p.grid for p in patches),
                (),
            )
        )
    return examples


def make_prompts(
    policy: Policy, examples: Sequence[Example], new_tokens: int
) -> tuple[PromptBatch, Shapes]:
    """The examples as one batch, and its bucket."""
    (shapes,) = Shapes.for_dialogues(
        [example.dialogue for example in examples],
        [example.grids for example in examples],
        policy,
        batch_size=len(examples),
        new_tokens=new_tokens,
    )
    return prompt_batch(examples, policy, [shapes]), shapes


def frame_values(examples: Sequence[Example], spec: FrameSpec) -> np.ndarray:
    """f32 ``[B, frames, patches, values]``: every dialogue's frames as transformers takes them."""
    return np.stack(
        [np.stack([normalise(values, spec) for values, _ in x.slices]) for x in examples]
    )


def in_turn(names: Iterable[Name], rounds: int) -> Iterator[tuple[int, Name]]:
    """(round, name) of every variant in every round, forwards and backwards in turn."""
    order = list(names)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            yield number, name


def alternate(variants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant in every round, forwards and backwards in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _, name in in_turn(variants, rounds):
        seconds[name].append(timed(variants[name]))
    return seconds


def timed(run: Callable[[], Any]) -> float:
    """Seconds until what it computes is there."""
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def compare(seconds: Mapping[str, Sequence[float]], best: str) -> dict[str, Any]:
    """Seconds of every variant, and how many times as long it takes as ``best`` in each round."""
    return {
        name: {
            "seconds": summary(own),
            "times_ours": summary([a / b for a, b in zip(own, seconds[best], strict=True)]),
        }
        for name, own in seconds.items()
    }


def print_times(times: Mapping[str, Any], titles: Mapping[str, str], best: str) -> None:
    """A table: median seconds with least and most, and the ratio to ``best`` likewise."""
    print(f"{'':<42}{'seconds':>26}{'times ' + repr(best):>28}")
    for name, row in times.items():
        cells = [
            f"{cell['median']:.3f} ({cell['least']:.3f} - {cell['most']:.3f})"
            for cell in (row["seconds"], row["times_ours"])
        ]
        print(f"{titles[name]:<42}{cells[0]:>26}{cells[1]:>28}")


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """The flags, where and with what the numbers were measured."""
    sizes = {k: v for k, v in vars(args).items() if isinstance(v, int | float | bool | str)}
    return {"sizes": sizes, **where()}


def where() -> dict[str, Any]:
    """Where and with what the numbers are measured."""
    return {
        "device": jax.devices()[0].device_kind,
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "jax": jax.__version__,
    }


def print_machine(report: Mapping[str, Any]) -> None:
    sizes = report["sizes"]
    print(
        f"{sizes['prompts']} prompts x {sizes['group']} rollouts, {sizes['context_frames']} frames "
        f"of context, {sizes['turns']} turns of {sizes['turn_frames']} frames; decoder "
        f"{sizes['layers']} x {sizes['hidden']}, vocabulary {sizes['vocabulary']}; "
        f"{report['device']}, {report['cores']} cores, jax {report['jax']}"
        + (f", torch {report['torch']}" if "torch" in report else "")
    )


def keep_compiled(folder: Path) -> None:
    """Compiled programs go to ``folder`` unless the environment says where."""
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def write_json(report: Mapping[str, Any], file: Path | None) -> None:
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=2) + "\n")
