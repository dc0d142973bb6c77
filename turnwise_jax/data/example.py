"""From a dialogue to its pixels and sounds: every media file read once, every error located."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from turnwise_jax.data.audio import SLICE_FRAMES, SoundSpec, log_mel, sound_frames
from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.images import FrameSpec, Patches, cut, frame_grid, resize
from turnwise_jax.data.records import Dialogue, Frame, Sound
from turnwise_jax.data.tracks import Track
from turnwise_jax.data.video import image_size, iter_frames, probe, read_image
from turnwise_jax.errors import InputError

Grid = tuple[int, int, int]
Place = tuple[int, int]  # turn, frame in it


@dataclass(frozen=True, slots=True)
class Example:
    """A dialogue, its pixels and its sounds, once for all of its rollouts.

    ``grids``: (t, h, w) in patches, one per image or video turn, in the order of
    ``records.media_groups``. ``patches``: for each of them uint8[t, h*w, C*tp*ps*ps]. ``sounds``:
    log-mel float32[mel bins, frames] of each turn that has a sound, in order.
    """

    dialogue: Dialogue
    patches: tuple[np.ndarray, ...]
    grids: tuple[Grid, ...]
    sounds: tuple[np.ndarray, ...] = ()

    @property
    def slices(self) -> list[tuple[np.ndarray, tuple[int, int]]]:
        """All vision slices in order: (uint8[h*w, C*tp*ps*ps], (h, w)).

        ``MediaSpan.slice`` counts in this list.
        """
        return [
            (values, (h, w))
            for stack, (_, h, w) in zip(self.patches, self.grids, strict=True)
            for values in stack
        ]

    @property
    def sound_slices(self) -> list[np.ndarray]:
        """The sounds cut into audio slices: float32[mel bins, <= SLICE_FRAMES] each, in order."""
        return [
            sound[:, start : start + SLICE_FRAMES]
            for sound in self.sounds
            for start in range(0, sound.shape[1], SLICE_FRAMES)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of pixels and sounds."""
        return sum(values.nbytes for values in (*self.patches, *self.sounds))


def load_example(
    dialogue: Dialogue,
    spec: FrameSpec,
    sound: SoundSpec | None = None,
    cache: FrameCache | None = None,
) -> Example:
    """Decodes all frames and sounds of a dialogue, each file in one pass; cuts the frames.

    Args:
      sound: how sounds become mel frames; published settings if None.
      cache: where resized frames and mel frames of earlier calls are looked for.

    Raises:
      InputError: names the record, the frame's or sound's place in it, the media file and, where
        it applies, the time.
    """
    resized: dict[Place, np.ndarray] = {}
    for (path, _), frames in _by_file(dialogue).items():
        shown = [(frame.time, _video_length(dialogue, place)) for place, frame in frames.items()]
        settings = {"frames": shown, "spec": _sizes(spec)}
        make = partial(_resized, dialogue, frames, spec)
        resized |= zip(frames, _prepared(cache, path, settings, make), strict=True)
    stacks = [_patches(dialogue, turn, resized, spec) for turn in range(len(dialogue.turns))]
    flat = [patches for stack in stacks for patches in stack]
    return Example(
        dialogue,
        tuple(p.values for p in flat),
        tuple(p.grid for p in flat),
        _sounds(dialogue, sound or SoundSpec(), cache),
    )


def probe_grids(dialogue: Dialogue, spec: FrameSpec) -> list[Grid]:
    """The grids that ``load_example`` will give, from file headers and one frame of each video.

    Raises:
      InputError: as ``load_example``, for what a header can tell.
    """
    grids = []
    for number, turn in enumerate(dialogue.turns):
        for place, frame in enumerate(turn.frames[:1] if turn.video else turn.frames):
            with _located(dialogue, _frame_field((number, place))):
                height, width = _size(frame)
                count = len(turn.frames) if turn.video else 1
                grids.append(frame_grid(height, width, spec, frames=count, video=turn.video))
    return grids


def _by_file(dialogue: Dialogue) -> dict[tuple[str, bool], dict[Place, Frame]]:
    """The frames of each file, in the order of the dialogue."""
    files: dict[tuple[str, bool], dict[Place, Frame]] = {}
    for number, turn in enumerate(dialogue.turns):
        for place, frame in enumerate(turn.frames):
            key = (frame.path, frame.time is None)
            files.setdefault(key, {})[number, place] = frame
    return files


def _prepared(
    cache: FrameCache | None,
    path: str,
    settings: Mapping[str, Any],
    make: Callable[[], list[np.ndarray]],
) -> list[np.ndarray]:
    return make() if cache is None else cache.arrays(path, settings, make)


