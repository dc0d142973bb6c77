"""``write_hints(...)``: fills the ``hint`` field of question-answering records with a teacher.

The output grows one record at a time, in the order of the input, as ``OUTPUT.partial``; once whole
it takes its name. A killed run goes on behind the last whole line. Nothing but ``hint`` differs
from the input.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from turnwise_jax.data import DATASETS
from turnwise_jax.data.jpeg import jpeg_frames
from turnwise_jax.data.load import check_on_bad_record
from turnwise_jax.data.records import ClipSpec, Frame, Question
from turnwise_jax.data.sources.json_lines import UNREADABLE
from turnwise_jax.errors import InputError
from turnwise_jax.progress import ProgressBar
from turnwise_jax.rewards.hint_teacher import Asked, HintTeacher

SOURCES = ("qa", "avatar")  # of DATASETS, those whose records have a field for a hint
HINT = "hint"
Row = dict[str, Any]


class HintCounts(NamedTuple):
    """How many records the output holds, and what this run's calls came to.

    ``hints``: records with a hint, ``given`` of them from the input. ``without``: the others; of
    these this run left ``refused`` because every attempt gave the answer away, ``failed`` because
    the endpoint did not answer, ``unreadable`` because the record was bad.
    """

    records: int
    hints: int
    given: int
    refused: int
    failed: int
    unreadable: int

    @property
    def without(self) -> int:
        return self.records - self.hints


class HintJob(NamedTuple):
    """What is read, what is written, and what the teacher is shown.

    ``root``: where relative media paths start, the folder of ``path`` if None. ``frames``: most
    pictures of a clip, spread evenly. ``side``: pixels of their longer side at most.
    """

    path: Path
    output: Path
    source: str = "qa"
    root: Path | None = None
    frames: int = 8
    side: int = 448
    on_bad_record: str = "raise"


def write_hints(job: HintJob, teacher: HintTeacher) -> HintCounts:
    """Write the output of a job, or what is missing of it.

    Records that have a hint keep it. Those for which no hint comes about are written without one;
    a run with the output as its input asks for them again.

    Raises:
      InputError: a file or record that cannot be used, an output that another input was made into,
        or an endpoint that cannot be used.
    """
    _check(job)
    rows = list(_rows(job))
    results: Counter[str] = Counter()
    if job.output.exists():
        written = _whole_lines(job.output.read_bytes())
        _check_written(job.output, written, rows)
        if len(written) != len(rows):
            raise InputError(
                f"holds {len(written)} of {len(rows)} records; choose another output or remove it",
                file=job.output,
            )
    else:
        with _partial(job.output) as out:
            done = _resumed(out, rows)
            _ask(job, teacher, rows, done, out, results)
            os.replace(_partial_path(job.output), job.output)
        written = _whole_lines(job.output.read_bytes())
    return HintCounts(
        records=len(rows),
        hints=sum(has_hint(row) for row in written),
        given=sum(has_hint(row) for _, row in rows),
        refused=results["refused"],
        failed=results["failed"],
        unreadable=results["unreadable"],
    )


def has_hint(row: Row) -> bool:
    """Whether a record's hint says anything."""
    hint = row.get(HINT)
    texts = hint if isinstance(hint, list) else [hint]
    return any(isinstance(text, str) and text.strip() for text in texts)


def _check(job: HintJob) -> None:
    if job.source not in SOURCES:
        raise InputError(f"must be one of {', '.join(SOURCES)}", field="source")
    check_on_bad_record(job.on_bad_record)
    if job.frames < 0:
        raise InputError(f"must not be negative, is {job.frames}", field="frames")
    if job.side < 1:
        raise InputError(f"must be at least 1, is {job.side}", field="side")
    if job.output.resolve() == job.path.resolve():
        raise InputError("is the input; choose another file", file=job.output, field="output")


def _rows(job: HintJob) -> Iterator[tuple[str, Row]]:
    for name, row in DATASETS[job.source].rows(job.path):
        if UNREADABLE in row:
            raise InputError(row[UNREADABLE], file=job.path, record=name)
        yield name, row


