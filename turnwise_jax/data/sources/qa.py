"""Question answering about clips: JSON lines, one question each. This library's own format.

::

    {"id": "q1", "video": "v.mp4", "start": 0.0, "end": 3.0, "question": "What is red?",
     "options": ["the square", "the disc"], "answer": "B", "kind": "multiple_choice",
     "category": "visual", "audio_cues": "two beeps", "hint": "Look twice."}

Media: ``video``, or a list ``images``, or neither; ``audio`` names a sound file, otherwise a video
is heard with its own track. ``start`` and ``end`` (seconds) choose a part of video and sound; an
end beyond the media is their end. How ``options``, ``answer`` and ``kind`` may be spelled: see
``sources.questions``. ``system`` replaces ``THINK_SYSTEM``; ``response`` makes the record
supervised. Other fields are not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from turnwise_jax.data.records import ClipSpec, Dialogue, Frame, Question, Sound, Turn
from turnwise_jax.data.sources.fields import Fields, image_reference
from turnwise_jax.data.sources.json_lines import UNREADABLE, read_rows, write_rows
from turnwise_jax.data.sources.questions import meant, read_question, user_text, without_letters
from turnwise_jax.data.tracks import track_seconds
from turnwise_jax.data.video import probe
from turnwise_jax.errors import InputError

PATTERN = "*.jsonl"  # what its files are called
THINK_SYSTEM = (
    "Answer the question about what you see and hear. Think first, between <think> and </think>. "
    "Then give only the final answer, between <answer> and </answer>; of options, the letter."
)
_CLOSE = 1e-6  # s; frames nearer than this to an even spread were spread evenly


class Media(NamedTuple):
    """What a question's turn shows and plays; ``time``: seconds at which it ends, 0 for images."""

    frames: tuple[Frame, ...] = ()
    video: bool = False
    sound: Sound | None = None
    time: float = 0.0


