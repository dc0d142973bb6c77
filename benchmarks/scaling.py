"""Seconds of an update against the length of its context and the number of its branches.

    python benchmarks/scaling.py [--rounds 3] [--json FILE] [--picture FILE.png]
    python benchmarks/scaling.py --long

The update is `train_step.py`'s `shared` variant, the context once per prompt, of one prompt and a
very narrow decoder. Attention, the part that grows with the square of the length, is most of the
work in it, the more the narrower the decoder: at 17,000 tokens and a width of 64 the pairs that a
CPU computes, five eighths of all, are 22 times what the other matrices of a layer do. A published
model is 30 to 60 times as wide.

* Contexts of `--frames` frames (90 are about 17,000 tokens), `--group` branches. Printed for each:
  median seconds with the least and the most, the compiler's account of memory, and the exponent
  since the length before, `log(seconds ratio) / log(tokens ratio)`: 1 is linear, 2 is quadratic.
  The exponent over all lengths is the slope of a line through the logarithms.
* One context of `--branch-frames` frames, `--groups` branches. Printed are the line through the
  medians and the most that a median is off it, as a share of the line.

Every round times all sizes, every other round in reverse order. `--picture` draws both.

`--long` makes two updates on a context of as many frames as `--frames` ends with instead, and
prints what they took and the most memory that was resident (Linux only), over everything and in the
second alone.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import rss
from train_step import Work
from train_step import arguments as train_arguments
from workload import alternate, flag_parser, machine, measure_and_report, summary

WIDTHS = ("hidden", "layers", "vocabulary", "vision-hidden", "vision-layers", "pixels")
DIALOGUE = ("turns", "turn-frames", "reply-tokens", "rounds")


def make_work(folder: Path, args: argparse.Namespace, frames: int, group: int) -> Work:
    """One prompt with a context of ``frames`` frames and ``group`` rollouts."""
    given = {name: getattr(args, name.replace("-", "_")) for name in (*WIDTHS, *DIALOGUE)}
    given |= {"prompts": 1, "group": group, "context-frames": frames}
    flags = [f"--{name}={value}" for name, value in given.items()]
    return Work(folder, train_arguments([*flags, "--no-torch", "--no-memory"]))


def context_tokens(work: Work) -> int:
    return int(work.rollouts.prompts.context.length[0])


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time both series; return what :func:`print_report` prints and :func:`draw` draws."""
    sizes = [(frames, args.group) for frames in args.frames]
    groups = [(args.branch_frames, group) for group in args.groups]
    tokens, steps = {}, {}
    for size in dict.fromkeys(sizes + groups):
        work = make_work(folder, args, *size)
        tokens[size], steps[size] = context_tokens(work), work.make("shared")
        steps[size]()
    seconds = alternate(steps, args.rounds)

    def row(size: tuple[int, int]) -> dict[str, Any]:
        return {
            "frames": size[0],
            "tokens": tokens[size],
            "branches": size[1],
            "seconds": summary(seconds[size]),
            "compiled_mb": steps[size].memory(),
        }

    context, branches = [row(size) for size in sizes], [row(size) for size in groups]
    return machine(args) | {
        "context": with_exponents(context),
        "exponent": slope([row["tokens"] for row in context], medians(context)),
        "branches": branches,
        "line": line([row["branches"] for row in branches], medians(branches)),
    }


def medians(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["seconds"]["median"] for row in rows]


