"""Dialogues to examples with pixels, in a reproducible order, through grain.

The order depends on the seed and the epoch alone. Global batch ``s`` of an epoch is records
``[s*B*P, (s+1)*B*P)`` of the shuffled epoch, dealt out to the P processes in turn; what does not
fill a last global batch is left out of that epoch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from turnwise_jax.data.images import FrameSpec, Patches, cut, frame_grid, resize
from turnwise_jax.data.load import check_on_bad_record
from turnwise_jax.data.records import Dialogue, Frame
from turnwise_jax.data.video import image_size, iter_frames, probe, read_image
from turnwise_jax.errors import InputError

Grid = tuple[int, int, int]
Place = tuple[int, int]  # turn, frame in it
SLICE_FRAMES = 200


@dataclass(frozen=True, slots=True)
class Example:
    """A dialogue and its pixels, once for all of its rollouts.

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


def load_example(dialogue: Dialogue, spec: FrameSpec) -> Example:
    """Decodes, resizes and cuts all frames of a dialogue, each video in one pass.

    Raises:
      InputError: names the record, the frame's place in it, the media file and, where it
        applies, the time.
    """
    resized: dict[Place, np.ndarray] = {}
    for frames in _by_file(dialogue).values():
        places, pictures = list(frames), _pictures(list(frames.values()))
        for rank in _time_order(list(frames.values())):
            with _located(dialogue, places[rank]):
                index, pixels = next(pictures)
                resized[places[index]] = resize(pixels, spec)
    stacks = [_patches(dialogue, turn, resized, spec) for turn in range(len(dialogue.turns))]
    flat = [patches for stack in stacks for patches in stack]
    return Example(dialogue, tuple(p.values for p in flat), tuple(p.grid for p in flat))


def probe_grids(dialogue: Dialogue, spec: FrameSpec) -> list[Grid]:
    """The grids that ``load_example`` will give, from file headers and one frame of each video.

    Raises:
      InputError: as ``load_example``, for what a header can tell.
    """
    grids = []
    for number, turn in enumerate(dialogue.turns):
        for place, frame in enumerate(turn.frames[:1] if turn.video else turn.frames):
            with _located(dialogue, (number, place)):
                height, width = _size(frame)
                count = len(turn.frames) if turn.video else 1
                grids.append(frame_grid(height, width, spec, frames=count, video=turn.video))
    return grids


