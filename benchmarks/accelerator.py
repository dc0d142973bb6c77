"""Training and rollouts of a 3B policy on one accelerator, in one run of a few minutes.

    python benchmarks/accelerator.py [--size 3b] [--json FILE] [--profile FOLDER]

Needs no checkpoint and no data: a Qwen2.5-VL of the published sizes with random bfloat16 weights
made on the device, and dialogues of random frames in the shape of the paper's setting (about 10k
tokens of context, 8 decisions of 2 frames, 4 rollouts of each prompt). With `--size tiny` the same
runs in seconds on a CPU. Only the first device is used. In this order:

* attention of one layer, forwards and backwards, at the shapes of the update: the platform's kernel
  (splash attention on TPUs, cuDNN on GPUs) against the plain form, after both were compared.
* a batch of rollouts: everything from encoding the frames to the replies' text. An untrained policy
  hardly ever ends a reply, so that nearly all have the most tokens.
* updates of the decoder, the vision tower frozen: TurnWise's loss, shared context, remat, AdamW.
* one more update under `jax.profiler`, and the operations that took most of it.

Two counts of operations come from the model's sizes (`turnwise_jax/models/flops.py`). *Needed* is
what the mathematics asks for: real tokens only, visible query-key pairs only, nothing computed
twice. MFU is needed operations a second by the device's peak. *Executed* is what the plain form
runs: padding, masked pairs, and layers computed again in the backward pass; kernels that skip
masked pairs execute less than that. Peaks are of dense bfloat16, from the makers' data sheets.

A part that fails, for want of memory say, is named and the others still run; the exit status is
then 1. Smaller: `--prompts`, `--accumulate` (micro-batches), `--layers`, `--context-frames`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.cli.main import ACCELERATORS

if not any(any(Path("/dev").glob(pattern)) for pattern in ACCELERATORS):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the profiler fails beside an idle libtpu

import jax
from accelerator_parts import Work, measure_attention, measure_rollout, measure_training, peak_of
from device_trace import read_events, top_operations, traced
from workload import flag_parser, machine, print_machine, write_json

from turnwise_jax.models import flops

SIZES: Mapping[str, Mapping[str, int]] = {
    "3b": {"prompts": 4, "group": 4, "context_frames": 76, "turns": 8, "turn_frames": 2,
           "pixels": 308, "reply_tokens": 100, "accumulate": 2, "rounds": 3},
    "tiny": {"prompts": 2, "group": 2, "context_frames": 4, "turns": 2, "turn_frames": 2,
             "pixels": 56, "reply_tokens": 8, "accumulate": 2, "rounds": 2},
}  # fmt: skip
HELP = {
    "prompts": "B",
    "group": "G, rollouts of each prompt",
    "context_frames": "frames before the first decision",
    "turns": "K, decisions of each rollout",
    "turn_frames": "frames of each turn",
    "pixels": "side of a square frame; 28 x 28 pixels are a token",
    "reply_tokens": "L, most tokens of a reply",
    "accumulate": "micro-batches of an update",
    "rounds": "timed rounds",
}


PARTS: Mapping[str, Callable[[Work, Any], tuple[Any, ...]]] = {  # figures, and the update at last
    "attention": lambda work, batch: (measure_attention(work, batch),),
    "rollout": lambda work, batch: (measure_rollout(work),),
    "training": measure_training,
}
LINES = (
    ("seconds, median", "seconds", 1.0, ".3f"),
    ("  least", "least", 1.0, ".3f"),
    ("  most", "most", 1.0, ".3f"),
    ("tokens a second", "tokens_per_second", 1.0, ".0f"),
    ("sampled tokens a second", "sampled_tokens_per_second", 1.0, ".0f"),
    ("TFLOP needed", "needed_flops", 1e-12, ".4g"),
    ("MFU: needed by peak, %", "mfu", 100.0, ".1f"),
    ("TFLOP executed, plain attention", "executed_flops", 1e-12, ".4g"),
    ("executed by peak, %", "executed_of_peak", 100.0, ".1f"),
    ("GB allocated at most so far", "peak_bytes", 1e-9, ".2f"),
    ("GB as compiled", "compiled_bytes", 1e-9, ".2f"),
    ("seconds to compile", "compile_seconds", 1.0, ".1f"),
)


def profile(update: Callable[[], Any], folder: Path, count: int) -> list[dict[str, Any]]:
    """The longest operations of one update, none if the profiler recorded none."""
    traced(update, folder)
    return top_operations(read_events(folder), count)


def run_parts(
    parts: Mapping[str, Callable[[Any, Any], tuple[Any, ...]]], work: Any, batch: Any
) -> tuple[dict[str, Any], list[Callable[[], Any]]]:
    """Figures of every part by name, an ``error`` where one failed; and what the last one gave."""
    figures, rest = {}, []
    for name, part in parts.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            figures[name], *rest = part(work, batch)
        except jax.errors.JaxRuntimeError as error:
            figures[name], rest = {"error": str(error).splitlines()[0]}, []
    return figures, rest


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything, part by part; what fails has an ``error`` instead of figures."""
    work = Work(folder / "policy", args)
    report = machine(args) | {
        "peak_flops": peak_of(work.device.device_kind),
        "parameters": flops.count_parameters(work.policy.params),
        "context_tokens": work.prompts.context.length.tolist(),
        "decoder": [work.policy.config.text.num_hidden_layers, work.policy.config.text.hidden_size],
        "vocabulary": work.policy.rows,
    }
    batch = work.batch()
    report |= {"row_tokens": batch.valid_NT.sum(axis=1).tolist()}
    figures, update = run_parts(PARTS, work, batch)
    report |= figures
    print_report(report)
    write_json(report, args.json)  # a profiler can end the process
    if update and args.operations:
        report["operations"] = profile(*update, args.profile or folder / "profile", args.operations)
        print_operations(report["operations"])
        write_json(report, args.json)
    return report