def _ask(
    job: HintJob,
    teacher: HintTeacher,
    rows: list[tuple[str, Row]],
    done: int,
    out: BinaryIO,
    results: Counter[str],
) -> None:
    """Hints for the records from `done` on, written in order as they become ready."""
    waiting = {i: rows[i][1] for i in range(done, len(rows)) if has_hint(rows[i][1])}
    asked = [i for i in range(done, len(rows)) if i not in waiting]
    bar = ProgressBar("hints", len(rows), done=done)

    def work(index: int, stop: threading.Event) -> tuple[str, str]:
        return _hint(job, teacher, *rows[index], stop)

    def write_ready() -> None:
        nonlocal done
        while done in waiting:
            out.write(_line(waiting.pop(done)))
            done += 1
            bar.update(1, _note(results))

    def keep(position: int, result: tuple[str, str]) -> None:
        index, (hint, outcome) = asked[position], result
        results[outcome] += 1
        waiting[index] = {**rows[index][1], HINT: hint} if hint else rows[index][1]
        write_ready()

    with bar:
        write_ready()
        teacher.client.each(work, asked, keep)
    os.fsync(out.fileno())


def _hint(
    job: HintJob, teacher: HintTeacher, name: str, row: Row, stop: threading.Event
) -> tuple[str, str]:
    """(hint or "", what came of it) of one record."""
    try:
        asked = _asked(job, name, row)
    except InputError:
        if job.on_bad_record == "raise":
            raise
        return "", "unreadable"
    found = teacher.hint(asked, stop)
    if found.hint:
        return found.hint, "written"
    return "", "failed" if found.failed else "refused"


def _asked(job: HintJob, name: str, row: Row) -> Asked:
    root = job.path.parent if job.root is None else job.root
    clip = ClipSpec(max(job.frames, 1), sound=False)
    parse = DATASETS[job.source].parse
    dialogue = parse(name, row, file=os.fspath(job.path), root=root, clip=clip)
    question: Question = dialogue.question
    pictures = tuple(jpeg_frames(_some(dialogue.turns[0].frames, job.frames), side=job.side))
    return Asked(question.text, question.answer, question.options, question.sound, pictures)


def _some(frames: tuple[Frame, ...], most: int) -> list[Frame]:
    """At most so many of them, spread evenly."""
    count = min(most, len(frames))
    return [frames[(2 * i + 1) * len(frames) // (2 * count)] for i in range(count)]


def _note(results: Counter[str]) -> str:
    left_out = sum(results.values()) - results["written"]
    return f"without a hint {left_out}" if left_out else ""


def _line(row: Row) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can hold
        return json.dumps(row).encode() + b"\n"


def _whole_lines(data: bytes) -> list[Row]:
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def _partial_path(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


@contextmanager
def _partial(output: Path) -> Iterator[BinaryIO]:
    """The growing file, of this process alone."""
    path = _partial_path(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        out = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=path) from None
    with out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("another process is writing it", file=path) from None
        except OSError:  # a file system without locks
            pass
        yield out


def _resumed(out: Any, rows: list[tuple[str, Row]]) -> int:
    """How many records a former run wrote; a line that it did not finish is cut off."""
    out.seek(0)
    data = out.read()
    out.truncate(data.rfind(b"\n") + 1)
    written = _whole_lines(data)
    _check_written(Path(out.name), written, rows)
    return len(written)


def _check_written(file: Path, written: list[Row], rows: list[tuple[str, Row]]) -> None:
    """Refuse an output whose records are not the input's."""
    if len(written) > len(rows):
        raise InputError(f"holds more than the {len(rows)} records of the input", file=file)
    for ours, (name, row) in zip(written, rows, strict=False):
        same = {**ours, HINT: None} == {**row, HINT: None}
        if not same or (has_hint(row) and ours.get(HINT) != row[HINT]):
            raise InputError(
                "is not this record of the input; choose another output or remove it",
                file=file,
                record=name,
            )
