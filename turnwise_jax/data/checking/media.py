"""Media files of dialogues: there or not, readable or not, long enough or not.

Every file is opened once, however many records show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from turnwise_jax.data.checking.problems import Problem
from turnwise_jax.data.records import Dialogue
from turnwise_jax.data.tracks import track_seconds
from turnwise_jax.data.video import VideoInfo, image_size, probe, read_frames, read_image
from turnwise_jax.errors import InputError

_MISSING = "no such file"


class Use(NamedTuple):
    """How a dialogue uses a file: as "video", "image" or "sound", up to ``until`` seconds."""

    path: str
    kind: str
    until: float
    field: str


class MediaFiles:
    """The files met so far.

    ``bad`` maps the kind of a problem to the files that have it, ``used`` a kind of use ("video",
    "image", "sound") to the files used so.
    """

    def __init__(self, decode: bool = False):
        """``decode``: read the last frame that each record shows of a video, and whole images."""
        self.bad: dict[str, set[str]] = {}
        self.used: dict[str, set[str]] = {"video": set(), "image": set(), "sound": set()}
        self._decode = decode
        self._opened: dict[tuple[str, str], VideoInfo | InputError | None] = {}
        self._reached: dict[str, float] = {}

    def problems(self, dialogue: Dialogue) -> list[Problem]:
        """What is wrong with the files of one dialogue: the first of each kind."""
        first: dict[str, Problem] = {}
        times: Counter[str] = Counter()
        for problem in self._problems(dialogue):
            first.setdefault(problem.kind, problem)
            times[problem.kind] += 1
        return [
            problem._replace(message=f"{problem.message} (and {times[kind] - 1} more)")
            if times[kind] > 1
            else problem
            for kind, problem in first.items()
        ]

    def seconds(self, path: str) -> float | None:
        """How long a video lasts that has been opened; None of all else."""
        opened = self._opened.get((path, "video"))
        return opened.duration if isinstance(opened, VideoInfo) else None

    def problem(self, record: str, field: str, path: str, error: InputError) -> Problem:
        """A file that could not be opened."""
        kind = "missing_media" if error.message == _MISSING else "broken_media"
        self.bad.setdefault(kind, set()).add(path)
        return Problem(record, kind, field, f"{path}: {error.message}")

    def _problems(self, dialogue: Dialogue) -> Iterator[Problem]:
        for use in uses(dialogue):
            self.used[use.kind].add(use.path)
            opened = self._open(use)
            if isinstance(opened, InputError):
                yield self.problem(dialogue.id, use.field, use.path, opened)
            elif use.kind == "video":
                yield from self._reaches(dialogue, use, opened)

    def _open(self, use: Use) -> VideoInfo | InputError | None:
        key = use.path, use.kind
        if key not in self._opened:
            try:
                self._opened[key] = self._read(use)
            except InputError as error:
                self._opened[key] = error
        return self._opened[key]

    def _read(self, use: Use) -> VideoInfo | None:
        if use.kind == "video":
            return probe(use.path)
        if use.kind == "sound":
            track_seconds(use.path)
        elif self._decode:
            read_image(use.path)
        else:
            image_size(use.path)
        return None

    def _reaches(self, dialogue: Dialogue, use: Use, info: VideoInfo) -> Iterator[Problem]:
        """Whether a video has a frame at the last time that a dialogue shows."""
        if use.until > info.duration + 1.5 / info.fps:
            message = f"{use.path}: shows {use.until:g} s, the video ends at {info.duration:.2f} s"
            self.bad.setdefault("no_such_frame", set()).add(use.path)
            yield Problem(dialogue.id, "no_such_frame", use.field, message)
        elif self._decode and use.until > self._reached.get(use.path, -1.0):
            try:
                read_frames(use.path, [use.until])
                self._reached[use.path] = use.until
            except InputError as error:
                yield self.problem(dialogue.id, use.field, use.path, error)


def uses(dialogue: Dialogue) -> list[Use]:
    """The files of a dialogue, each once for each kind of use, with its last second in use."""
    found: dict[tuple[str, str], Use] = {}

    def use(path: str, kind: str, until: float, field: str) -> None:
        known = found.get((path, kind))
        if known is None or until > known.until:
            found[path, kind] = Use(path, kind, until, field)

    for number, turn in enumerate(dialogue.turns):
        for place, frame in enumerate(turn.frames):
            kind = "image" if frame.time is None else "video"
            use(frame.path, kind, frame.time or 0.0, f"turns[{number}].frames[{place}]")
        if turn.audio is not None:
            use(turn.audio.path, "sound", turn.audio.end, f"turns[{number}].audio")
    return list(found.values())