def print_report(report: Mapping[str, Any]) -> None:
    layers, width = report["decoder"]
    sizes = report["sizes"] | {"layers": layers, "hidden": width}
    print_machine({**report, "sizes": sizes | {"vocabulary": report["vocabulary"]}})
    rows, contexts, peak = report["row_tokens"], report["context_tokens"], report["peak_flops"]
    print(
        f"{report['parameters'] / 1e9:.3g} billion parameters; contexts of {min(contexts)} - "
        f"{max(contexts)} tokens, rows of {min(rows)} - {max(rows)} behind them in "
        f"{sizes['accumulate']} micro-batches; peak "
        + ("unknown" if peak is None else f"{peak / 1e12:.0f} TFLOP/s")
    )
    parts = {name: report[name] for name in PARTS}
    for name, part in parts.items():
        if "error" in part:
            print(f"{name} failed: {part['error']}")
    print_attention(parts["attention"])
    print(f"{'':<36}{'rollout':>16}{'update':>16}")
    for title, field, scale, form in LINES:
        cells = [parts[name].get(field) for name in ("rollout", "training")]
        shown = ["-" if cell is None else format(cell * scale, form) for cell in cells]
        print(f"{title:<36}{shown[0]:>16}{shown[1]:>16}")


def print_attention(part: Mapping[str, Any]) -> None:
    for name in ("context", "rows"):
        for form, found in part.get(name, {}).get("forms", {}).items():
            cell = found["milliseconds"]
            print(
                f"attention of a layer, {name}, {form}: {cell['median']:.3f} ms "
                f"({cell['least']:.3f} - {cell['most']:.3f}), off by {found['off']:.2g}"
            )


def print_operations(operations: Sequence[Mapping[str, Any]]) -> None:
    if not operations:
        print("the profiler recorded no operations of the device")
        return
    print(f"{'longest operations of an update':<60}{'calls':>8}{'ms':>10}{'share':>8}")
    for row in operations:
        print(
            f"{row['name'][:58]:<60}{row['calls']:>8}{row['milliseconds']:>10.2f}"
            f"{100 * row['share']:>7.1f}%  {row['source'][-80:]}"
        )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    parser.add_argument("--size", choices=tuple(SIZES), default="3b")
    for name, text in HELP.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=text)
    parser.add_argument("--layers", type=int, help="of the decoder, if not the size's own")
    parser.add_argument("--operations", type=int, default=10, help="to list; 0: no profile (10)")
    parser.add_argument("--profile", type=Path, help="keep the profile in this folder")
    args = parser.parse_args(argv)
    for name, value in SIZES[args.size].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.prompts % args.accumulate:
        parser.error(f"--accumulate {args.accumulate} does not divide --prompts {args.prompts}")
    return args


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(args, Path(folder))
    if any("error" in report[name] for name in PARTS):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
