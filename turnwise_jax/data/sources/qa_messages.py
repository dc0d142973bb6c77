"""Question answering as chat messages: the JSON lines that AVATAR's trainer (ms-swift) reads.

::

    {"messages": [{"role": "system", "content": "..."},
                  {"role": "user", "content": "<video>What sounds?\\nA. the disc\\nB. the square"}],
     "videos": ["v.mp4"], "solution": "<answer>B</answer>", "problem_type": "multiple_choice",
     "prompt_id": "q1", "question": "What sounds?", "audio_cues": "a beep", "hint": "Listen."}

``videos``, ``images`` and ``audios`` belong to the tags ``<video>``, ``<image>`` and ``<audio>``,
which stand before the text; media without a tag come first. A last message of the assistant makes
the record supervised. Options are those of a field ``options``, else those that the text lists. The
user's text stays as it is. Otherwise the fields mean what they do in ``sources.qa``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources.fields import Fields
from turnwise_jax.data.sources.json_lines import UNREADABLE, read_rows
from turnwise_jax.data.sources.qa import THINK_SYSTEM, Media, one_turn, read_media
from turnwise_jax.data.sources.questions import bare_letter, options_in, read_kind, read_question
from turnwise_jax.errors import InputError

PATTERN = "*.jsonl"  # what its files are called
_MEDIA = {"video": "videos", "image": "images", "audio": "audios"}
_TAG = re.compile("<(video|image|audio)>")
_ANSWER = re.compile("<answer>(.*?)</answer>", re.DOTALL)


def rows(
    path: str | os.PathLike[str], *, user_turns: str | os.PathLike[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw records, named by ``prompt_id``, else by ``id`` or their line.

    Raises:
      InputError: the file is missing or not text, or ``user_turns`` is given, which this format
        does not have.
    """
    if user_turns is not None:
        raise InputError("this format has no file of user turns", file=user_turns)
    return read_rows(path, lambda row: row.get("prompt_id", row.get("id")))


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: str | os.PathLike[str],
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One record as a dialogue of one turn, see ``sources.qa.parse``.

    Multiple choice without listed options (they may be in the picture) is asked as ``exact``.

    Raises:
      InputError: names file, record and field.
    """
    fields = Fields(file, name)
    if UNREADABLE in row:
        raise InputError(row[UNREADABLE], file=file, record=name)
    system, (content, at), reply = _messages(fields, row.get("messages"))
    text, tags = _split(fields, content, at)
    media = _media(fields, row, tags, root, clip or ClipSpec())
    system = THINK_SYSTEM if system is None else system
    question = read_question(fields, _asked(fields, row, text), answer="solution")
    return one_turn(name, question, text, media, system, reply, file)


def _messages(fields: Fields, raw: Any) -> tuple[str | None, tuple[str, str], str | None]:
    """(system text or None, (user's content, its field), reply or None)."""
    messages = [
        fields.mapping(message, f"messages[{index}]")
        for index, message in enumerate(fields.sequence(raw, "messages"))
    ]
    roles = [message.get("role") for message in messages]
    first = int(roles[:1] == ["system"])
    if roles[first:] not in (["user"], ["user", "assistant"]):
        fields.fail("messages", f"must be one of the user, at most one reply; got {roles}")
    texts = [
        fields.text(message.get("content"), f"messages[{index}].content")
        for index, message in enumerate(messages)
    ]
    reply = texts[first + 1] if len(texts) > first + 1 else None
    if reply is not None and not reply.strip():
        fields.fail(f"messages[{first + 1}].content", "is empty; leave it out for an open turn")
    return texts[0] if first else None, (texts[first], f"messages[{first}].content"), reply


def _split(fields: Fields, content: str, at: str) -> tuple[str, list[str]]:
    """The text after the tags, and the tags' media."""
    tags = list(_TAG.finditer(content))
    end = tags[-1].end() if tags else 0
    if _TAG.sub("", content[:end]).strip():
        fields.fail(at, f"has text before a {tags[-1][0]}; media come first")
    text = content[end:].strip()
    if not text:
        fields.fail(at, "asks nothing")
    return text, [tag[1] for tag in tags]


def _media(
    fields: Fields,
    row: dict[str, Any],
    tags: list[str],
    root: str | os.PathLike[str],
    clip: ClipSpec,
) -> Media:
    """Frames and sound; every tag has its entry."""
    paths = {tag: _paths(fields, row.get(name), name) for tag, name in _MEDIA.items()}
    for tag, name in _MEDIA.items():
        if tags.count(tag) > len(paths[tag]):
            fields.fail(name, f"holds {len(paths[tag])} for {tags.count(tag)} <{tag}>s")
        if tag != "image" and len(paths[tag]) > 1:
            fields.fail(name, f"a turn has at most one {tag}, got {len(paths[tag])}")
    return read_media(
        fields,
        video=next(iter(paths["video"]), None),
        images=paths["image"],
        audio=next(iter(paths["audio"]), None),
        span=(row.get("start"), row.get("end")),
        root=root,
        clip=clip,
        names=("videos[0]", "images", "audios[0]"),
    )


def _paths(fields: Fields, value: Any, name: str) -> list[Any]:
    """Entries of a list of media, of which each is a path or ``{"path": ...}``."""
    if value is None or isinstance(value, str):
        return [value] if value else []
    return [
        raw.get("path") if isinstance(raw, dict) else raw for raw in fields.sequence(value, name)
    ]


def _asked(fields: Fields, row: dict[str, Any], text: str) -> dict[str, Any]:
    """The record with the fields that ``read_question`` reads."""
    kind = read_kind(fields, row)
    truth = _unwrapped(row.get("solution"))
    asked, options = text, row.get("options")
    if not options and kind in (None, "multiple_choice"):
        asked, options = options_in(text)
        options = list(options)
        if kind == "multiple_choice" and not options:
            kind, truth = "exact", bare_letter(truth) or truth
    question = row.get("question") or asked or text
    return {**row, "kind": kind, "solution": truth, "question": question, "options": options}


def _unwrapped(value: Any) -> Any:
    """What stands in the last answer tag of a text, or of each text of a list."""
    if isinstance(value, list):
        return [_unwrapped(entry) for entry in value]
    answers = _ANSWER.findall(value) if isinstance(value, str) else []
    return answers[-1] if answers else value
