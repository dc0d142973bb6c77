"""Reading a dialogue's media from disk against decoding it, and what training waits for.

    python benchmarks/input.py [--rounds 3] [--steps 20] [--json FILE]

Reading: a made H.264 video (1280x720, 25 frames a second, moving shapes and noise), 16 frames 2 s
apart, resized to at most 128 tokens each. Every round decodes them and reads them back from
`data.cache_dir`, in turn first; the files are in the system's own file cache for both.

Training: GRPO of a tiny policy in the embedded world, where nothing is kept in memory
(`data.keep_mb=0`), so that every step has its frames to read: without threads, with two, and with
two from a cache that is full. Every round runs all three, and every other round starts with the
last. Starvation is the waited share of all steps' time, as in a run's `report.json`.

Printed are medians with the least and the most over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import jax
import numpy as np

from turnwise_jax.data.example import load_example
from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.config import rl_config
from turnwise_jax.train.run import train
from turnwise_jax.train.starvation import starvation
from turnwise_jax.worlds import streamworld
from turnwise_jax.worlds.settings import WORLDS

SPEC = FrameSpec(max_pixels=128 * 28 * 28)
FEEDS = {  # how training gets its frames
    "no threads": {"workers": 0},
    "two threads": {"workers": 2},
    "two threads, cache": {"workers": 2, "cache": True},
}


def make_video(path: Path, seconds: int, *, size: tuple[int, int] = (1280, 720)) -> Path:
    """A video of (width, height) with a square that moves over coarse noise that changes."""
    rng = np.random.default_rng(0)
    width, height = size
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(25 * seconds):
            if number % 25 == 0:
                coarse = rng.integers(40, 216, (height // 16, width // 16, 3), np.uint8)
                ground = coarse.repeat(16, 0).repeat(16, 1)
            picture = ground.copy()
            left = 7 * number % (width - 64)
            picture[32:96, left : left + 64] = 255
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    return path


def alternate(
    run: Callable[[str, int], float], names: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """``run(name, round)`` for every name in every round, forwards and backwards in turn."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else list(reversed(names)):
            found[name].append(run(name, number))
    return found


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def measure_reading(root: Path, rounds: int, *, frames: int = 16) -> dict[str, Any]:
    """Seconds to get one dialogue's frames, and what an entry takes on disk."""
    path = make_video(root / "video.mp4", 2 * frames)
    shown = tuple(Frame(str(path), 2.0 * k) for k in range(frames))
    dialogue = Dialogue("d", (Turn(shown, "What happens?", 2.0 * frames),))
    cache = FrameCache(root / "media", 10**9)
    example = load_example(dialogue, SPEC, None, cache)
    caches = {"decoded": None, "from disk": cache}

    def run(name: str, number: int) -> float:
        began = time.perf_counter()
        again = load_example(dialogue, SPEC, None, caches[name])
        seconds = time.perf_counter() - began
        for ours, first in zip(again.patches, example.patches, strict=True):
            np.testing.assert_array_equal(ours, first)
        return seconds

    found = alternate(run, list(caches), rounds)
    pairs = zip(found["decoded"], found["from disk"], strict=True)
    stored = sum(file.stat().st_size for file in cache.directory.glob("*/*"))
    return {
        "frames": frames,
        "seconds": {name: summary(values) for name, values in found.items()},
        "faster": summary([a / b for a, b in pairs]),
        "bytes_stored": stored,
        "bytes_of_float_patches": 4 * example.nbytes,
    }


def measure_training(root: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Starvation and seconds a step of short runs."""
    world = WORLDS["demo"]
    files = streamworld.generate(root / "world", world, train=24, test=1, progress=False)
    policy = make_tiny_policy(root / "policy", world)
    seconds: dict[str, list[float]] = {name: [] for name in FEEDS}

    def run(name: str, number: int, *, steps: int = steps) -> float:
        config = rl_config("grpo")
        config.policy.update(checkpoint=str(policy), dtype="float32", remat="none")
        config.run.update(dir=str(root / f"{name}-{number}"), steps=steps, export=False)
        config.run.checkpoint_every = steps
        config.shapes.row_buckets = 1
        config.rollout.max_new_tokens = 12
        feed = FEEDS[name]
        config.data.update(path=str(files.rl("train")), keep_mb=0, workers=feed["workers"])
        if feed.get("cache"):
            config.data.cache_dir = str(root / "cache")
        directory, _ = train(config)
        waited = starvation(directory)
        seconds[name].append(waited.seconds / waited.steps)
        return waited.share

    run("two threads, cache", -1)  # fills the cache and compiles
    seconds["two threads, cache"].clear()
    found = alternate(run, list(FEEDS), rounds)
    return {
        "steps": steps,
        "starvation": {name: summary(values) for name, values in found.items()},
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
    reading, training = report["reading"], report["training"]
    print(f"\n{reading['frames']:>2} {'frames':<19}{'ms':>24}")
    for name, values in reading["seconds"].items():
        print(f"{name:<22}{cell(values, 1e3, 1):>24}")
    print(
        f"from disk {cell(reading['faster'], 1, 1)} times as fast; "
        f"{reading['bytes_stored'] / 1e6:.1f} MB on disk, float patches would be "
        f"{reading['bytes_of_float_patches'] / 1e6:.1f} MB"
    )
    print(f"\n{training['steps']:>2} {'steps':<19}{'starvation, %':>24}{'s a step':>24}")
    for name, values in training["starvation"].items():
        step = cell(training["seconds_per_step"][name], 1, 2)
        print(f"{name:<22}{cell(values, 100, 1):>24}{step:>24}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="updates of each run")
    parser.add_argument("--json", type=Path, help="also write the report here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if not jax.config.jax_compilation_cache_dir:
            jax.config.update("jax_compilation_cache_dir", str(root / "compiled"))
        report = {
            "rounds": args.rounds,
            "device": jax.devices()[0].device_kind,
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "jax": jax.__version__,
            "reading": measure_reading(root, args.rounds),
            "training": measure_training(root, args.rounds, args.steps),
        }
    print_report(report)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
