"""A script drawn as a real .mp4 file: one coloured shape on a noisy, patterned background."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import av
import numpy as np

from turnwise_jax.worlds.script import Event
from turnwise_jax.worlds.settings import COLOURS, World

TAIL = 0.5  # seconds after the last decision, so that the last frame is well inside the file


@dataclass(frozen=True, slots=True)
class Actor:
    """Something visible on [start, end): a cover mask in one colour on a path of (y, x) corners."""

    mask: np.ndarray  # float32[h, w] in 0..1
    colour: tuple[int, int, int]
    start: float
    end: float
    path: np.ndarray  # int32[n_pictures, 2]


def draw_video(
    path: str | os.PathLike[str],
    world: World,
    events: tuple[Event, ...],
    seed: np.random.SeedSequence,
) -> None:
    """Writes the video of `events` to `path`; the same arguments give the same pixels."""
    encode(path, pictures(world, events, seed), fps=world.fps, size=world.size)


def pictures(
    world: World, events: tuple[Event, ...], seed: np.random.SeedSequence
) -> Iterator[np.ndarray]:
    """The pictures in order, uint8[size, size, 3]; picture n is shown from n / fps on."""
    rng = np.random.default_rng(seed)
    count = math.ceil((world.seconds + TAIL) * world.fps)
    actors = _decoys(world, rng, count) + _objects(world, events, rng, count)
    ground = background(world.size, world.texture, rng)
    grain = rng.normal(0.0, world.noise, (2 * world.size, 2 * world.size, 1)).astype(np.int16)
    offsets = rng.integers(0, world.size, (count, 2))
    for n, (dy, dx) in enumerate(offsets):
        picture = ground.copy()
        for actor in actors:
            if actor.start <= n / world.fps < actor.end:
                paint(picture, actor, n)
        picture += grain[dy : dy + world.size, dx : dx + world.size]
        yield np.clip(picture, 0, 255, out=picture).astype(np.uint8)


def encode(
    path: str | os.PathLike[str], images: Iterator[np.ndarray], *, fps: int, size: int
) -> None:
    """Writes uint8[size, size, 3] pictures as h264 in mp4, one thread, a key picture every 2 s."""
    options = {"preset": "ultrafast", "crf": "26", "threads": "1", "g": str(2 * fps)}
    with av.open(os.fspath(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def shape_mask(shape: str, side: int) -> np.ndarray:
    """Cover of a `side` x `side` box by the shape, float32 in 0..1 with one pixel of soft edge."""
    axis = (np.arange(side, dtype=np.float32) + 0.5) / side * 2.0 - 1.0
    y, x = axis[:, None], axis[None, :]
    radius = np.sqrt(x * x + y * y)
    outside = {  # signed distance to the outline, box half-sides as unit, negative inside
        "circle": radius - 1.0,
        "square": np.maximum(np.abs(x), np.abs(y)) - 0.94,
        "triangle": np.maximum(y - 0.94, (2.0 * np.abs(x) - y - 1.0) / math.sqrt(5.0)),
        "cross": np.maximum(
            np.minimum(np.abs(x), np.abs(y)) - 0.33, np.maximum(np.abs(x), np.abs(y)) - 0.97
        ),
        "ring": np.abs(radius - 0.74) - 0.24,
    }[shape]
    return np.clip(0.5 - outside * side / 2.0, 0.0, 1.0).astype(np.float32)


def paint(picture: np.ndarray, actor: Actor, n: int) -> None:
    """Draws an actor on picture ``n``, int16[size, size, 3]."""
    top, left = actor.path[n]
    height, width = actor.mask.shape
    patch = picture[top : top + height, left : left + width]
    cover = actor.mask[:, :, None]
    patch += np.rint(cover * (np.asarray(actor.colour, np.float32) - patch)).astype(np.int16)


def _objects(world: World, events: tuple[Event, ...], rng, count: int) -> list[Actor]:
    """One actor per stretch between events; a recoloured object goes on along its path."""
    actors: list[Actor] = []
    light = rng.uniform(0.92, 1.04)
    mask = path = None
    for event, following in zip(events, [*events[1:], None], strict=True):
        if event.after is None:
            continue
        if event.kind != "colour":
            side = round(rng.uniform(*world.object_size) * world.size)
            mask = shape_mask(event.after[1], side)
            path = _path(world, rng, count, side)
        colour = tuple(min(255, round(light * c)) for c in COLOURS[event.after[0]])
        end = math.inf if following is None else following.time
        actors.append(Actor(mask, colour, event.time, end, path))
    return actors


def _decoys(world: World, rng, count: int) -> list[Actor]:
    """Grey marks of an eighth of the picture's side, each there for a random stretch."""
    actors = []
    side = max(4, world.size // 8)
    for _ in range(world.decoys):
        start = rng.uniform(0.0, world.seconds)
        end = start + rng.uniform(2.0, 6.0)
        level = int(rng.integers(100, 190))
        mask = shape_mask("square", side)
        actors.append(Actor(mask, (level,) * 3, start, end, _path(world, rng, count, side)))
    return actors


def _path(world: World, rng, count: int, side: int) -> np.ndarray:
    """A straight walk that bounces off the borders of the picture, int32[count, 2]."""
    room = world.size - side
    start = rng.uniform(0.0, max(room, 1e-6), 2)
    step = rng.uniform(-1.0, 1.0, 2) * world.speed * world.size / world.fps
    walk = start + np.arange(count)[:, None] * step
    if room <= 0:
        return np.zeros((count, 2), np.int32)
    return np.rint(room - np.abs(walk % (2.0 * room) - room)).astype(np.int32)


def background(size: int, texture: float, rng: np.random.Generator) -> np.ndarray:
    """A dark plain colour with a slope and a smooth random pattern, int16[size, size, 3].

    ``texture``: standard deviation of the pattern, of 255.
    """
    axis = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    slope = rng.normal(0.0, 6.0, 2)
    plain = rng.uniform(45.0, 75.0) + rng.normal(0.0, 4.0, 3)
    cells = rng.normal(0.0, texture, (8, 8))
    at = np.linspace(0.0, 7.0, size)
    rows = np.stack([np.interp(at, np.arange(8), column) for column in cells.T], axis=1)
    pattern = np.stack([np.interp(at, np.arange(8), row) for row in rows], axis=0)
    level = pattern + slope[0] * axis[:, None] + slope[1] * axis[None, :]
    return np.rint(level[:, :, None] + plain).astype(np.int16)
