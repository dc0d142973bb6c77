"""Prefix scores against re-scoring every prefix in NumPy, and against a plain copy.

    python benchmarks/kernels.py [--groups 4096] [--repeats 15] [--json FILE]

These are timed on the same arrays, one after the other in each round and every other round in
reverse, so that a slow moment of the machine meets them all:

* `prefix_scores`: the kernel, jitted and vmapped over groups and rollouts.
* `in chunks`: the same, `--chunk` groups at a time by `jax.lax.map(.., batch_size=..)`, so that a
  chunk stays in a CPU's cache while its turns pass.
* `rescoring`: NumPy, float32. Each silence-completed prefix is scored from nothing: a loop over the
  K + 1 prefixes and, inside it, over the K turns. Every line works on all groups and rollouts at
  once, so what is compared is the algorithm and not Python's loop over trajectories. It is timed on
  `--numpy-groups` groups (all of them by default, fewer are scaled up and marked) and in fewer
  rounds, as it takes seconds.
* `copy`: one jitted copy of every input and of the output. `np.copyto` into memory that is already
  mapped is timed beside it, as the bandwidth of the machine without allocation.

The share of memory bandwidth is (bytes of inputs + bytes of output) per second of the kernel over
what `copy` moves per second; a copy reads and writes, so it moves each byte twice. Ratios are taken
within rounds; printed are their median, least and most. Before anything is timed the two results
are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from workload import flag_parser, in_turn, summary, timed, where, write_json

from turnwise_jax.kernels import RewardWeights, ScoredTurns, Windows, prefix_scores

OMEGA, START_SCORE, TOP_SCORE = 0.5, 0.5, 4.0


def make_inputs(
    groups: int, rollouts: int, turns: int, windows: int, seed: int = 0
) -> tuple[ScoredTurns, Windows]:
    """Random dialogues with ragged lengths, silence and missing judgements, as NumPy arrays."""
    rng = np.random.default_rng(seed)
    shape = (groups, rollouts, turns)
    plan = np.sort(rng.uniform(0, 240, (groups, 1, turns)), axis=-1)
    length = rng.integers(turns // 2, turns + 1, (groups, 1, 1))
    quality = rng.integers(0, 5, (*shape, windows)).astype(np.float32)
    quality[rng.random(quality.shape) < 0.1] = np.nan
    repetitive = (rng.random(shape) < 0.3).astype(np.float32)
    repetitive[rng.random(shape) < 0.1] = np.nan
    start = rng.uniform(0, 220, (groups, windows))
    return (
        ScoredTurns(
            time=np.broadcast_to(plan, shape).astype(np.float32),
            replied=rng.random(shape) < 0.5,
            quality=quality,
            repetitive=repetitive,
            shares_prefix=rng.random(shape) < 0.1,
            mask=np.broadcast_to(np.arange(turns) < length, shape).copy(),
        ),
        Windows(
            start=start.astype(np.float32),
            end=(start + rng.uniform(1, 40, start.shape)).astype(np.float32),
            mask=rng.random(start.shape) < 0.9,
        ),
    )


def rescore(turns: ScoredTurns, windows: Windows) -> np.ndarray:
    """All prefix scores [B, G, K+1], each prefix scored from nothing, vectorised over [B, G]."""
    num_turns = turns.time.shape[-1]
    order = np.arange(num_turns)
    scores = [
        score(turns._replace(replied=turns.replied & (order < t)), windows)
        for t in range(num_turns + 1)
    ]
    return np.stack(scores, axis=-1)


def score(turns: ScoredTurns, windows: Windows) -> np.ndarray:
    """Eq. 1 for a batch of trajectories [B, G]."""
    start, end = windows.start[:, None, :], windows.end[:, None, :]
    last = np.where(turns.mask, turns.time, -np.inf).max(-1, keepdims=True)
    counted = windows.mask[:, None, :] & (start <= last)
    replied = turns.replied & turns.mask
    length = np.where(end > start, end - start, np.float32(1))
    height = np.full(counted.shape, START_SCORE, np.float32)
    area = np.full(counted.shape, START_SCORE, np.float32)
    outside = np.zeros(replied.shape, bool)
    for k in range(turns.time.shape[-1]):
        moment = turns.time[..., k, None]
        inside = counted & (start <= moment) & (moment <= end)
        outside[..., k] = turns.mask[..., k] & ~inside.any(-1)
        new = turns.quality[..., k, :]
        scored = inside & replied[..., k, None] & np.isfinite(new)
        left = 1 - (1 - OMEGA) * (moment - start) / length
        area += np.where(scored, (new - height) * left, 0)
        height = np.where(scored, new, height)
    quality = share(np.where(counted, area, 0).sum(-1) / TOP_SCORE, counted.sum(-1))
    judged = replied & np.isfinite(turns.repetitive)
    repetition = share(np.where(judged, turns.repetitive, 0).sum(-1), judged.sum(-1))
    out_of_window = share((outside & replied).sum(-1), outside.sum(-1))
    shared_prefix = share((turns.shares_prefix & replied).sum(-1), turns.mask.sum(-1))
    weights = RewardWeights()
    return (
        weights.quality * quality
        - weights.repetition * repetition
        - weights.out_of_window * out_of_window
        - weights.shared_prefix * shared_prefix
    )


def share(hits: np.ndarray, among: np.ndarray) -> np.ndarray:
    return np.where(among > 0, hits / np.maximum(among, 1), 0).astype(np.float32)


def milliseconds(times: Sequence[float], scale: float = 1.0) -> dict[str, float | int]:
    """Median, least, most and number of rounds."""
    return {**summary([1e3 * scale * seconds for seconds in times]), "rounds": len(times)}


def ratio(above: Sequence[float], below: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Of the rounds that have both: median, least and most."""
    return summary([scale * a / b for a, b in zip(above, below, strict=False)])


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds and return what `print_report` prints."""
    inputs = make_inputs(args.groups, args.rollouts, args.turns, args.windows)
    part = jax.tree.map(lambda array: array[: args.numpy_groups], inputs)
    on_device = jax.tree.map(jnp.asarray, inputs)
    group = jax.vmap(prefix_scores, (0, None))
    kernel = jax.jit(jax.vmap(group))
    chunked = jax.jit(partial(jax.lax.map, lambda each: group(*each), batch_size=args.chunk))
    output = jax.block_until_ready(kernel(*on_device))
    rescored = rescore(*part)
    difference = max(
        float(np.max(np.abs(np.asarray(scores)[: args.numpy_groups] - rescored)))
        for scores in (output, chunked(on_device))
    )
    if not difference <= 1e-4:
        raise SystemExit(f"prefix_scores and re-scoring differ by {difference}: nothing was timed")

    everything = [*jax.tree.leaves(on_device), output]
    copy = jax.jit(lambda *arrays: [jnp.copy(array) for array in arrays])
    jax.block_until_ready(copy(*everything))
    host = [np.array(array) for array in everything]
    mapped = [np.zeros_like(array) for array in host]

    def copy_mapped() -> None:
        for source, target in zip(host, mapped, strict=True):
            np.copyto(target, source)

    runs = {
        "kernel": lambda: kernel(*on_device),
        "chunked": lambda: chunked(on_device),
        "copy": lambda: copy(*everything),
        "copyto": copy_mapped,
        "numpy": lambda: rescore(*part),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number, name in in_turn(runs, args.repeats):
        if name != "numpy" or number < args.numpy_repeats:
            times[name].append(timed(runs[name]))

    scale = args.groups / args.numpy_groups
    moved = sum(array.nbytes for array in everything)
    results = {
        "prefix_scores": milliseconds(times["kernel"]),
        "in chunks": milliseconds(times["chunked"]),
        "rescoring": milliseconds(times["numpy"], scale),
        "copy": milliseconds(times["copy"]),
        "copyto": milliseconds(times["copyto"]),
    }
    median = {name: row["median"] for name, row in results.items()}
    return {
        **where(),
        "sizes": {"groups": args.groups, "G": args.rollouts, "K": args.turns, "W": args.windows},
        "numpy": np.__version__,
        "megabytes": moved / 1e6,
        "numpy_scaled_by": scale,
        "largest_difference": difference,
        "milliseconds": results,
        "faster_than_rescoring": ratio(times["numpy"], times["kernel"], scale),
        "times_a_copy": ratio(times["kernel"], times["copy"]),
        "chunks_times_a_copy": ratio(times["chunked"], times["copy"]),
        "bandwidth_share": median["copy"] / (2 * median["prefix_scores"]),
        "gigabytes_per_second": {
            "prefix_scores": moved / median["prefix_scores"] / 1e6,
            "copy": 2 * moved / median["copy"] / 1e6,
            "copyto": 2 * moved / median["copyto"] / 1e6,
        },
    }


def print_report(report: dict[str, Any]) -> None:
    sizes = report["sizes"]
    print(
        f"[{sizes['groups']} groups, G={sizes['G']}, K={sizes['K']}, W={sizes['W']}], "
        f"{report['megabytes']:.1f} MB of inputs and output, {report['device']}, "
        f"{report['cores']} cores, jax {report['jax']}, numpy {report['numpy']}"
    )
    print(f"{'':<15}{'median ms':>12}{'least - most ms':>24}{'rounds':>8}")
    for name, row in report["milliseconds"].items():
        span = f"{row['least']:.1f} - {row['most']:.1f}"
        marked = "*" if name == "rescoring" and report["numpy_scaled_by"] != 1 else ""
        print(f"{name + marked:<15}{row['median']:>12.1f}{span:>24}{row['rounds']:>8}")
    if report["numpy_scaled_by"] != 1:
        print(f"* timed on fewer groups and multiplied by {report['numpy_scaled_by']:g}")
    rate = report["gigabytes_per_second"]
    faster, longer, chunks = (
        f"{report[name]['median']:.1f} ({report[name]['least']:.1f} - {report[name]['most']:.1f})"
        for name in ("faster_than_rescoring", "times_a_copy", "chunks_times_a_copy")
    )
    print(f"prefix_scores is {faster} times as fast as re-scoring")
    print(
        f"prefix_scores takes {longer} times as long as the copy and reaches "
        f"{report['bandwidth_share']:.0%} of its bandwidth ({rate['prefix_scores']:.1f} of "
        f"{rate['copy']:.1f} GB/s; np.copyto {rate['copyto']:.1f} GB/s)"
    )
    print(f"in chunks it takes {chunks} times as long as the copy")
    print(f"largest difference between the results: {report['largest_difference']:.1e}")


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--groups", type=int, default=4096)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--turns", type=int, default=64)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=64, help="groups at a time, in chunks")
    parser.add_argument("--repeats", type=int, default=15, help="rounds")
    parser.add_argument("--numpy-repeats", type=int, default=3, help="rounds that re-score")
    parser.add_argument("--numpy-groups", type=int, help="groups that are re-scored (default: all)")
    args = parser.parse_args()
    args.numpy_groups = min(args.numpy_groups or args.groups, args.groups)
    args.numpy_repeats = max(1, min(args.numpy_repeats, args.repeats))
    report = measure(args)
    print_report(report)
    write_json(report, args.json)


if __name__ == "__main__":
    main()