def _resized(
    dialogue: Dialogue, frames: Mapping[Place, Frame], spec: FrameSpec
) -> list[np.ndarray]:
    """Resized pixels uint8[h, w, 3] of frames that share one file, in their order."""
    places, pictures = list(frames), _pictures(list(frames.values()))
    resized: dict[Place, np.ndarray] = {}
    for rank in _time_order(list(frames.values())):
        with _located(dialogue, _frame_field(places[rank])):
            index, pixels = next(pictures)
            count = _video_length(dialogue, places[index])
            resized[places[index]] = resize(pixels, spec, frames=count)
    return [resized[place] for place in places]


def _video_length(dialogue: Dialogue, place: Place) -> int | None:
    """How many frames the video has that a frame belongs to; None for an image."""
    turn = dialogue.turns[place[0]]
    return len(turn.frames) if turn.video else None


def _sizes(spec: FrameSpec) -> dict[str, Any]:
    """What resized pixels depend on: all but the normalisation."""
    return {name: own for name, own in asdict(spec).items() if not name.startswith("image_")}


def _pictures(frames: list[Frame]) -> Iterator[tuple[int, np.ndarray]]:
    """(index, pixels) of frames that share one file, in the order of ``_time_order``."""
    if frames[0].time is not None:
        yield from iter_frames(frames[0].path, [frame.time for frame in frames])
    else:
        pixels = read_image(frames[0].path)
        yield from ((index, pixels) for index in range(len(frames)))


def _time_order(frames: list[Frame]) -> list[int]:
    return sorted(range(len(frames)), key=lambda index: frames[index].time or 0.0)


def _patches(
    dialogue: Dialogue, turn: int, resized: dict[Place, np.ndarray], spec: FrameSpec
) -> list[Patches]:
    """Patches of one turn: one entry per image, or one for the whole video."""
    frames = [resized[turn, place] for place in range(len(dialogue.turns[turn].frames))]
    if not (frames and dialogue.turns[turn].video):
        return [cut(frame[None], spec) for frame in frames]
    for place, frame in enumerate(frames):
        if frame.shape != frames[0].shape:
            with _located(dialogue, _frame_field((turn, place))):
                raise InputError("differs in size from the other frames of this video turn")
    return [cut(np.stack(frames), spec, video=True)]


def _sounds(
    dialogue: Dialogue, spec: SoundSpec, cache: FrameCache | None
) -> tuple[np.ndarray, ...]:
    """Log-mel frames of each turn that has a sound, each file in one pass."""
    files: dict[str, dict[int, Sound]] = {}
    for number, turn in enumerate(dialogue.turns):
        if turn.audio is not None:
            files.setdefault(turn.audio.path, {})[number] = turn.audio
    heard: dict[int, np.ndarray] = {}
    for path, sounds in files.items():
        played = [(sound.start, sound.end) for sound in sounds.values()]
        make = partial(_heard, dialogue, path, sounds, spec)
        settings = {"sounds": played, "spec": asdict(spec)}
        heard |= zip(sounds, _prepared(cache, path, settings, make), strict=True)
    return tuple(heard[number] for number in sorted(heard))


def _heard(
    dialogue: Dialogue, path: str, sounds: Mapping[int, Sound], spec: SoundSpec
) -> list[np.ndarray]:
    """Log-mel frames of sounds of one file, by turn, in their order."""
    heard: dict[int, np.ndarray] = {}
    with ExitStack() as stack:
        track: Track | None = None
        for number, sound in sorted(sounds.items(), key=lambda entry: entry[1].start):
            with _located(dialogue, f"turns[{number}].audio"):
                sound_frames(sound, spec)
                track = track or stack.enter_context(Track(path))
                heard[number] = log_mel(track.read(sound.start, sound.end, spec.rate), spec)
    return [heard[number] for number in sounds]


def _size(frame: Frame) -> tuple[int, int]:
    if frame.time is None:
        return image_size(frame.path)
    info = probe(frame.path)
    return info.height, info.width


@contextmanager
def _located(dialogue: Dialogue, field: str) -> Iterator[None]:
    """Adds record and field to what a media file's error says."""
    try:
        yield
    except InputError as error:
        message = f"{error.file}: {error.message}" if error.file else error.message
        raise InputError(
            message,
            file=dialogue.file,
            record=dialogue.id,
            field=field,
        ) from error


def _frame_field(place: Place) -> str:
    return f"turns[{place[0]}].frames[{place[1]}]"
