"""Frames of a video, resized for the policy: this library's reader against those in use.

    pip install opencv-python-headless decord torch
    python benchmarks/decode_video.py [--frames 90] [--every 1] [--rounds 3] [--json FILE]

A made H.264 file (1280x720, 25 frames a second, a key frame every 10 s, a moving square over coarse
noise that changes); `--frames` pictures of it, `--every` seconds apart, as uint8 RGB at the size
that 128 tokens give.

* `ours`: one pass forward that keeps what is shown at the wanted times, each resized at once by
  Pillow.
* `ours_cached`: `load_example` from `data.cache_dir`, cut into patches too; the cache is full and
  its files are in the system's own file cache, as the video is.
* `transformers`: `transformers.video_utils.read_video_pyav` (what `load_video` does with
  `backend="pyav"`), then the same resizing as ours.
* `opencv`: `VideoCapture` in one pass, colours converted and resized (`INTER_AREA`) where wanted.
* `decord`: `VideoReader.get_batch`, then `torch.nn.functional.interpolate` on the whole clip,
  bicubic with antialiasing: the steps of `qwen-vl-utils`, which resizes by torchvision.

Those that are not installed are left out and named. Every decoder uses as many threads as it takes
by itself. Before anything is timed each variant must have found the right pictures: nearer to ours,
in the mean difference of all pixels, than to ours of one frame earlier or later. Filters differ, so
pictures do too; the differences are printed.

In each round every variant reads the clip once, every other round in reverse order. Printed are
seconds (median, least and most) and how many times as long each takes as `ours` within the same
round.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import av
import numpy as np
from workload import alternate, compare, flag_parser, measure_and_report, print_times, where

from turnwise_jax.data.example import load_example
from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.images import FrameSpec, resize, smart_resize
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.data.video import iter_frames

SPEC = FrameSpec(max_pixels=128 * 28 * 28)
RATE, KEY_FRAMES = 25, 250  # frames a second, frames from one key frame to the next
TITLES = {
    "ours": "ours",
    "ours_cached": "ours, from data.cache_dir",
    "transformers": "transformers, PyAV",
    "opencv": "OpenCV",
    "decord": "decord + torch, as qwen-vl-utils",
}
NEEDS = {"opencv": ("cv2",), "decord": ("decord", "torch")}
Read = Callable[[], np.ndarray]


def make_video(path: Path, frames: int, *, size: tuple[int, int] = (1280, 720)) -> Path:
    """A video of (width, height) with a square that moves over coarse noise that changes."""
    rng = np.random.default_rng(0)
    width, height = size
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=RATE, options={"g": str(KEY_FRAMES)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.thread_type = "FRAME"  # PyAV's default cuts pictures into slices, few files have any
        for number in range(frames):
            if number % RATE == 0:
                coarse = rng.integers(40, 216, (height // 16, width // 16, 3), np.uint8)
                ground = coarse.repeat(16, 0).repeat(16, 1)
            picture = ground.copy()
            left = 7 * number % (width - 64)
            picture[32:96, left : left + 64] = 255
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    return path


class Clip:
    """A made video and the frames that are wanted of it."""

    def __init__(self, folder: Path, frames: int, every: float, size: tuple[int, int]):
        step = round(RATE * every)
        self.numbers = [step * k for k in range(frames)]
        self.path = str(make_video(folder / "video.mp4", self.numbers[-1] + 2, size=size))
        self.height, self.width = smart_resize(size[1], size[0], SPEC)
        shown = tuple(Frame(self.path, number / RATE) for number in self.numbers)
        self.dialogue = Dialogue("d", (Turn(shown, "What happens?", frames * every),))
        self.cache = FrameCache(folder / "media", 10**9)

    def ours(self, shift: int = 0) -> np.ndarray:
        """uint8 ``[F, h, w, 3]``, ``shift`` frames later."""
        times = [max(0, number + shift) / RATE for number in self.numbers]
        return np.stack([resize(frame, SPEC) for _, frame in iter_frames(self.path, times)])

    def ours_cached(self) -> np.ndarray:
        """uint8 ``[F, patches, values]``."""
        return np.concatenate(load_example(self.dialogue, SPEC, None, self.cache).patches)

    def transformers(self) -> np.ndarray:
        from transformers.video_utils import read_video_pyav

        video, _ = read_video_pyav(self.path, lambda **_: np.array(self.numbers))
        return np.stack([resize(frame, SPEC) for frame in video])

    def opencv(self) -> np.ndarray:
        import cv2

        capture, found, wanted = cv2.VideoCapture(self.path), [], set(self.numbers)
        for number in range(self.numbers[-1] + 1):
            capture.grab()
            if number in wanted:
                picture = cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
                size = (self.width, self.height)
                found.append(cv2.resize(picture, size, interpolation=cv2.INTER_AREA))
        capture.release()
        return np.stack(found)

    def decord(self) -> np.ndarray:
        import decord
        import torch

        video = torch.tensor(decord.VideoReader(self.path).get_batch(self.numbers).asnumpy())
        resized = torch.nn.functional.interpolate(
            video.permute(0, 3, 1, 2).float(),
            (self.height, self.width),
            mode="bicubic",
            antialias=True,
        )
        return resized.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()

    def variants(self) -> dict[str, Read]:
        """Those whose packages are there."""
        return {name: getattr(self, name) for name in TITLES if not missing(name)}


def missing(name: str) -> list[str]:
    """Packages that a variant lacks."""
    return [package for package in NEEDS.get(name, ()) if not importlib.util.find_spec(package)]


def check(clip: Clip, variants: Mapping[str, Read]) -> dict[str, float]:
    """Mean difference of each variant's pictures to ours, of 255; exits where frames are others."""
    ours = {shift: clip.ours(shift).astype(np.float32) for shift in (0, -1, 1)}
    differences = {}
    for name, read in variants.items():
        if name == "ours_cached":
            direct = np.concatenate(load_example(clip.dialogue, SPEC).patches)
            if not (np.array_equal(read(), direct) and np.array_equal(read(), direct)):
                raise SystemExit("the cache gives other patches than decoding: nothing was timed")
            continue
        found = read().astype(np.float32)
        near = {shift: np.abs(found - own).mean(axis=(1, 2, 3)) for shift, own in ours.items()}
        # The first frame has none before it.
        wrong = (near[0] >= near[1]) | (near[0] >= np.append(np.inf, near[-1][1:]))
        if wrong.any():
            number = clip.numbers[int(wrong.argmax())]
            raise SystemExit(f"{name} took another frame for {number}: nothing was timed")
        differences[name] = float(near[0].mean())
    return differences


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare, time, and return what :func:`print_report` prints."""
    clip = Clip(folder, args.frames, args.every, tuple(args.size))
    variants = clip.variants()
    differences = check(clip, variants)
    stored = sum(file.stat().st_size for file in clip.cache.directory.glob("*/*"))
    return where() | {
        "frames": args.frames,
        "every": args.every,
        "size": [*args.size],
        "resized": [clip.width, clip.height],
        "missing": {name: missing(name) for name in NEEDS if missing(name)},
        "differences": differences,
        "bytes_stored": stored,
        "bytes_of_float_patches": 4 * clip.ours_cached().nbytes,
        "times": compare(alternate(variants, args.rounds), "ours"),
    }


def print_report(report: Mapping[str, Any]) -> None:
    (width, height), (narrow, low) = report["size"], report["resized"]
    print(
        f"{report['frames']} frames {report['every']:g} s apart, {width}x{height} to "
        f"{narrow}x{low}; {report['device']}, {report['cores']} cores"
    )
    print_times(report["times"], TITLES, "ours")
    for name, difference in report["differences"].items():
        print(f"{TITLES[name]}: {difference:.2f} of 255 from ours in the mean")
    for name, packages in report["missing"].items():
        print(f"{TITLES[name]}: left out, not installed: {', '.join(packages)}")
    print(
        f"{report['bytes_stored'] / 1e6:.1f} MB in the cache; as float32 patches "
        f"{report['bytes_of_float_patches'] / 1e6:.1f} MB"
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = flag_parser(__doc__)
    parser.add_argument("--frames", type=int, default=90, help="pictures that are wanted (90)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between them (1)")
    parser.add_argument(
        "--size", type=int, nargs=2, default=[1280, 720], help="width and height of the video"
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (3)")
    return parser.parse_args(argv)


def main() -> None:
    measure_and_report(arguments(), measure, print_report)


if __name__ == "__main__":
    main()
