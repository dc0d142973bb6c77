"""Seconds from the start of the demo's process to the end of a run's first update.

    python benchmarks/startup.py [--rounds 3] [--runs sft,grpo] [--json FILE]

The process is that of `make demo` once its environment is there, in an empty folder: it loads the
library, makes the world's videos and an untrained policy, reads the data, compiles the programs of
the first run, SFT, and makes its first update. RL begins in a folder where SFT, shortened to two
steps, is done: what `make demo` has left when it is stopped and started again at that point. The
one flag more, a checkpoint after every step, makes a run write an update's line when it has ended
instead of after the next; `timing.jsonl` says at which time that was. Then the process is killed.

In every round each run starts twice, both times in a new process and folder: `cold`, with an empty
folder as its compilation cache, then `warm`, with what `cold` left there. Files of the system and
of Python (bytecode) are in the state in which earlier processes leave them; the first of a machine
reads them from disk.

Printed are medians with the least and the most, and the medians of the parts, told apart by the
times of the files that a study leaves: until it makes or finds its world (Python, imports, flags),
the world, until the run's folder is claimed (the untrained policy), until everything is compiled
(loading the policy and the data, compiling), and the first step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workload import flag_parser, measure_and_report, summary, where

from turnwise_jax.train.metrics import COMPILES, TIMING, read_jsonl

ROOT = Path(__file__).resolve().parents[1]
DEMO = (sys.executable, "-m", "turnwise_jax.cli.main", "study", "--config=configs/worlds/demo.py")
SHORT = "--config.runs.sft.run.steps=2"  # before a run that is not the first
CACHES = ("cold", "warm")
PARTS = ("start", "world", "policy", "compile", "step")
PATIENCE = 900.0  # seconds until a process is given up


def first_update(
    command: Sequence[str], study: Path, run: str, cache: Path, *, patience: float = PATIENCE
) -> dict[str, float]:
    """Start a study and end it after the first update of one of its runs.

    Args:
      command: to which ``--config.dir`` and the flags of the run are added.
      study: its folder. Runs before ``run`` that are finished there are not made again.
      cache: folder of the compilation cache.

    Returns:
      Seconds: ``total`` and of each of ``PARTS``.

    Raises:
      SystemExit: the process ended or was too slow; with its last lines.
    """
    flags = [f"--config.dir={study}", f"--config.runs.{run}.run.checkpoint_every=1"]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    shutil.rmtree(study / run, ignore_errors=True)
    with tempfile.TemporaryFile("w+") as said:
        began = time.time()
        child = subprocess.Popen(
            [*command, *flags], cwd=ROOT, env=environment, stdout=said, stderr=said
        )
        try:
            while not (lines := read_jsonl(study / run / TIMING)):
                if child.poll() is not None or time.time() - began > patience:
                    said.seek(0)
                    raise SystemExit(f"{run} made no update: {said.read()[-2000:].strip()}")
                time.sleep(0.02)
        finally:
            child.kill()
            child.wait()
    marks = (
        began,
        (study / ".world.lock").stat().st_mtime,
        (study / "world" / "manifest.json").stat().st_mtime,
        (study / run / "config.json").stat().st_mtime,
        (study / run / COMPILES).stat().st_mtime,
        float(lines[0]["time"]),
    )
    return {"total": marks[-1] - began, **parts(marks)}


def parts(marks: Sequence[float]) -> dict[str, float]:
    """Seconds of ``PARTS`` from the times at which they began and the last ended.

    A file that was there before has an earlier time: its part then took nothing.
    """
    later = list(marks)
    for index in range(1, len(later)):
        later[index] = max(later[index], later[index - 1])
    return {name: later[i + 1] - later[i] for i, name in enumerate(PARTS)}


def measure(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """What :func:`print_report` prints."""
    found = measure_runs(args.runs, args.rounds, root)
    return {**where(), "rounds": args.rounds, "first_update": found}


def measure_runs(
    runs: Sequence[str], rounds: int, root: Path, command: Sequence[str] = DEMO
) -> dict[str, Any]:
    """``{run: {cache: {part: summary of seconds}}}`` of new processes, ``rounds`` of each."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    prepared = root / "prepared"
    if any(run != "sft" for run in runs):
        run = next(run for run in runs if run != "sft")
        first_update([*command, SHORT], prepared, run, root / "prepared-cache")
    for number in range(rounds):
        for run in runs:
            for cache in CACHES:
                study = root / f"{run}-{number}-{cache}" if run == "sft" else prepared
                flags = () if run == "sft" else (SHORT,)
                seconds = first_update(
                    [*command, *flags], study, run, root / f"{run}-{number}-cache"
                )
                found.setdefault(run, {}).setdefault(cache, []).append(seconds)
    return {
        run: {
            cache: {part: summary([s[part] for s in own]) for part in ("total", *PARTS)}
            for cache, own in caches.items()
        }
        for run, caches in found.items()
    }


def print_report(report: Mapping[str, Any]) -> None:
    print(
        f"{report['rounds']} processes each; {report['device']}, {report['cores']} cores, "
        f"jax {report['jax']}"
    )
    heads = "".join(f"{part:>10}" for part in PARTS)
    print(f"{'first update of':<18}{'cache':<8}{'seconds':>24}{heads}")
    for run, caches in report["first_update"].items():
        for cache, own in caches.items():
            total = own["total"]
            cell = f"{total['median']:.1f} ({total['least']:.1f} - {total['most']:.1f})"
            medians = "".join(f"{own[part]['median']:>10.1f}" for part in PARTS)
            print(f"{run:<18}{cache:<8}{cell:>24}{medians}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (3)")
    parser.add_argument(
        "--runs",
        type=lambda text: text.split(","),
        default="sft,grpo",
        help="names of the demo's runs (sft,grpo)",
    )
    return parser.parse_args(argv)


def main() -> None:
    measure_and_report(arguments(), measure, print_report)


if __name__ == "__main__":
    main()
