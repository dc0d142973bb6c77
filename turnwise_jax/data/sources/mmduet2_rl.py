"""MMDuet2 RL records: verl's parquet layout and the companion JSON of user turns.

One row is one question about one stretch of video. ``prompt`` holds the given past and the first
user turn that the policy answers; the later user turns stand in ``<stem>-user_turns.json``, which
lists *all* user turns of a question. ``model_pred_timestamps`` are the decision times of the open
turns.

Our addition: a turn may have a sound after its pictures, ``{"type": "audio", "audio":
"clip.mp4#t=0.0,4.0"}`` in seconds. Those of the prompt stand in a column ``audios``, with an
``<audio>`` in its text; files without sound have no such column.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from turnwise_jax.data.records import ClipSpec, Dialogue, Frame, Sound, Turn, is_silent
from turnwise_jax.data.sources.fields import (
    Fields,
    UserTurn,
    answer_entries,
    check_writable,
    image_reference,
    sound_reference,
    user_content,
)
from turnwise_jax.errors import InputError
from turnwise_jax.files import replacing

PATTERN = "*.parquet"  # what its files are called
_TRUTH = "reward_model.ground_truth"
_TIMES = f"{_TRUTH}.model_pred_timestamps"
_HISTORY = "prev_assistant_replies"

_SECONDS = pa.list_(pa.float64())
_QUESTION = {"question_id": pa.string()}


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


_MESSAGE = _struct(role=pa.string(), content=pa.string(), last_image_time=pa.float64())
_ANSWER = _struct(
    role=pa.string(),
    content=pa.string(),
    question=pa.string(),
    reply_timespan=_SECONDS,
    related_timespan=_SECONDS,
)
_GROUND_TRUTH = _struct(
    answer=pa.list_(_ANSWER),
    model_pred_timestamps=_SECONDS,
    **_QUESTION,
    prev_assistant_replies=pa.list_(pa.string()),
)
_PROVIDER = _struct(online_video_provider=_struct(execute_kwargs=_struct(**_QUESTION)))
SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "ability": pa.string(),
        "prompt": pa.list_(_MESSAGE),
        "images": pa.list_(_struct(type=pa.string(), image=pa.string())),
        "reward_model": _struct(style=pa.string(), ground_truth=_GROUND_TRUTH),
        "extra_info": _struct(num_images=pa.int64(), **_QUESTION, tools_kwargs=_PROVIDER),
    }
)

_SOUNDS = pa.field("audios", pa.list_(_struct(type=pa.string(), audio=pa.string())))


def user_turns_path(path: str | os.PathLike[str]) -> Path:
    """Where the companion JSON of a parquet file lies."""
    return Path(path).with_name(f"{Path(path).stem}-user_turns.json")


def rows(
    path: str | os.PathLike[str], *, user_turns: str | os.PathLike[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Raw rows, each with the companion's list for its question under the key ``user_turns``.

    Args:
      user_turns: the companion JSON; ``<stem>-user_turns.json`` beside the parquet if None.

    Raises:
      InputError: either file is missing or unreadable.
    """
    companion = Path(user_turns) if user_turns is not None else user_turns_path(path)
    by_question = _read_user_turns(companion)
    index = 0
    try:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    question = _question_id(row)
                    name = question if isinstance(question, str) else f"row {index}"
                    yield (
                        name,
                        {
                            **row,
                            "user_turns": by_question.get(name),
                            "user_turns_file": str(companion),
                        },
                    )
                    index += 1
    except FileNotFoundError as error:
        raise InputError("no such file", file=path) from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not readable as parquet: {error}", file=path) from error


def parse(
    name: str,
    row: dict[str, Any],
    *,
    file: str,
    root: str | os.PathLike[str],
    clip: ClipSpec | None = None,
) -> Dialogue:
    """One row as a dialogue: given turns with replies, then the open ones.

    Raises:
      InputError: names file, record and field.
    """
    fields = Fields(file, name)
    truth = fields.mapping(
        fields.mapping(row.get("reward_model"), "reward_model").get("ground_truth"), _TRUTH
    )
    question = _checked_question(fields, row, truth)
    images = [
        fields.frame(fields.mapping(raw, at).get("image"), f"{at}.image", root)
        for index, raw in enumerate(fields.sequence(row.get("images") or [], "images"))
        for at in [f"images[{index}]"]
    ]
    sounds = [
        fields.sound(fields.mapping(raw, at).get("audio"), f"{at}.audio", root)
        for index, raw in enumerate(fields.sequence(row.get("audios") or [], "audios"))
        for at in [f"audios[{index}]"]
    ]
    system, users, replies = fields.conversation(
        row.get("prompt"), "prompt", images, sounds, last="user"
    )
    first_open = len(users) - 1
    users += _later_turns(fields, row, users, root)
    times = fields.times(truth.get("model_pred_timestamps"), _TIMES)
    if len(times) != len(users) - first_open:
        fields.fail(_TIMES, f"has {len(times)} times for {len(users) - first_open} open turns")
    past = _past_times(fields, row["prompt"], users, times)
    turns = tuple(
        Turn(user.frames, user.text, time, reply, audio=user.sound)
        for user, time, reply in zip(
            users, [*past, *times], [*replies, *[None] * len(times)], strict=True
        )
    )
    windows = fields.windows(truth.get("answer"), f"{_TRUTH}.answer")
    history = _given_history(fields, row, truth, replies)
    return Dialogue(question, turns, windows, system, history, file)


