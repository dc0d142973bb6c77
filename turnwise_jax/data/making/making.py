"""A whole set in the MMDuet2 formats, written in one go or not at all.

::

    out/rl_{train,test}.parquet  out/rl_{train,test}-user_turns.json
    out/sft_{train,test}.jsonl   out/manifest.json

Videos stay where they are; records name them relative to the set's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from turnwise_jax.data.load import check_on_bad_record
from turnwise_jax.data.making import captions, plain
from turnwise_jax.data.making.cutting import (
    CutSpec,
    check_spec,
    plan_replies,
    rl_dialogues,
    sft_dialogues,
)
from turnwise_jax.data.making.entries import Entry
from turnwise_jax.data.records import Dialogue
from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft
from turnwise_jax.errors import InputError
from turnwise_jax.progress import ProgressBar

KINDS = {"rl": ("rl",), "sft": ("sft",), "both": ("rl", "sft")}
MANIFEST = "manifest.json"
SPLITS = ("train", "test")
_DIALOGUES = {"rl": rl_dialogues, "sft": sft_dialogues}
_WRITE = {"rl": mmduet2_rl.write, "sft": mmduet2_sft.write}
_FILES = {"rl": "rl_{}.parquet", "sft": "sft_{}.jsonl"}

Made = dict[tuple[str, str], list[Dialogue]]  # by split and kind


class MakeJob(NamedTuple):
    """What to make of what.

    ``source``: a JSON list or JSON lines (``making.plain``), a caption file, or a folder of them
    (``making.captions``). ``root``: where relative video paths of a list start; its own folder if
    None. ``question``, ``system``: of captions; ``system`` also of entries without one.
    ``held_out``: share of the videos that make the test split. ``seed``: of that choice.
    """

    source: Path
    output: Path
    kind: str = "both"
    root: Path | None = None
    question: str = ""
    system: str | None = None
    held_out: float = 0.0
    seed: int = 0
    on_bad_record: str = "raise"
    spec: CutSpec = CutSpec()


class Counts(NamedTuple):
    """What became of the entries.

    ``videos``: by split. ``cut``: answers that end earlier than annotated. ``missed``: answers
    without a decision in their window, which are in no record. ``records``: by split and kind.
    """

    entries: int
    videos: dict[str, int]
    answers: int
    cut: int
    missed: int
    records: dict[str, dict[str, int]]


def make_set(job: MakeJob) -> tuple[Counts, list[str]]:
    """Makes the set of a job in ``job.output``.

    Returns:
      (counts, one line for each entry that was left out).

    Raises:
      InputError: settings that cannot work, an output that is there, an unreadable file, a bad
        entry under "raise", or nothing to train on.
    """
    _check(job)
    entries, skipped = _read(job)
    made, counts = _cut(job, entries)
    if not any(counts.records["train"].values()):
        raise InputError(_nothing(counts), file=job.source)
    _whole(job.output, lambda folder: _fill(folder, job, made, counts))
    return counts, skipped


def _check(job: MakeJob) -> None:
    check_spec(job.spec)
    check_on_bad_record(job.on_bad_record)
    if job.kind not in KINDS:
        raise InputError(f"must be one of {', '.join(KINDS)}, got {job.kind!r}", field="kind")
    if not 0 <= job.held_out < 1:
        message = f"must be at least 0 and less than 1, got {job.held_out:g}"
        raise InputError(message, field="held_out")
    if not job.source.exists():
        raise InputError("no such file or folder", file=job.source)
    captioned = job.source.is_dir() or job.source.suffix.lower() in captions.SUFFIXES
    if captioned and not job.question.strip():
        raise InputError("is needed: what the captions answer", field="question")
    if job.question and not captioned:
        raise InputError("only captions need one; a list has its own", field="question")
    if job.output.exists() and (not job.output.is_dir() or any(job.output.iterdir())):
        raise InputError("is there already; remove it or choose another folder", file=job.output)


def _read(job: MakeJob) -> tuple[list[Entry], list[str]]:
    """Every entry, and a line for each bad one; a bar counts them."""
    rows, parse = _reader(job)
    entries: list[Entry] = []
    skipped: list[str] = []
    names: set[str] = set()
    with ProgressBar("reading videos", len(rows)) as bar:
        for name, row in rows:
            try:
                entry = parse(name, row)
                if name in names:
                    raise InputError("two entries have this id", file=job.source, record=name)
                names.add(name)
                entries.append(entry)
            except InputError as error:
                if job.on_bad_record == "raise":
                    raise
                skipped.append(str(error))
            bar.update()
    if not entries:
        reason = f"; the first of {len(skipped)} bad ones: {skipped[0]}" if skipped else ""
        raise InputError(f"holds no usable entry{reason}", file=job.source)
    return entries, skipped


def _reader(job: MakeJob) -> tuple[list[tuple[str, Any]], Callable[[str, Any], Entry]]:
    """The raw entries of the job's source, and what reads one of them."""
    if job.source.is_dir() or job.source.suffix.lower() in captions.SUFFIXES:
        question = job.question.strip()
        return list(captions.rows(job.source)), lambda name, row: captions.parse(
            name, row, question=question, system=job.system
        )
    root = job.source.parent if job.root is None else job.root
    usual = {} if job.system is None else {"system": job.system}
    return list(plain.rows(job.source)), lambda name, row: plain.parse(
        name, {**usual, **row}, file=os.fspath(job.source), root=root
    )