def slope(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """Exponent of the power of ``lengths`` that ``seconds`` follow best."""
    return float(np.polyfit(np.log(lengths), np.log(seconds), 1)[0])


def with_exponents(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each but the first with the exponent between it and the one before."""
    later = [
        {**row, "exponent": slope([before["tokens"], row["tokens"]], medians([before, row]))}
        for before, row in pairwise(rows)
    ]
    return [dict(rows[0]), *later]


def line(numbers: Sequence[int], seconds: Sequence[float]) -> dict[str, float]:
    """Least squares of ``fixed + each * number``; ``off``: the largest deviation, as a share."""
    each, fixed = np.polyfit(numbers, seconds, 1)
    fitted = fixed + each * np.asarray(numbers)
    off = np.abs(np.asarray(seconds) / fitted - 1).max()
    return {"fixed": float(fixed), "each": float(each), "off": float(off)}


def measure_long(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Two updates on the longest context: numbers of both, seconds, memory.

    Raises:
      SystemExit: an update was not finite, or the first changed nothing.
    """
    found: dict[str, Any] = {"updates": [], "seconds": []}

    def make() -> Any:
        work = make_work(folder, args, args.frames[-1], args.group)
        found.update(frames=args.frames[-1], context_tokens=context_tokens(work))
        step = work.make("shared")
        found["compiled_mb"] = step.memory()

        def update() -> None:
            began = time.perf_counter()
            metrics = step()
            found["seconds"].append(time.perf_counter() - began)
            found["updates"].append(
                {name: float(metrics[name]) for name in ("loss", "logp", "grad_norm")}
            )

        return update

    found["memory_mb"] = rss.memory(make, 1)
    first, second = found["updates"]
    if not all(map(math.isfinite, (*first.values(), *second.values()))) or first == second:
        raise SystemExit(f"no real update: {json.dumps(found['updates'])}")
    return machine(args) | found


def print_sizes(report: Mapping[str, Any]) -> None:
    sizes = report["sizes"]
    print(
        f"decoder {sizes['layers']} x {sizes['hidden']}, {sizes['turns']} turns of "
        f"{sizes['turn_frames']} frames; {report['device']}, {report['cores']} cores, "
        f"jax {report['jax']}"
    )


def print_report(report: Mapping[str, Any]) -> None:
    def shown(row: Mapping[str, Any]) -> str:
        own = row["seconds"]
        seconds = f"{own['median']:.3f} ({own['least']:.3f} - {own['most']:.3f})"
        return f"{seconds:>26}{row['compiled_mb']:>14.0f}"

    print_sizes(report)
    print(
        f"{'frames':>8}{'tokens':>10}{'branches':>10}{'seconds':>26}{'compiled, MB':>14}  exponent"
    )
    for row in (*report["context"], *report["branches"]):
        exponent = f"{row['exponent']:>10.2f}" if "exponent" in row else ""
        print(f"{row['frames']:>8}{row['tokens']:>10}{row['branches']:>10}{shown(row)}{exponent}")
    fitted = report["line"]
    print(
        f"exponent over all contexts {report['exponent']:.2f}; branches: {fitted['fixed']:.3f} s + "
        f"{fitted['each']:.3f} s each, at most {100 * fitted['off']:.0f} % off"
    )


def print_long(report: Mapping[str, Any]) -> None:
    print_sizes(report)
    memory = report["memory_mb"]
    print(
        f"{report['frames']} frames, {report['context_tokens']} tokens of context, "
        f"{report['sizes']['group']} branches"
    )
    for number, (update, seconds) in enumerate(
        zip(report["updates"], report["seconds"], strict=True), 1
    ):
        values = ", ".join(f"{name} {value:.6g}" for name, value in update.items())
        print(f"update {number}: {seconds:.1f} s, {values}")
    again = memory.get("peak_after_first")
    second = "" if again is None else f", in the second update {again:.0f} MB"
    print(
        f"resident: {memory['imported']:.0f} MB after imports, at most {memory['peak']:.0f} MB"
        f"{second}; compiled {report['compiled_mb']:.0f} MB"
    )


def draw(report: Mapping[str, Any], file: Path) -> None:
    """Seconds against tokens, both logarithmic, and against branches with the fitted line."""
    from turnwise_jax.study.style import FAINT, MUTED, PALETTE, SMALL, clean, new_figure, save

    figure = new_figure(7.2, 2.8)
    left, right = figure.subplots(1, 2)
    for axes, rows, unit in (
        (left, report["context"], "tokens"),
        (right, report["branches"], "branches"),
    ):
        clean(axes, f"seconds of an update by {unit}")
        own = [row["seconds"] for row in rows]
        middle = medians(rows)
        reach = [[m - s["least"] for m, s in zip(middle, own, strict=True)],
                 [s["most"] - m for m, s in zip(middle, own, strict=True)]]  # fmt: skip
        numbers = np.array([row[unit] for row in rows])
        axes.errorbar(numbers, middle, yerr=reach, color=PALETTE[0], marker="o", markersize=4)
        axes.set_xlabel(unit, fontsize=SMALL, color=MUTED)
    tokens = np.array([row["tokens"] for row in report["context"]])
    left.set(xscale="log", yscale="log")
    left.set_xticks(tokens, [f"{count:,}" for count in tokens])
    seconds = [
        s for s in (0.1, 0.3, 1, 3, 10, 30, 100, 300) if s >= min(medians(report["context"]))
    ]
    left.set_yticks(seconds, [f"{value:g}" for value in seconds])
    left.minorticks_off()
    begin = report["context"][0]["seconds"]["median"]
    for power, style, label in ((1, "--", "linear"), (2, ":", "quadratic")):
        reference = begin * (tokens / tokens[0]) ** power
        left.plot(tokens, reference, color=MUTED, linewidth=0.9, linestyle=style, label=label)
    fitted = report["line"]
    numbers = np.array([0, report["branches"][-1]["branches"]])
    right.plot(
        numbers,
        fitted["fixed"] + fitted["each"] * numbers,
        color=MUTED,
        linewidth=0.9,
        linestyle="--",
        label=f"{fitted['fixed']:.2f} s + {fitted['each']:.2f} s each",
    )
    right.set_ylim(bottom=0)
    right.axhline(0.0, color=FAINT, linewidth=0.8)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED, loc="upper left")
    left.set_ylim(top=3 * max(medians(report["context"])))
    save(figure, file)


def numbers(text: str) -> list[int]:
    """``"1,2,4"`` as ascending whole numbers, at least two."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) < 2 or found != sorted(set(found)) or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ascending numbers like 1,2,4")
    return found


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    for name, value, text in (
        ("hidden", 64, "width of the decoder, a multiple of 32"),
        ("layers", 2, "of the decoder"),
        ("vocabulary", 2000, "rows of the output head"),
        ("vision-hidden", 32, "width of the vision tower, a multiple of 32"),
        ("vision-layers", 2, "of the vision tower"),
        ("pixels", 364, "side of a square frame; 28 x 28 pixels are a token"),
        ("group", 4, "branches of the contexts"),
        ("branch-frames", 12, "frames of the context that the branches share"),
        ("turns", 4, "decisions of each branch"),
        ("turn-frames", 1, "frames of each turn"),
        ("reply-tokens", 32, "most tokens of a reply"),
        ("rounds", 3, "timed rounds"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} ({value})")
    for name, value in (("frames", "6,12,24,48,90"), ("groups", "1,2,4,8,16")):
        parser.add_argument(f"--{name}", type=numbers, default=value, help=f"sizes ({value})")
    parser.add_argument("--long", action="store_true", help="two updates on the longest context")
    parser.add_argument("--picture", type=Path, help="also draw it here, a PNG file")
    return parser.parse_args(argv)


def main() -> None:
    args = arguments()
    if args.long:
        measure_and_report(args, measure_long, print_long)
        return
    report = measure_and_report(args, measure, print_report)
    if args.picture:
        draw(report, args.picture)


if __name__ == "__main__":
    main()
