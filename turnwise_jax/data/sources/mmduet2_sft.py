"""MMDuet2 SFT records: JSON lines of chat messages with ``<image>`` placeholders, all answered.

The format has no times. Ours are kept under ``metadata.times``; without them a turn's time is
that of its last ``#t=`` picture, else two seconds for every picture shown so far (the recipe's
interval).

A turn may have a sound: ``<audio>`` after its pictures, and in ``audios`` an entry ``{"path":
"clip.mp4#t=0.0,4.0"}`` in seconds. Records without ``audios`` may have ``<audio>`` in their text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue, Frame, Turn
from turnwise_jax.data.sources.fields import (
    Fields,
    answer_entries,
    check_writable,
    image_reference,
    sound_reference,
    user_content,
)
from turnwise_jax.data.sources.json_lines import UNREADABLE, read_rows, write_rows
from turnwise_jax.errors import InputError

PATTERN = "*.jsonl"  # what its files are called
SECONDS_PER_FRAME = 2.0


def rows(
    path: str | os.PathLike[str], *, user_turns: str | os.PathLike[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, one for each line that is not blank.

    A line that is not a JSON object comes as ``{UNREADABLE: reason}``, which ``parse`` refuses.

    Raises:
      InputError: the file is missing or not text, or ``user_turns`` is given, which this format
        does not have.
    """
    if user_turns is not None:
        raise InputError("this format has no file of user turns", file=user_turns)
    return read_rows(path, _question_id)


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: str | os.PathLike[str],
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One record as a dialogue in which every turn has its reply.

    Raises:
      InputError: names file, record and field.
    """
    fields = Fields(file, name)
    if UNREADABLE in row:
        raise InputError(row[UNREADABLE], file=file, record=name)
    images = [
        fields.frame(raw.get("path") if isinstance(raw, dict) else raw, f"images[{index}]", root)
        for index, raw in enumerate(fields.sequence(row.get("images") or [], "images"))
    ]
    sounds = [
        fields.sound(raw.get("path") if isinstance(raw, dict) else raw, f"audios[{index}]", root)
        for index, raw in enumerate(fields.sequence(row.get("audios") or [], "audios"))
    ]
    system, users, replies = fields.conversation(
        row.get("messages"), "messages", images, sounds, last="assistant"
    )
    metadata = fields.mapping(row.get("metadata") or {}, "metadata")
    times = _times(fields, metadata.get("times"), [user.frames for user in users])
    turns = tuple(
        Turn(user.frames, user.text, time, reply, audio=user.sound)
        for user, time, reply in zip(users, times, replies, strict=True)
    )
    windows = fields.windows(metadata.get("answer") or [], "metadata.answer")
    history = fields.texts(
        metadata.get("prev_assistant_replies") or [], "metadata.prev_assistant_replies"
    )
    return Dialogue(name, turns, windows, system, history, file)


def write(
    dialogues: Iterable[Dialogue], path: str | os.PathLike[str], *, root: str | os.PathLike[str]
) -> None:
    """Writes JSON lines, replaced in one go; times, windows and history go under ``metadata``.

    Raises:
      InputError: a dialogue with an open turn, or that the format cannot hold.
    """
    write_rows((_row(dialogue, Path(path), root) for dialogue in dialogues), path)


def _question_id(row: dict[str, Any]) -> Any:
    metadata = row.get("metadata")
    return metadata.get("question_id") if isinstance(metadata, dict) else None


def _times(fields: Fields, given: Any, frames: Sequence[Sequence[Frame]]) -> list[float]:
    """Times of all turns: as given, else from the pictures, else counted."""
    if given is not None:
        times = fields.times(given, "metadata.times")
        if len(times) != len(frames):
            fields.fail("metadata.times", f"has {len(times)} times for {len(frames)} turns")
        return times
    times, shown, now = [], 0, 0.0
    for pictures in frames:
        shown += len(pictures)
        if pictures:
            last = pictures[-1].second
            now = max(now, SECONDS_PER_FRAME * shown if last is None else last)
        times.append(now)
    return times


def _row(dialogue: Dialogue, path: Path, root: str | os.PathLike[str]) -> dict[str, Any]:
    fields = Fields(str(path), dialogue.id)
    if dialogue.open_turns or not dialogue.turns:
        fields.fail("turns", "this format needs a reply to every turn")
    messages = []
    if dialogue.system is not None:
        messages.append({"role": "system", "content": dialogue.system})
    check_writable(fields, dialogue.turns)
    for turn in dialogue.turns:
        messages.append({"role": "user", "content": user_content(turn)})
        messages.append({"role": "assistant", "content": turn.reply})
    frames = [frame for turn in dialogue.turns for frame in turn.frames]
    metadata = {
        "question_id": dialogue.id,
        "video_id": Path(frames[0].path).stem if frames else None,
        "times": [turn.time for turn in dialogue.turns],
        "answer": answer_entries(dialogue.windows),
        "prev_assistant_replies": list(dialogue.history),
    }
    images = [{"path": image_reference(frame, root)} for frame in frames]
    row = {"messages": messages, "images": images, "metadata": metadata}
    sounds = [turn.audio for turn in dialogue.turns if turn.audio is not None]
    if sounds:
        row["audios"] = [{"path": sound_reference(sound, root)} for sound in sounds]
    return row
