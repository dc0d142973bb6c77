"""A scene drawn and played as a real .mp4 file: h264 pictures and an AAC track."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np

from turnwise_jax.worlds.render import Actor, background, paint, shape_mask
from turnwise_jax.worlds.settings import COLOURS
from turnwise_jax.worlds.soundscript import Scene
from turnwise_jax.worlds.soundsettings import BEEP, GAP, OCTAVES, SLOT, SPOTS, VOICES, SoundWorld

WALLS = {  # tints by which the sides of the room are told apart
    "left": (40, -40, -40),
    "right": (45, -40, 45),
    "top": (-40, -40, 40),
    "bottom": (-45, -45, -45),
}
_FADE = 0.006  # s; a beep's attack and release
_BLOCK = 1024  # samples of an AAC frame


def draw_clip(
    path: str | os.PathLike[str], world: SoundWorld, scene: Scene, seed: np.random.SeedSequence
) -> None:
    """Writes the clip of ``scene`` to ``path``; the same arguments give the same file."""
    seen, heard = seed.spawn(2)
    images = pictures(world, scene, np.random.default_rng(seen))
    encode(path, world, images, samples(world, scene, np.random.default_rng(heard)))


def pictures(world: SoundWorld, scene: Scene, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The pictures in order, uint8[size, size, 3]; picture n is shown from n / fps on."""
    count = round(world.seconds * world.fps)
    actors = _actors(world, scene, rng, count)
    ground = background(world.size, world.texture, rng) + _walls(world)
    grain = rng.normal(0.0, world.noise, (2 * world.size, 2 * world.size, 1)).astype(np.int16)
    for n, (dy, dx) in enumerate(rng.integers(0, world.size, (count, 2))):
        picture = ground.copy()
        for actor in actors:
            if actor.start <= n / world.fps < actor.end:
                paint(picture, actor, n)
        picture += grain[dy : dy + world.size, dx : dx + world.size]
        yield np.clip(picture, 0, 255, out=picture).astype(np.uint8)


def _walls(world: SoundWorld) -> np.ndarray:
    """What tells the sides of the room apart, int16[size, size, 3]: a tint of each spot's cell."""
    cell = world.size // 3
    out = np.zeros((world.size, world.size, 3), np.int16)
    for spot, (column, row) in SPOTS.items():
        rows, columns = (
            slice(row * cell, (row + 1) * cell),
            slice(column * cell, (column + 1) * cell),
        )
        out[rows, columns] = WALLS[spot]
    return out


def samples(world: SoundWorld, scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """The sound, float32[seconds * rate] in -1..1: the beeps in the middle of their slot."""
    sound = rng.normal(0.0, world.hiss, round(world.seconds * world.rate))
    length = scene.beeps * (BEEP + GAP) - GAP
    start = (scene.slot + 0.5) * SLOT - length / 2
    beep = rng.uniform(*world.level) * _beep(world, scene)
    for number in range(scene.beeps):
        first = round((start + number * (BEEP + GAP)) * world.rate)
        sound[first : first + len(beep)] += beep
    return np.clip(sound, -1.0, 1.0).astype(np.float32)


def encode(
    path: str | os.PathLike[str],
    world: SoundWorld,
    images: Iterator[np.ndarray],
    sound: np.ndarray,
) -> None:
    """Writes pictures and sound as h264 and AAC in mp4, one thread, a key picture every 2 s."""
    options = {"preset": "ultrafast", "crf": "26", "threads": "1", "g": str(2 * world.fps)}
    with av.open(os.fspath(path), "w") as container:
        video = container.add_stream("libx264", rate=world.fps, options=options)
        video.width = video.height = world.size
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("aac", rate=world.rate, layout="mono")
        audio.bit_rate = 64000
        for image in images:
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(video.encode())
        for first in range(0, len(sound), _BLOCK):
            block = np.ascontiguousarray(sound[None, first : first + _BLOCK])
            frame = av.AudioFrame.from_ndarray(block, "fltp", "mono")
            frame.sample_rate, frame.time_base = world.rate, Fraction(1, world.rate)
            frame.pts = first
            container.mux(audio.encode(frame))
        container.mux(audio.encode())


def _beep(world: SoundWorld, scene: Scene) -> np.ndarray:
    """One beep of the sounding shape's voice, float64[n], largest value 1."""
    voice = VOICES[scene.source.shape]
    pitch = voice.pitch * 2.0 ** (OCTAVES * scene.high)
    time = np.arange(round(BEEP * world.rate)) / world.rate
    wave = np.zeros(len(time))
    for multiple, strength in voice.partials:
        if multiple * pitch < 0.45 * world.rate:
            wave += strength * np.sin(2.0 * np.pi * multiple * pitch * time)
    fade = np.minimum(1.0, np.minimum(time, time[-1] - time) / _FADE)
    return wave * fade / np.abs(wave).max()


def _actors(world: SoundWorld, scene: Scene, rng: np.random.Generator, count: int) -> list[Actor]:
    """One actor per shape; the one that turns is two, one after the other on the same path."""
    actors = []
    for number, thing in enumerate(scene.things):
        light = rng.uniform(0.92, 1.04)
        side = round(rng.uniform(*world.object_size) * world.size / 3)
        mask, path = shape_mask(thing.shape, side), _path(world, thing.spot, side, rng, count)
        turn = scene.turn if scene.turn is not None and scene.turn.thing == number else None
        at = math.inf if turn is None else turn.slot * SLOT
        actors.append(Actor(mask, _lit(thing.colour, light), 0.0, at, path))
        if turn is not None:
            actors.append(Actor(mask, _lit(turn.colour, light), at, math.inf, path))
    return actors


def _lit(colour: str, light: float) -> tuple[int, int, int]:
    red, green, blue = (min(255, round(light * part)) for part in COLOURS[colour])
    return red, green, blue


def _path(
    world: SoundWorld, spot: str, side: int, rng: np.random.Generator, count: int
) -> np.ndarray:
    """A small round about the middle of the spot's cell, int32[count, 2] (y, x) corners."""
    cell = world.size // 3
    room = (cell - side) / 2
    column, row = SPOTS[spot]
    turns = rng.uniform(0.1, 0.4) * rng.choice([-1.0, 1.0])  # a second
    angle = 2.0 * np.pi * (rng.random() + turns * np.arange(count) / world.fps)
    centre = np.array([row * cell + room, column * cell + room])
    return np.rint(centre + room * np.stack([np.sin(angle), np.cos(angle)], axis=1)).astype(
        np.int32
    )
