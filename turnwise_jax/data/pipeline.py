"""Dialogues to examples with pixels, in a reproducible order, through grain.

The order depends on the seed and the epoch alone. Global batch ``s`` of an epoch is records
``[s*B*P, (s+1)*B*P)`` of the shuffled epoch, dealt out to the P processes in turn; what does not
fill a last global batch is left out of that epoch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import grain
import numpy as np

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.example import Example, Grid, load_example, probe_grids
from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import check_on_bad_record
from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError

__all__ = ["Example", "Grid", "Loader", "load_example", "make_loader", "probe_grids", "read_once"]


class Loader:
    """Iterator over batches (``list[Example]``) that can be stopped and taken up again exactly.

    ``len(loader)`` is the number of batches in all. See ``make_loader``.
    """

    def __init__(
        self,
        records: grain.DatasetIterator[tuple[int, Example | InputError]],
        *,
        batch_size: int,
        total: int,
        among: int,
        plan: dict[str, Any],
        skip: bool,
        skipped: list[str],
    ):
        """``records``: an endless stream of numbered records. ``among``: how many can come in it.
        ``plan``: what the stream depends on, kept in the state to tell a foreign state apart."""
        self._records = records
        self._batch_size = batch_size
        self._total = total
        self._among = among
        self._bad: set[int] = set()  # numbers of refused records
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
          InputError: a bad record under "raise", or more of them than leave a batch.
        """
        if self._step >= self._total:
            raise StopIteration
        batch: dict[int, Example] = {}
        while len(batch) < self._batch_size:
            number, record = next(self._records)
            if isinstance(record, Example):
                batch.setdefault(number, record)
            else:
                self._refuse(number, record)
        self._step += 1
        return list(batch.values())

    def _refuse(self, number: int, record: InputError) -> None:
        if not self._skip:
            raise record
        if str(record) not in self._skipped:
            self._skipped.append(str(record))
        self._bad.add(number)
        if self._among - len(self._bad) < self._batch_size:
            raise InputError(
                f"{len(self._bad)} of {self._among} records cannot be used, which does not leave a "
                f"batch of {self._batch_size}: mend them or take smaller batches; one is {record}",
                field="data.batch_size",
            )

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
    sound: SoundSpec | None = None,
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
    cache: FrameCache | None = None,
) -> Loader:
    """Batches of examples for training.

    Args:
      spec, sound: how frames and sounds are prepared, see ``load_example``.
      batch_size: examples a batch on this process.
      seed, shuffle: the order; every epoch has its own. Unshuffled keeps the order of the list.
      epochs, steps: how long; ``steps`` batches if given, else ``epochs`` passes over as many
        whole global batches as the dialogues fill. Bad records do not change the number of
        batches: the stream runs on into the next pass instead. There, a record that stands in
        the batch already is passed over: no batch has one twice.
      start_state: what ``get_state`` of an equal loader returned.
      workers: threads that read ahead while the caller computes, one batch far; 0 reads when
        asked. The batches do not depend on it.
      process_index, process_count: which share of each global batch this process gets.
      on_bad_record: "raise" or "skip".
      skipped: under "skip" each bad record's line is appended here once, when its turn comes.
      keep_bytes: memory for decoded examples: those that fit are not decoded again in later passes.
      cache: prepared frames and sounds on disk, see ``load_example``; None: decode.

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
    read = shard.repeat().map(_Reader(dialogues, spec, sound, keep_bytes, cache))
    ahead = max(workers, batch_size) if workers else 0
    options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=ahead)
    loader = Loader(
        iter(read.to_iter_dataset(options)),
        batch_size=batch_size,
        total=epochs * per_epoch if steps is None else steps,
        among=len(dialogues) if shuffle else len(shard),
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


def read_once(
    dialogues: Sequence[Dialogue],
    spec: FrameSpec,
    *,
    sound: SoundSpec | None = None,
    workers: int = 0,
    ahead: int = 1,
    cache: FrameCache | None = None,
) -> Iterator[Example | InputError]:
    """Every dialogue's example in order, or why there is none.

    Args:
      spec, sound, cache: see ``load_example``.
      workers: threads that read while the caller computes; 0 reads when asked.
      ahead: examples that they may be ahead.
    """
    if not dialogues:
        return
    read = grain.MapDataset.range(len(dialogues)).map(_Reader(dialogues, spec, sound, 0, cache))
    buffer = max(workers, ahead) if workers else 0
    options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=buffer)
    with closing(iter(read.to_iter_dataset(options))) as records:
        yield from (record for _, record in records)


class _Reader:
    """Index and example, or why there is none: the thread that reads does not decide what follows.

    The first examples that fit into ``room`` bytes are kept. Passes go round and round, so that
    throwing out the oldest would throw out just what comes next.
    """

    def __init__(
        self,
        dialogues: Sequence[Dialogue],
        spec: FrameSpec,
        sound: SoundSpec | None,
        room: int,
        cache: FrameCache | None,
    ):
        self._dialogues, self._how = dialogues, (spec, sound, cache)
        self._kept: dict[int, Example] = {}
        self._room = room
        self._lock = threading.Lock()

    def __call__(self, index: int) -> tuple[int, Example | InputError]:
        if index in self._kept:
            return index, self._kept[index]
        try:
            example = load_example(self._dialogues[index], *self._how)
        except InputError as error:
            return index, error
        with self._lock:
            if index not in self._kept and example.nbytes <= self._room:
                self._kept[index] = example
                self._room -= example.nbytes
        return index, example


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
