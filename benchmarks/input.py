"""What training waits for while its frames are decoded.

    python benchmarks/input.py [--rounds 3] [--steps 20] [--json FILE]

GRPO of a tiny policy in the embedded world, where nothing is kept in memory (`data.keep_mb=0`), so
that every step has its frames to read: without threads, with two, and with two from a cache that is
full. Every round runs all three, and every other round starts with the last. Starvation is the
waited share of all steps' time, as in a run's `report.json`.

Printed are medians with the least and the most over the rounds. What reading a video takes, and
what the cache makes of it, is `decode_video.py`'s.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tiny_grpo import TinyGrpo
from workload import flag_parser, in_turn, keep_compiled, measure_and_report, summary, where

from turnwise_jax.train.run import train
from turnwise_jax.train.starvation import starvation

FEEDS = {  # how training gets its frames
    "no threads": {"workers": 0},
    "two threads": {"workers": 2},
    "two threads, cache": {"workers": 2, "cache": True},
}


def measure(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """What :func:`print_report` prints."""
    keep_compiled(root / "compiled")
    found = measure_training(root, args.rounds, args.steps)
    return {**where(), "rounds": args.rounds, **found}


def measure_training(root: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Starvation and seconds a step of short runs."""
    tiny = TinyGrpo.make(root)
    seconds: dict[str, list[float]] = {name: [] for name in FEEDS}

    def run(name: str, number: int) -> float:
        config, feed = tiny.config(f"{name}-{number}", steps), FEEDS[name]
        config.data.update(keep_mb=0, workers=feed["workers"])
        if feed.get("cache"):
            config.data.cache_dir = str(root / "cache")
        directory, _ = train(config)
        waited = starvation(directory)
        seconds[name].append(waited.seconds / waited.steps)
        return waited.share

    run("two threads, cache", -1)  # fills the cache and compiles
    seconds["two threads, cache"].clear()
    waits: dict[str, list[float]] = {name: [] for name in FEEDS}
    for number, name in in_turn(FEEDS, rounds):
        waits[name].append(run(name, number))
    return {
        "steps": steps,
        "starvation": {name: summary(values) for name, values in waits.items()},
        "seconds_per_step": {name: summary(values) for name, values in seconds.items()},
    }


def print_report(report: dict[str, Any]) -> None:
    def cell(values: dict[str, float], unit: float, digits: int) -> str:
        low, middle, high = (values[k] * unit for k in ("least", "median", "most"))
        return f"{middle:.{digits}f} ({low:.{digits}f} - {high:.{digits}f})"

    print(
        f"{report['rounds']} rounds, {report['device']}, {report['cores']} cores, "
        f"jax {report['jax']}"
    )
    print(f"{report['steps']:>2} {'steps':<19}{'starvation, %':>24}{'s a step':>24}")
    for name, values in report["starvation"].items():
        step = cell(report["seconds_per_step"][name], 1, 2)
        print(f"{name:<22}{cell(values, 100, 1):>24}{step:>24}")


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="updates of each run")
    measure_and_report(parser.parse_args(), measure, print_report)


if __name__ == "__main__":
    main()