def rows(
    path: str | os.PathLike[str], *, user_turns: str | os.PathLike[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``id`` or by their line.

    Raises:
      InputError: the file is missing or not text, or ``user_turns`` is given, which this format
        does not have.
    """
    if user_turns is not None:
        raise InputError("this format has no file of user turns", file=user_turns)
    return read_rows(path, lambda row: row.get("id"))


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: str | os.PathLike[str],
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One record as a dialogue of one turn, open unless the record has a ``response``.

    Media files are opened to learn their lengths. Without ``clip.sound`` nothing is heard.

    Raises:
      InputError: names file, record and field.
    """
    fields = Fields(file, name)
    if UNREADABLE in row:
        raise InputError(row[UNREADABLE], file=file, record=name)
    question = read_question(fields, row)
    system = row.get("system")
    system = THINK_SYSTEM if system is None else fields.text(system, "system")
    reply = None if row.get("response") is None else _reply(fields, row["response"])
    media = read_media(
        fields,
        video=row.get("video"),
        images=row.get("images"),
        audio=row.get("audio"),
        span=(row.get("start"), row.get("end")),
        root=root,
        clip=clip or ClipSpec(),
    )
    return one_turn(name, question, user_text(question), media, system, reply, file)


def one_turn(
    name: str,
    question: Question,
    text: str,
    media: Media,
    system: str | None,
    reply: str | None,
    file: str,
) -> Dialogue:
    """The dialogue of a question: ``text`` is what the user says after the media."""
    turn = Turn(media.frames, text, media.time, reply, media.video, media.sound)
    return Dialogue(name, (turn,), system=system, file=file, question=question)


def spread(start: float, end: float, count: int) -> tuple[float, ...]:
    """The middles of ``count`` equal parts of a clip, seconds."""
    return tuple(start + (index + 0.5) * (end - start) / count for index in range(count))


def read_media(
    fields: Fields,
    *,
    video: Any,
    images: Any,
    audio: Any,
    span: tuple[Any, Any],
    root: str | os.PathLike[str],
    clip: ClipSpec,
    names: Sequence[str] = ("video", "images", "audio"),
) -> Media:
    """Frames and sound from a record's paths, relative ones below ``root``.

    Args:
      video, images, audio: as in the format above; None for none.
      span: raw (start, end).
      names: what the record calls the three, for messages.
    """
    if video is not None and images:
        fields.fail(names[0], f"stands beside {names[1]}; a question is about one or the other")
    if video is not None:
        return _video(fields, video, audio, span, root, clip, names)
    pictures = tuple(
        fields.frame(raw.get("path") if isinstance(raw, dict) else raw, f"{names[1]}[{i}]", root)
        for i, raw in enumerate(fields.sequence(images or [], names[1]))
    )
    if audio is None:
        for name, value in zip(("start", "end"), span, strict=True):
            if value is not None:
                fields.fail(name, "needs a video or a sound that it is a part of")
        return Media(pictures)
    path = _path(fields, audio, names[2], root)
    start, end = _part(fields, span, _length(fields, path, names[2]))
    return Media(pictures, False, Sound(path, start, end), end) if clip.sound else Media(pictures)


def write(
    dialogues: Iterable[Dialogue], path: str | os.PathLike[str], *, root: str | os.PathLike[str]
) -> None:
    """Writes JSON lines, replaced in one go.

    Reading them with the ``ClipSpec`` that the dialogues were read with gives equal dialogues.

    Raises:
      InputError: a dialogue that the format cannot hold.
    """
    write_rows((_row(dialogue, Path(path), root) for dialogue in dialogues), path)


def _reply(fields: Fields, value: Any) -> str:
    if not fields.text(value, "response").strip():
        fields.fail("response", "is empty; leave it out where the policy answers")
    return value


def _video(
    fields: Fields,
    video: Any,
    audio: Any,
    span: tuple[Any, Any],
    root: str | os.PathLike[str],
    clip: ClipSpec,
    names: Sequence[str],
) -> Media:
    """A part of a video as one input, and its sound from its own track or another file."""
    path = _path(fields, video, names[0], root)
    try:
        info = probe(path)
    except InputError as error:
        fields.fail(names[0], f"{path}: {error.message}")
    start, end = _part(fields, span, info.duration)
    count = max(1, min(clip.frames, round((end - start) * info.fps)))
    frames = tuple(Frame(path, time) for time in spread(start, end, count))
    sound = None
    if audio is not None:
        other = _path(fields, audio, names[2], root)
        _length(fields, other, names[2])
        sound = Sound(other, start, end)
    elif info.has_audio:
        sound = Sound(path, start, end)
    return Media(frames, True, sound if clip.sound else None, end)


def _path(fields: Fields, value: Any, field: str, root: str | os.PathLike[str]) -> str:
    text = fields.text(value, field)
    if not text:
        fields.fail(field, "is an empty path")
    return os.path.normpath(os.path.join(root, text))


def _length(fields: Fields, path: str, field: str) -> float:
    """Seconds of a file with sound."""
    try:
        return track_seconds(path)
    except InputError as error:
        fields.fail(field, f"{path}: {error.message}")


def _part(fields: Fields, span: tuple[Any, Any], length: float) -> tuple[float, float]:
    """(start, end) in seconds of media that last ``length``; None stands for their ends."""
    start = 0.0 if span[0] is None else _exact(fields.number(span[0], "start"))
    end = length if span[1] is None else fields.number(span[1], "end")
    if not 0 <= start < length:
        fields.fail("start", f"must lie in the {length:.2f} s of the media, got {start:g}")
    if end <= start:
        fields.fail("end", f"must be after the start at {start:g} s, got {end:g}")
    return start, min(end, length)


def _exact(start: float) -> float:
    """A start in whole microseconds: what can be told again from the times of the frames."""
    return round(start, 6) + 0.0  # no -0.0


def _row(dialogue: Dialogue, path: Path, root: str | os.PathLike[str]) -> dict[str, Any]:
    fields = Fields(str(path), dialogue.id)
    question = dialogue.question
    if question is None or len(dialogue.turns) != 1 or dialogue.windows or dialogue.history:
        fields.fail("turns", "this format holds one turn with a question, no windows, no history")
    turn = dialogue.turns[0]
    if turn.text != user_text(question):
        fields.fail("turns[0].text", "is not the question and its options, one a line")
    if dialogue.system is None:
        fields.fail("system", "this format needs a system text")
    row: dict[str, Any] = {"id": dialogue.id, **_media_row(fields, turn, root)}
    row |= {"question": question.text, **_options_row(question), "kind": question.kind}
    texts = {"category": question.category, "audio_cues": question.sound, "hint": question.hint}
    row |= {name: value for name, value in texts.items() if value}
    if read_question(fields, row) != question:
        fields.fail("question", "has blanks around its texts, which this format does not keep")
    if dialogue.system != THINK_SYSTEM:
        row["system"] = dialogue.system
    if turn.reply is not None:
        row["response"] = _reply(fields, turn.reply)
    return row


def _options_row(question: Question) -> dict[str, Any]:
    """Options and answer such that reading gives them back, whatever they look like."""
    options, answer = question.options, question.answer
    if not options:
        return {"answer": answer}
    letters = dict(zip(ascii_uppercase, options, strict=False))
    if meant(answer, options) != {answer}:
        answer = f"{answer}. {letters.get(answer, '')}"
    looks_lettered = without_letters(options) != options
    return {"options": letters if looks_lettered else list(options), "answer": answer}


def _media_row(fields: Fields, turn: Turn, root: str | os.PathLike[str]) -> dict[str, Any]:
    sound = turn.audio
    row: dict[str, Any] = {}
    if turn.video and turn.frames:
        start = _clip_start(fields, turn)
        row["video"] = image_reference(Frame(turn.frames[0].path), root)
    elif turn.frames:
        row["images"] = [image_reference(frame, root) for frame in turn.frames]
    if sound is None and "video" in row:
        return row | {"start": start, "end": turn.time}
    if sound is None:
        if turn.time:
            fields.fail("turns[0].time", f"must be 0 without video and sound, got {turn.time:g}")
        return row
    if "video" not in row or sound.path != turn.frames[0].path:
        row["audio"] = image_reference(Frame(sound.path), root)
    if sound.end != turn.time or ("video" in row and sound.start != start):
        fields.fail("turns[0].audio", "this format's sound lasts as long as the clip")
    return row | {"start": sound.start, "end": sound.end}


def _clip_start(fields: Fields, turn: Turn) -> float:
    """Where a clip begins whose frames are spread evenly up to the turn's time."""
    times = [frame.time for frame in turn.frames if frame.time is not None]
    paths = {frame.path for frame in turn.frames}
    if len(paths) > 1 or len(times) < len(turn.frames):
        fields.fail("turns[0].frames", "this format's video is one file")
    start = _exact(times[0] + times[-1] - turn.time)
    even = spread(start, turn.time, len(times))
    error = max(abs(time - other) for time, other in zip(times, even, strict=True))
    if error > _CLOSE or not 0 <= start < turn.time:
        fields.fail("turns[0].frames", "are not spread evenly over a clip that ends with the turn")
    return start
