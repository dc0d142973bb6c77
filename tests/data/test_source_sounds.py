"""Sounds in the files of dialogues: what is written is read again, what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft
from turnwise_jax.errors import InputError


@pytest.fixture(scope="module")
def dialogue(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    clip, speech = str(root / "v" / "clip.mp4"), "/elsewhere/speech.wav"
    return root, Dialogue(
        "q1",
        (
            Turn((Frame(clip, 2.0),), "Look.", 4.0, "NO REPLY", audio=Sound(clip, 0.0, 4.0)),
            Turn((), "", 5.0, "Yes.", audio=Sound(speech, 1 / 3, 2.5)),
            Turn((Frame(clip, 6.0),), "No sound.", 8.0),
            Turn((Frame(clip, 10.0), Frame(clip, 12.0)), "", 12.0, audio=Sound(clip, 8.0, 12.0)),
            Turn((), "Hear?", 13.0, audio=Sound(clip, 12.0, 12.75)),
        ),
        system="S.",
        history=("Yes.",),
    )


def answered(dialogue: Dialogue) -> Dialogue:
    turns = [turn if turn.reply else replace(turn, reply="NO REPLY") for turn in dialogue.turns]
    return replace(dialogue, turns=tuple(turns))


def test_rl_files_keep_sounds(tmp_path, dialogue):
    root, record = dialogue
    path = tmp_path / "d.parquet"
    mmduet2_rl.write([record], path, root=root)
    assert load_dialogues("mmduet2_rl", path, root=root)[0] == [record]
    row = pq.read_table(path).to_pylist()[0]
    assert row["audios"] == [
        {"type": "audio", "audio": "v/clip.mp4#t=0.0,4.0"},
        {"type": "audio", "audio": f"/elsewhere/speech.wav#t={1 / 3!r},2.5"},
    ]
    assert row["prompt"][1]["content"] == "<image><audio>Look."
    turns = json.loads(mmduet2_rl.user_turns_path(path).read_text())["q1"]
    assert turns[3]["content"][-1] == {"type": "audio", "audio": "v/clip.mp4#t=8.0,12.0"}
    assert [item["type"] for item in turns[4]["content"]] == ["audio", "text"]


def test_sft_files_keep_sounds(tmp_path, dialogue):
    root, record = dialogue
    path = tmp_path / "d.jsonl"
    mmduet2_sft.write([answered(record)], path, root=root)
    assert load_dialogues("mmduet2_sft", path, root=root)[0] == [answered(record)]
    row = json.loads(path.read_text())
    assert row["audios"][0] == {"path": "v/clip.mp4#t=0.0,4.0"}
    assert row["messages"][3]["content"] == "<audio>"


def test_audio_is_ordinary_text_where_a_record_has_no_sounds(tmp_path):
    record = Dialogue("q", (Turn((), "What is <audio>?", 0.0, "A tag."),))
    mmduet2_sft.write([record], tmp_path / "d.jsonl", root=tmp_path)
    assert load_dialogues("mmduet2_sft", tmp_path / "d.jsonl", root=tmp_path)[0] == [record]
    heard = replace(record.turns[0], audio=Sound("a.wav", 0.0, 1.0))
    with pytest.raises(InputError, match=r"turns\[0\].*holds no text <audio>"):
        mmduet2_sft.write([replace(record, turns=(heard,))], tmp_path / "e.jsonl", root=tmp_path)


def sft(content, audios):
    return {
        "messages": [
            {"role": "user", "content": content},
            {"role": "assistant", "content": "NO REPLY"},
        ],
        "images": [{"path": "a.jpg"}] * content.count("<image>"),
        "audios": audios,
    }


@pytest.mark.parametrize(
    ("content", "audios", "message"),
    [
        ("<audio>Hi", ["a.wav"], r"audios\[0\].*needs file#t=start,end in seconds"),
        ("<audio>Hi", ["a.wav#t=4"], r"audios\[0\].*needs file#t=start,end"),
        ("<audio>Hi", ["a.wav#t=4,x"], r"audios\[0\].*needs file#t=start,end"),
        ("<audio>Hi", ["a.wav#t=4,2"], r"audios\[0\].*must rise from 0"),
        ("<audio>Hi", [{"path": 3}], r"audios\[0\].*must be text, got 3"),
        ("Hi", ["a.wav#t=0,1"], "audios.*1 sounds for 0 <audio>s"),
        ("Hi <audio>", ["a.wav#t=0,1"], r"messages\[0\].content.*between pictures and text"),
        ("<audio><audio>", ["a.wav#t=0,1"] * 2, r"messages\[0\].content.*at most one <audio>"),
        ("<audio><image>", ["a.wav#t=0,1"], r"messages\[0\].content.*text before an <image>"),
    ],
)
def test_bad_sounds_are_named(content, audios, message):
    with pytest.raises(InputError, match=message) as caught:
        mmduet2_sft.parse("r7", sft(content, audios), file="d.jsonl", root="/r")
    assert (caught.value.file, caught.value.record) == ("d.jsonl", "r7")


def test_more_placeholders_than_sounds_are_named():
    row = sft("<audio>", ["a.wav#t=0,1"])
    row["messages"] *= 2
    with pytest.raises(InputError, match=r"audios.*messages\[2\].*no sound is left"):
        mmduet2_sft.parse("r7", row, file="d.jsonl", root="/r")


def test_the_companion_may_not_contradict_the_prompt(tmp_path, dialogue):
    root, record = dialogue
    path = tmp_path / "d.parquet"
    mmduet2_rl.write([record], path, root=root)
    companion = mmduet2_rl.user_turns_path(path)
    turns = json.loads(companion.read_text())
    turns["q1"][0]["content"][1]["audio"] = "v/other.mp4#t=0.0,4.0"
    companion.write_text(json.dumps(turns))
    with pytest.raises(InputError, match=r"user_turns\[0\].content.*another sound"):
        load_dialogues("mmduet2_rl", path, root=root)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "audio", "audio": "a#t=0,1"}] * 2, "at most one sound"),
        ([{"type": "text", "text": "x"}, {"type": "audio", "audio": "a#t=0,1"}], "before its text"),
        ([{"type": "audio", "audio": "a#t=0,1"}, {"type": "image", "image": "b"}], "come first"),
        ([{"type": "audio"}], "audio.*must be text, got nothing"),
    ],
)
def test_bad_items_of_the_companion_are_named(tmp_path, dialogue, content, message):
    root, record = dialogue
    path = tmp_path / "d.parquet"
    mmduet2_rl.write([record], path, root=root)
    companion = mmduet2_rl.user_turns_path(path)
    turns = json.loads(companion.read_text())
    turns["q1"][4]["content"] = content
    companion.write_text(json.dumps(turns))
    with pytest.raises(InputError, match=rf"user_turns\[4\].content\[\d\].*{message}"):
        load_dialogues("mmduet2_rl", path, root=root)
