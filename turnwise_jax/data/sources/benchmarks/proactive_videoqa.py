"""ProactiveVideoQA: streamed videos with reply windows, in four subsets.

Read in jxb1st/proactivevideoqa-viewer, ``{EGO,TV,VAD,WEB}/anno.json`` (commit a088700), in
MCG-NJU/OneStreamer, ``Eval/VLMEvalKit/vlmeval/dataset/proactive_videoqa.py`` (f0a610b), and in
PINTO0309/MMDuet2, ``proactive_eval/`` (cd3854d). ``<SUBSET>/anno.json`` is a list of::

    {"video": "x.mp4", "question_id": "x.mp4%Q0", "duration": 27.7,
     "conversation": [{"role": "user", "content": "What ...?", "time": 0},
                      {"role": "user", "content": "Subtitle: (House:)No.", "time": 22.3}],
     "answer": [{"role": "assistant", "content": "...", "related_timespan": [3.1, 5.0],
                 "reply_timespan": [3.1, 6.0]}]}

Give the benchmark's folder as ``data.path`` to read all four subsets at once, or one file. MMDuet2
has two views of the same records: ``<subset>-proactivevideoqa_format.json`` is read likewise, for
``<subset>-frame_input_format.json``, with extracted pictures, see ``proactive_frames``.

The first entry of the conversation is the question, which every window keeps: it is what the
benchmark shows its judge. Later entries (subtitles, in TV) are user texts in the turn that hears
them. The video is streamed to its end, past the last window: the benchmark's score does not depend
on what is said there, the repetition rate does. Windows that end after ``duration`` (without it:
after the video) are cut there; one that starts after the end of the video is refused.

Media: ``<SUBSET>/videos/<video>``, or ``videos/<video>``. ``target.subset``: EGO, TV, VAD or WEB,
from the folder's or the file's name, else from the fields that only one subset has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.data.clip import Question as Said
from turnwise_jax.data.records import ClipSpec, Dialogue, Target, Window
from turnwise_jax.data.sources.benchmarks import common, online, proactive_frames
from turnwise_jax.data.sources.fields import Fields

PATTERN = "*/anno.json"
SUBSETS = ("EGO", "TV", "VAD", "WEB")


def rows(
    path: common.FilePath, *, user_turns: common.FilePath | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``question_id``; ``user_turns``: see ``proactive_frames``."""
    if proactive_frames.is_view(path):
        yield from proactive_frames.rows(path, annotations=user_turns)
        return
    for number, row in enumerate(common.records(path, user_turns)):
        yield common.name_of(row.get("question_id"), f"question {number}"), row


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: common.FilePath,
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One question as open turns over its video.

    Raises:
      InputError: names file, record and field.
    """
    fields = common.checked(file, name, row)
    if proactive_frames.is_view(file):
        shown = proactive_frames.turns(fields, row, root=root, clip=clip)
        row = fields.mapping(row.get("annotation"), "annotation")
        said = _conversation(fields, row)
        # the last pictures may leave out a rest of the video
        length = shown[-1].time if row.get("duration") is None else math.inf
    else:
        said = _conversation(fields, row)
        video = common.asked(fields, row.get("video"), "video")
        folders = [f"{_subset(file, row)}/videos", "videos", ""]
        path = online.below(root, [str(Path(folder, video)) for folder in folders])
        length = online.video_info(fields, path, "video").duration
        shown = online.stream(fields, path, "video", said, start=0.0, end=length, clip=clip)
        if said[0].time >= shown[-1].time:
            fields.fail("conversation[0].time", f"the last turn ends at {shown[-1].time:g} s")
    return Dialogue(
        name,
        shown,
        _windows(fields, row, said[0].text, length),
        file=file,
        target=Target(_subset(file, row)),
    )


def _conversation(fields: Fields, row: dict[str, Any]) -> list[Said]:
    """What the user says, the question first."""
    said = []
    for index, raw in enumerate(fields.sequence(row.get("conversation"), "conversation")):
        at = f"conversation[{index}]"
        entry = fields.mapping(raw, at)
        if entry.get("role") != "user":
            fields.fail(f"{at}.role", f"must be 'user', got {entry.get('role')!r}")
        if said and entry.get("content") in (None, ""):
            continue  # a subtitle line without text, which the public script passes over as well
        said.append(
            Said(
                common.asked(fields, entry.get("content"), f"{at}.content"),
                online.seconds(fields, entry.get("time"), f"{at}.time"),
            )
        )
    if not said:
        fields.fail("conversation", "holds no question")
    return said


def _windows(
    fields: Fields, row: dict[str, Any], question: str, length: float
) -> tuple[Window, ...]:
    """The reply windows, cut at the annotated end of the video; ``length``: that of the file."""
    end = length
    if row.get("duration") is not None:
        end = online.seconds(fields, row["duration"], "duration")
    windows = []
    for index, raw in enumerate(fields.sequence(row.get("answer"), "answer")):
        at = f"answer[{index}]"
        entry = fields.mapping(raw, at)
        start, stop = _span(fields, entry.get("reply_timespan"), f"{at}.reply_timespan")
        if start >= min(end, length):
            ends = f"the video ends at {min(end, length):.2f} s"
            fields.fail(f"{at}.reply_timespan", f"starts at {start:g} s, but {ends}")
        event = entry.get("related_timespan")
        event_end = None
        if event is not None:
            event_end = min(_span(fields, event, f"{at}.related_timespan")[1], end)
        answer = common.asked(fields, entry.get("content"), f"{at}.content")
        windows.append(Window(start, min(stop, end), question, answer, event_end))
    return tuple(windows)


def _span(fields: Fields, value: Any, field: str) -> tuple[float, float]:
    """[start, end] of numbers or clock times, from 0 on."""
    times: Sequence[Any] = fields.sequence(value, field)
    numbers = [online.seconds(fields, time, f"{field}[{i}]") for i, time in enumerate(times)]
    return fields.span(numbers, field)


def _subset(file: common.FilePath, row: dict[str, Any]) -> str:
    """The subset's name: of the folder, of the file, else by the fields that only it has."""
    for name in (Path(file).parent.name, Path(file).name.split("-")[0]):
        if name.upper() in SUBSETS:
            return name.upper()
    listed = row.get("answer") if isinstance(row.get("answer"), list) else []
    answers = [entry for entry in listed if isinstance(entry, dict)]
    if "frame" in row or "audio" in row:
        return "TV"
    if any("num_captions" in entry for entry in answers):
        return "VAD"
    return "EGO" if any("type" in entry for entry in answers) else "WEB"