def write(
    dialogues: Iterable[Dialogue], path: str | os.PathLike[str], *, root: str | os.PathLike[str]
) -> None:
    """Writes a parquet file in ``SCHEMA`` and its companion JSON, each replaced in one go.

    Raises:
      InputError: a dialogue that the format cannot hold.
    """
    path = Path(path)
    records, companion = [], {}
    for dialogue in dialogues:
        if dialogue.id in companion:
            raise InputError("two dialogues have this id", file=path, record=dialogue.id)
        records.append(_row(dialogue, path, root))
        companion[dialogue.id] = [
            {"content": _content_items(turn, root)} for turn in dialogue.turns
        ]
    heard = any(record[_SOUNDS.name] for record in records)
    schema = SCHEMA.append(_SOUNDS) if heard else SCHEMA
    for target, save in (
        (user_turns_path(path), lambda p: p.write_text(json.dumps(companion), encoding="utf-8")),
        (path, lambda p: pq.write_table(pa.Table.from_pylist(records, schema=schema), p)),
    ):
        with replacing(target) as partial:
            save(partial)


def _read_user_turns(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError("no such file (the user turns beside the parquet)", file=path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"not readable as JSON: {error}", file=path) from error
    if not isinstance(raw, dict):
        raise InputError("must map question ids to lists of user turns", file=path)
    return raw


def _question_id(row: dict[str, Any]) -> Any:
    """The question id from either of its places, a whole number as text; None if neither has one.

    Anything else is given as it is.
    """
    for keys in (("reward_model", "ground_truth", "question_id"), ("extra_info", "question_id")):
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        value = _as_text(value)
        if value:
            return value
    return None


def _as_text(identity: Any) -> Any:
    """Whole numbers as text: JSON has no other keys, so the companion names them so."""
    whole = isinstance(identity, int) and not isinstance(identity, bool)
    return str(identity) if whole else identity


def _checked_question(fields: Fields, row: dict[str, Any], truth: dict[str, Any]) -> str:
    question = fields.text(_question_id(row), f"{_TRUTH}.question_id")
    extra = fields.mapping(row.get("extra_info") or {}, "extra_info")
    other = _as_text(extra.get("question_id"))
    if other not in (None, question):
        fields.fail(
            "extra_info.question_id", f"is {other!r}, but {_TRUTH}.question_id is {question!r}"
        )
    return question


def _later_turns(
    fields: Fields,
    row: dict[str, Any],
    users: Sequence[UserTurn],
    root: str | os.PathLike[str],
) -> list[UserTurn]:
    """User turns after those of the prompt, from the companion's list of all of them."""
    listed = row.get("user_turns")
    if listed is None:
        fields.fail("user_turns", f"{row.get('user_turns_file')} has no such question id")
    turns = [
        _user_items(fields, raw, f"user_turns[{index}]", root)
        for index, raw in enumerate(fields.sequence(listed, "user_turns"))
    ]
    if len(turns) < len(users):
        fields.fail("user_turns", f"lists {len(turns)} turns, the prompt alone has {len(users)}")
    for index, (own, other) in enumerate(zip(users, turns, strict=False)):
        if len(own.frames) != len(other.frames):
            fields.fail(
                f"user_turns[{index}].content",
                f"has {len(other.frames)} pictures, the same turn of the prompt {len(own.frames)}",
            )
        if own.sound != other.sound:
            fields.fail(f"user_turns[{index}].content", "has another sound than the prompt's turn")
    return turns[len(users) :]


def _user_items(fields: Fields, raw: Any, at: str, root: str | os.PathLike[str]) -> UserTurn:
    """A turn from ``{content: [{type: image, image}, ..., {type: audio, audio}, {type: text,
    text}]}``, the kinds in this order, at most one sound."""
    frames: list[Frame] = []
    sound: Sound | None = None
    texts: list[str] = []
    content = fields.mapping(raw, at).get("content")
    for index, item in enumerate(fields.sequence(content, f"{at}.content")):
        where = f"{at}.content[{index}]"
        kind = fields.mapping(item, where).get("type")
        if kind == "text":
            texts.append(fields.text(item.get("text"), f"{where}.text"))
        elif kind == "image" and not texts and sound is None:
            frames.append(fields.frame(item.get("image"), f"{where}.image", root))
        elif kind == "image":
            fields.fail(where, "a picture after text; the pictures of a turn come first")
        elif kind == "audio" and not texts and sound is None:
            sound = fields.sound(item.get("audio"), f"{where}.audio", root)
        elif kind == "audio":
            fields.fail(where, "a turn has at most one sound, before its text")
        else:
            fields.fail(f"{where}.type", f"must be 'image', 'audio' or 'text', got {kind!r}")
    return UserTurn(tuple(frames), "".join(texts), sound)


def _past_times(
    fields: Fields,
    prompt: Sequence[dict[str, Any]],
    users: Sequence[UserTurn],
    open_times: Sequence[float],
) -> list[float]:
    """Times of the given turns: ``last_image_time``, else counted back by frames from the next.

    The interval between frames is that of the open turns; with one open turn it is the mean from
    the start of the video.
    """
    asked = [(i, m) for i, m in enumerate(prompt) if m["role"] == "user"][:-1]
    counts = [len(user.frames) for user in users]
    count = len(asked)
    later, shown = sum(counts[count + 1 :]), sum(counts[: count + 1])
    interval = (open_times[-1] - open_times[0]) / later if later else open_times[0] / max(shown, 1)
    times = [0.0] * count
    following = open_times[0]
    for index in reversed(range(count)):
        where, message = asked[index]
        given = message.get("last_image_time")
        if given is None:
            following = max(0.0, following - interval * counts[index + 1])
        else:
            field = f"prompt[{where}].last_image_time"
            given = fields.number(given, field)
            if not 0 <= given <= following:
                fields.fail(field, f"{given:g} s does not lie between 0 and {following:g} s")
            following = given
        times[index] = following
    return times


def _given_history(
    fields: Fields, row: dict[str, Any], truth: dict[str, Any], replies: Sequence[str]
) -> tuple[str, ...]:
    """Earlier replies from the place that has some; without either place, the prompt's own."""
    given = [
        fields.texts(holder[_HISTORY], f"{at}.{_HISTORY}")
        for holder, at in ((truth, _TRUTH), (row["reward_model"], "reward_model"))
        if holder.get(_HISTORY) is not None
    ]
    if given:  # a table's writer may fill the unused place with an empty list
        return next((replies for replies in given if replies), ())
    return tuple(reply.strip() for reply in replies if not is_silent(reply))


def _row(dialogue: Dialogue, path: Path, root: str | os.PathLike[str]) -> dict[str, Any]:
    first = dialogue.first_open
    fields = Fields(str(path), dialogue.id)
    if not dialogue.open_turns:
        fields.fail("turns", "this format needs at least one turn left to the policy")
    prompt = []
    if dialogue.system is not None:
        prompt.append({"role": "system", "content": dialogue.system})
    check_writable(fields, dialogue.turns)
    for index, turn in enumerate(dialogue.turns):
        if index <= first:
            content = user_content(turn)
            prompt.append({"role": "user", "content": content, "last_image_time": turn.time})
        if index < first:
            prompt.append({"role": "assistant", "content": turn.reply})
    shown = dialogue.turns[: first + 1]
    frames = [frame for turn in shown for frame in turn.frames]
    sounds = [turn.audio for turn in shown if turn.audio is not None]
    question = {"question_id": dialogue.id}
    return {
        "data_source": "mmduet2",
        "ability": "proactive",
        "prompt": prompt,
        "images": [{"type": "image", "image": image_reference(f, root)} for f in frames],
        "reward_model": {
            "style": "rule",
            "ground_truth": {
                "answer": answer_entries(dialogue.windows),
                "model_pred_timestamps": [turn.time for turn in dialogue.open_turns],
                "question_id": dialogue.id,
                _HISTORY: list(dialogue.history),
            },
        },
        _SOUNDS.name: [{"type": "audio", "audio": sound_reference(s, root)} for s in sounds],
        "extra_info": {
            "num_images": len(frames),
            "question_id": dialogue.id,
            "tools_kwargs": {"online_video_provider": {"execute_kwargs": question}},
        },
    }


def _content_items(turn: Turn, root: str | os.PathLike[str]) -> list[dict[str, str]]:
    items = [{"type": "image", "image": image_reference(f, root)} for f in turn.frames]
    if turn.audio is not None:
        items.append({"type": "audio", "audio": sound_reference(turn.audio, root)})
    return [*items, {"type": "text", "text": turn.text}] if turn.text else items
