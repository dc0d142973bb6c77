"""Answers of a judge kept in a file, so that no question is paid for twice.

The file is JSON lines, appended to and never rewritten. A line is ``{"key": ..., "score": ...,
"judge": ..., "kind": ..., "question": ..., "answer": ..., "previous": ..., "reply": ...}``, and for
some kinds further fields of the request: the key is the SHA-256 of all that the judge saw
(`CacheableJudge.seen`: model, prompt version, full prompt text, sampling settings), the rest is
there to be read.

*Crash safety.* Each answer is written when it comes, by one ``write`` to a file opened for append;
a process killed at any moment leaves at worst one torn last line. It is skipped when read, and the
next writer, this process or another, starts a fresh line. Earlier answers are never touched. An
``ask`` ends with ``fsync``, so that the answers also outlive the machine.
*Several processes* may append to one file. Each knows what was in it when it started and its own
answers since; the same question asked by two of them at once is merely stored twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import (
    CacheableJudge,
    Closing,
    OnAnswer,
    Request,
    counters_of,
)

_OPENING = b'{"key": "'


class CachedJudge(Closing):
    """Asks `judge` only what `path` has no answer to. Failures are not kept.

    ``path`` is the file (for checkpoints); ``counters`` counts (kind, "cached") beside the inner
    judge's own. Safe in threads. InputError if the file cannot be used or is no judge cache.
    """

    def __init__(self, judge: CacheableJudge, path: str | os.PathLike[str]):
        self.judge = judge
        self.path = Path(path)
        self._lock = threading.Lock()
        self._hits: Counter[tuple[str, str]] = Counter()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"judge cache: {error.strerror}", file=path) from None
        try:
            self._scores = _load(self.path)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def name(self) -> str:
        return self.judge.name

    @property
    def counters(self) -> Counter[tuple[str, str]]:
        return self._hits + counters_of(self.judge)

    def seen(self, request: Request) -> Mapping[str, Any]:
        return self.judge.seen(request)

    def ask(
        self, requests: Sequence[Request], on_answer: OnAnswer | None = None
    ) -> list[float | None]:
        """Answers in order; unknown requests go to the judge once each, in one call."""
        keys = [_key(self.judge, request) for request in requests]
        unknown: dict[str, list[int]] = {}
        answers: list[float | None] = [None] * len(requests)
        for index, (request, key) in enumerate(zip(requests, keys, strict=True)):
            score = self._scores.get(key)
            if score is None:
                unknown.setdefault(key, []).append(index)
                continue
            answers[index] = score
            with self._lock:
                self._hits[request.kind, "cached"] += 1
            if on_answer is not None:
                on_answer(index, score)
        if unknown:
            self._ask_judge(requests, list(unknown.items()), answers, on_answer)
        return answers

    def close(self) -> None:
        """Close the file and, if it can be closed, the judge."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        if hasattr(self.judge, "close"):
            self.judge.close()

    def _ask_judge(self, requests, unknown, answers, on_answer) -> None:
        def keep(position: int, score: float | None) -> None:
            key, indices = unknown[position]
            if score is not None:
                self._store(key, requests[indices[0]], score)
            for index in indices:
                answers[index] = score
                if on_answer is not None:
                    on_answer(index, score)

        try:
            self.judge.ask([requests[indices[0]] for _, indices in unknown], on_answer=keep)
        finally:
            with self._lock:
                os.fsync(self._fd)

    def _store(self, key: str, request: Request, score: float) -> None:
        record = {"key": key, "score": score, "judge": self.name, **request.fields()}
        line = json.dumps(record).encode() + b"\n"
        with self._lock:
            self._scores[key] = score
            with _exclusive(self._fd):
                end = os.fstat(self._fd).st_size
                if end and os.pread(self._fd, 1, end - 1) != b"\n":
                    line = b"\n" + line
                try:
                    written = os.write(self._fd, line)
                except OSError as error:
                    message = f"judge cache: cannot be written: {error.strerror}"
                    raise InputError(message, file=self.path) from None
                if written < len(line):
                    raise InputError("judge cache: disk full", file=self.path)


def _key(judge: CacheableJudge, request: Request) -> str:
    seen = json.dumps(judge.seen(request), sort_keys=True)
    return hashlib.sha256(seen.encode()).hexdigest()


@contextlib.contextmanager
def _exclusive(fd: int) -> Iterator[None]:
    """One writer at a time, where the file system can lock; appends are whole either way."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def _load(path: Path) -> dict[str, float]:
    """Scores by key; damaged lines are skipped. InputError if the file is something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"judge cache: {error.strerror}", file=path) from None
    first = data.split(b"\n", 1)[0]
    if first[: len(_OPENING)] != _OPENING[: len(first)]:
        raise InputError("is not a judge cache; it is left as it is", file=path)
    scores: dict[str, float] = {}
    for line in data.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            record = json.loads(line)
            scores[str(record["key"])] = float(record["score"])
    return scores