class Loader:
    """Iterator over batches (``list[Example]``) that can be stopped and taken up again exactly.

    ``len(loader)`` is the number of batches in all. See ``make_loader``.
    """

    def __init__(
        self,
        records: grain.DatasetIterator[Example | InputError],
        *,
        batch_size: int,
        total: int,
        shard: int,
        plan: dict[str, Any],
        skip: bool,
        skipped: list[str],
    ):
        """``records``: an endless stream whose passes are ``shard`` records long. ``plan``: what
        the stream depends on, kept in the state to tell a foreign state apart."""
        self._records = records
        self._batch_size = batch_size
        self._total = total
        self._shard = shard
        self._plan = plan
        self._skip = skip
        self._skipped = skipped
        self._step = 0

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[list[Example]]:
        return self

    def __next__(self) -> list[Example]:
        """The next batch.

        Raises:
          InputError: a bad record under "raise", or a whole pass without one usable record.
        """
        if self._step >= self._total:
            raise StopIteration
        batch: list[Example] = []
        refused = 0
        while len(batch) < self._batch_size:
            record = next(self._records)
            if isinstance(record, Example):
                batch.append(record)
                refused = 0
                continue
            refused += 1
            if not self._skip:
                raise record
            if refused >= self._shard:
                raise InputError(f"no usable record in a whole pass; the last one: {record}")
            if str(record) not in self._skipped:
                self._skipped.append(str(record))
        self._step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """Where the loader stands between two batches; survives JSON."""
        return {"step": self._step, "records": self._records.get_state(), "plan": self._plan}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a state of an equal loader: the same batches follow.

        Raises:
          InputError: the state belongs to other dialogues, another seed or another sharding.
        """
        for name, value in self._plan.items():
            if state["plan"].get(name) != value:
                raise InputError(
                    f"the saved data position was taken with {state['plan'].get(name)!r}, this run "
                    f"has {value!r}",
                    field=name,
                )
        self._step = state["step"]
        self._records.set_state(state["records"])

    def close(self) -> None:
        """Stops the read threads."""
        self._records.close()


def make_loader(
    dialogues: Sequence[Dialogue],
    spec: FrameSpec,
    *,
    batch_size: int,
    seed: int,
    shuffle: bool = True,
    epochs: int = 1,
    steps: int | None = None,
    start_state: dict[str, Any] | None = None,
    workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    on_bad_record: str = "raise",
    skipped: list[str] | None = None,
    keep_bytes: int = 0,
) -> Loader:
    """Batches of examples for training.

    Args:
      batch_size: examples a batch on this process.
      seed, shuffle: the order; every epoch has its own. Unshuffled keeps the order of the list.
      epochs, steps: how long; ``steps`` batches if given, else ``epochs`` passes over as many
        whole global batches as the dialogues fill. Bad records do not change the number of
        batches: the stream runs on into the next pass instead.
      start_state: what ``get_state`` of an equal loader returned.
      workers: threads that read ahead while the caller computes, one batch far; 0 reads when
        asked. The batches do not depend on it.
      process_index, process_count: which share of each global batch this process gets.
      on_bad_record: "raise" or "skip".
      skipped: under "skip" each bad record's line is appended here once, when its turn comes.
      keep_bytes: memory for decoded examples: those that fit are not decoded again in later passes.

    Raises:
      InputError: settings that cannot work, or fewer dialogues than one global batch.
    """
    check_on_bad_record(on_bad_record)
    _check_sizes(
        seed=(seed, 0),
        batch_size=(batch_size, 1),
        epochs=(epochs, 1),
        steps=(1 if steps is None else steps, 0),
        workers=(workers, 0),
        keep_bytes=(keep_bytes, 0),
        process_count=(process_count, 1),
    )
    if not 0 <= process_index < process_count:
        raise InputError(f"{process_index} is not below {process_count}", field="process_index")
    whole = batch_size * process_count
    per_epoch = len(dialogues) // whole
    if not per_epoch:
        raise InputError(
            f"{len(dialogues)} dialogues do not fill one batch of {whole}", field="batch_size"
        )
    order = grain.MapDataset.range(len(dialogues))
    if shuffle:
        order = order.shuffle(seed=_spread(seed))
    shard = order[: per_epoch * whole][process_index::process_count]
    read = shard.repeat().map(_Reader(dialogues, spec, keep_bytes))
    ahead = max(workers, batch_size) if workers else 0
    options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=ahead)
    loader = Loader(
        iter(read.to_iter_dataset(options)),
        batch_size=batch_size,
        total=epochs * per_epoch if steps is None else steps,
        shard=len(shard),
        plan={
            "seed": seed,
            "shuffle": shuffle,
            "batch_size": batch_size,
            "process_index": process_index,
            "process_count": process_count,
            "dialogues": _digest(dialogues),
        },
        skip=on_bad_record == "skip",
        skipped=[] if skipped is None else skipped,
    )
    if start_state is not None:
        loader.set_state(start_state)
    return loader


class _Reader:
    """Examples by index, or why there is none: the thread that reads does not decide what follows.

    The first examples that fit into ``room`` bytes are kept. Passes go round and round, so that
    throwing out the oldest would throw out just what comes next.
    """

    def __init__(self, dialogues: Sequence[Dialogue], spec: FrameSpec, room: int):
        self._dialogues, self._spec = dialogues, spec
        self._kept: dict[int, Example] = {}
        self._room = room
        self._lock = threading.Lock()

    def __call__(self, index: int) -> Example | InputError:
        if index in self._kept:
            return self._kept[index]
        try:
            example = load_example(self._dialogues[index], self._spec)
        except InputError as error:
            return error
        size = sum(values.nbytes for values in example.patches)
        with self._lock:
            if index not in self._kept and size <= self._room:
                self._kept[index] = example
                self._room -= size
        return example


def _by_file(dialogue: Dialogue) -> dict[tuple[str, bool], dict[Place, Frame]]:
    """The frames of each file, in the order of the dialogue."""
    files: dict[tuple[str, bool], dict[Place, Frame]] = {}
    for number, turn in enumerate(dialogue.turns):
        for place, frame in enumerate(turn.frames):
            key = (frame.path, frame.time is None)
            files.setdefault(key, {})[number, place] = frame
    return files


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
            with _located(dialogue, (turn, place)):
                raise InputError("differs in size from the other frames of this video turn")
    return [cut(np.stack(frames), spec, video=True)]


def _size(frame: Frame) -> tuple[int, int]:
    if frame.time is None:
        return image_size(frame.path)
    info = probe(frame.path)
    return info.height, info.width


@contextmanager
def _located(dialogue: Dialogue, place: Place) -> Iterator[None]:
    """Adds record and field to what a media file's error says."""
    try:
        yield
    except InputError as error:
        message = f"{error.file}: {error.message}" if error.file else error.message
        raise InputError(
            message,
            file=dialogue.file,
            record=dialogue.id,
            field=f"turns[{place[0]}].frames[{place[1]}]",
        ) from error


def _check_sizes(**fields: tuple[int, int]) -> None:
    """Each field is (value, least value)."""
    for name, (value, least) in fields.items():
        if value < least:
            raise InputError(f"must be at least {least}, got {value}", field=name)


def _spread(seed: int) -> int:
    """A 32-bit seed far from its neighbours': grain adds the epoch to what it is given."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def _digest(dialogues: Sequence[Dialogue]) -> str:
    """Short fingerprint of the dialogues and their order."""
    digest = hashlib.sha256()
    for dialogue in dialogues:
        digest.update(repr(dialogue.id).encode())
    return f"{len(dialogues)}-{digest.hexdigest()[:16]}"