def _held_out(job: MakeJob, entries: Sequence[Entry]) -> set[str]:
    """Videos of the test split: those whose names hash lowest, so that new ones move few others."""
    top = os.path.abspath(job.source if job.source.is_dir() else job.root or job.source.parent)

    def rank(video: str) -> str:
        name = f"{job.seed}:{os.path.relpath(video, top)}"
        return hashlib.sha256(name.encode()).hexdigest()

    videos = sorted({entry.video for entry in entries}, key=rank)
    if job.held_out and len(videos) < 2:
        raise InputError("needs at least two videos to hold one out", field="held_out")
    count = min(max(1, round(job.held_out * len(videos))), len(videos) - 1)
    return set(videos[:count]) if job.held_out else set()


def _cut(job: MakeJob, entries: Sequence[Entry]) -> tuple[Made, Counts]:
    """The dialogues of every file, and what became of the entries."""
    held_out = _held_out(job, entries)
    sides: dict[str, list[Entry]] = {split: [] for split in SPLITS}
    for entry in entries:
        sides["test" if entry.video in held_out else "train"].append(entry)
    made: Made = {(split, kind): [] for split in SPLITS for kind in KINDS[job.kind]}
    missed = 0
    for split, own in sides.items():
        for entry in own:
            plan = plan_replies(entry, job.spec)
            missed += plan.missed
            video = os.path.relpath(entry.video, os.path.abspath(job.output))
            for kind in KINDS[job.kind]:
                made[split, kind] += _DIALOGUES[kind](entry, plan, job.spec, video=video)
    return made, Counts(
        entries=len(entries),
        videos={split: len({entry.video for entry in own}) for split, own in sides.items()},
        answers=sum(len(entry.windows) for entry in entries),
        cut=sum(entry.cut for entry in entries),
        missed=missed,
        records={s: {kind: len(made[s, kind]) for kind in KINDS[job.kind]} for s in SPLITS},
    )


def _nothing(counts: Counts) -> str:
    if not counts.answers:
        return "holds no answer to train on"
    return (
        f"leaves nothing to train on: {counts.missed} of {counts.answers} answers have no decision "
        "in their window; choose a smaller interval or fewer turn_frames"
    )


def _fill(folder: Path, job: MakeJob, made: Made, counts: Counts) -> None:
    with ProgressBar("writing records", sum(map(len, made.values()))) as bar:
        for (split, kind), dialogues in made.items():
            if dialogues:
                path = folder / _FILES[kind].format(split)
                try:
                    _WRITE[kind](_counted(dialogues, bar), path, root="")
                except InputError as error:  # of the source; the file it names will not be there
                    raise InputError(
                        error.message, file=job.source, record=error.record, field=error.field
                    ) from None
    settings = {**job.spec._asdict(), "kind": job.kind, "held_out": job.held_out, "seed": job.seed}
    text = json.dumps({"settings": settings, "counts": counts._asdict()}, indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _counted(dialogues: Iterable[Dialogue], bar: ProgressBar) -> Iterator[Dialogue]:
    for dialogue in dialogues:
        yield dialogue
        bar.update()


def _whole(root: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder beside ``root`` and moves it into place."""
    root = Path(os.path.abspath(root))
    part = root.parent / f".{root.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        fill(part)
        if root.exists():
            root.rmdir()
        os.replace(part, root)
    finally:
        shutil.rmtree(part, ignore_errors=True)
