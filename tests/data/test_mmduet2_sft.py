"""MMDuet2 SFT records: JSON lines in which every turn is answered."""

from __future__ import annotations

import copy
import json

import pytest

from turnwise_jax.data.records import Dialogue, Frame, Turn, Window
from turnwise_jax.data.sources import mmduet2_sft
from turnwise_jax.errors import InputError

ROW = {
    "messages": [
        {"role": "system", "content": "Watch."},
        {"role": "user", "content": "<image><image>What is he doing?"},
        {"role": "assistant", "content": "NO REPLY"},
        {"role": "user", "content": "<image>"},
        {"role": "assistant", "content": "He cuts an onion."},
    ],
    "images": [{"path": f"v1/{i:06d}.jpg"} for i in (1, 2, 3)],
    "metadata": {"question_id": "q7", "video_id": "v1"},
}


def parse(row, name="q7") -> Dialogue:
    return mmduet2_sft.parse(name, row, file="sft.jsonl", root="/root")


def changed(path: str, value):
    row = copy.deepcopy(ROW)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = row
    for key in parents:
        place = place[key]
    place[last] = value
    return row


def test_a_record_is_read_whole():
    frames = [Frame(f"/root/v1/{i:06d}.jpg") for i in (1, 2, 3)]
    assert parse(ROW) == Dialogue(
        "q7",
        (
            Turn((frames[0], frames[1]), "What is he doing?", 4.0, "NO REPLY"),
            Turn((frames[2],), "", 6.0, "He cuts an onion."),
        ),
        system="Watch.",
    )


def test_pictures_may_be_plain_paths():
    row = changed("images", [f"v1/{i:06d}.jpg" for i in (1, 2, 3)])
    assert parse(row) == parse(ROW)


@pytest.mark.parametrize("name", ["a.mp4", "a/7.jpg"])
def test_the_time_of_a_turn_is_that_of_its_last_video_frame(name):
    row = changed("images", [f"{name}#t={t}" for t in (0, 1.5, 3)])
    assert [turn.time for turn in parse(row).turns] == [1.5, 3.0]


def test_without_metadata_the_line_names_the_record():
    row = changed("metadata", None)
    assert parse(row, "line 3").id == "line 3"


BAD = [
    ("messages", None, "messages", "must be a list"),
    ("messages", ROW["messages"][:4], "messages", "must end with a message of the assistant"),
    ("messages", ROW["messages"][:1], "messages", "must end with a message of the assistant"),
    ("messages.2.role", "user", "messages[2].role", "must be 'assistant' here"),
    ("messages.3.content", "<image><image>", "images", "has 2 <image>s, 1 pictures left"),
    ("messages.3.content", "", "images", "holds 3 pictures for 2 <image>s in messages"),
    ("messages.4.content", None, "messages[4].content", "must be text"),
    ("images.0", {"path": 3}, "images[0]", "must be text, got 3"),
    ("metadata", [1], "metadata", "must be a mapping"),
    ("metadata.times", [1.0], "metadata.times", "has 1 times for 2 turns"),
    ("metadata.times", [2.0, 1.0], "metadata.times[1]", "goes back in time"),
    (
        "metadata.answer",
        [{"content": "a", "question": "b", "reply_timespan": [2, 1]}],
        "metadata.answer[0].reply_timespan",
        "ends at 1 s, before it starts at 2 s",
    ),
    ("metadata.prev_assistant_replies", "x", "metadata.prev_assistant_replies", "must be a list"),
]


@pytest.mark.parametrize(("path", "value", "field", "message"), BAD)
def test_a_bad_record_is_one_line_with_file_record_and_field(path, value, field, message):
    with pytest.raises(InputError, match=message) as caught:
        parse(changed(path, value))
    error = caught.value
    assert (error.file, error.record, error.field) == ("sft.jsonl", "q7", field)


def test_what_is_written_is_read_back_exactly(tmp_path):
    turns = (
        Turn((Frame(f"{tmp_path}/a.mp4", 1 / 3), Frame("/b.jpg")), "What?\n", 0.5, " Yes"),
        Turn((Frame("/c/1.PNG", shown=0.25),), " and ", 0.5, "NO REPLY"),
        Turn((Frame(f"{tmp_path}/a.mp4", 2.0),), "", 7.25, "\u00e9\u2028 done"),
    )
    windows = (Window(0.1, 2.0, "q", "a"), Window(3.0, 3.0, "q", "b", 2.5))
    dialogues = [
        Dialogue("one", turns, windows, "S", ("Earlier.",)),
        Dialogue("two", (Turn((), "Hi", 0.0, "Hello"),)),
    ]
    path = tmp_path / "deep" / "sft.jsonl"
    mmduet2_sft.write(dialogues, path, root=tmp_path)
    rows = list(mmduet2_sft.rows(path))
    assert [name for name, _ in rows] == ["one", "two"]
    read = [mmduet2_sft.parse(n, row, file=str(path), root=tmp_path) for n, row in rows]
    assert read == dialogues
    assert [p.name for p in path.parent.iterdir()] == ["sft.jsonl"]


def test_the_written_lines_have_the_public_layout(tmp_path):
    mmduet2_sft.write([parse(ROW)], tmp_path / "a.jsonl", root="/root")
    line = json.loads((tmp_path / "a.jsonl").read_text())
    assert line["messages"] == ROW["messages"]
    assert line["images"] == ROW["images"]
    assert line["metadata"]["question_id"] == "q7"


@pytest.mark.parametrize(
    ("dialogue", "message"),
    [
        (Dialogue("a", (Turn((), "x", 0.0),)), "needs a reply to every turn"),
        (Dialogue("a", ()), "needs a reply to every turn"),
        (Dialogue("a", (Turn((), "see <image>", 0.0, "y"),)), "no text <image>"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(tmp_path, dialogue, message):
    with pytest.raises(InputError, match=message):
        mmduet2_sft.write([dialogue], tmp_path / "a.jsonl", root=tmp_path)
    assert not (tmp_path / "a.jsonl").exists()


def test_lines_that_are_no_records_are_named_and_the_others_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(["{broken", "", json.dumps(ROW), "[1]"]))
    rows = list(mmduet2_sft.rows(path))
    assert [name for name, _ in rows] == ["line 1", "q7", "line 4"]
    for index, message in ((0, "'line 1': not JSON"), (2, "'line 4': not a JSON object")):
        with pytest.raises(InputError, match=message):
            mmduet2_sft.parse(*rows[index], file=str(path), root=tmp_path)


def test_files_that_cannot_be_read_are_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"none.jsonl: no such file"):
        list(mmduet2_sft.rows(tmp_path / "none.jsonl"))
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"a.jsonl: not readable as text"):
        list(mmduet2_sft.rows(tmp_path / "a.jsonl"))
    with pytest.raises(InputError, match="has no file of user turns"):
        list(mmduet2_sft.rows(tmp_path / "a.jsonl", user_turns="x.json"))
