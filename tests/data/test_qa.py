"""Question-answering files: fields, clips, errors, round trips, the way to tokens."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sound_files import beeps, write_sound
from video_files import numbers, write_video

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.example import load_example, probe_grids
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue, Frame, Question, Sound, Turn
from turnwise_jax.data.sources import qa
from turnwise_jax.data.tokens import SPECIAL_TOKENS, build_tokenizer
from turnwise_jax.data.video import read_frames
from turnwise_jax.errors import InputError

REPLY = "<think>I hear two.</think><answer>2</answer>"
ASK = {"question": "What is red?"}
NUMERIC = {**ASK, "answer": "2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    write_sound(folder / "v.mp4", beeps(3, [1, 2]), codec="aac", video_seconds=3)
    write_video(folder / "mute.mp4", 20)  # 2 s
    write_sound(folder / "a.wav", beeps(2.5, [0.5]))
    Image.fromarray(np.full((28, 28, 3), 90, np.uint8)).save(folder / "p.png")
    return folder


def parsed(row, folder="/r", clip=None) -> Dialogue:
    return qa.parse("r7", row, file="d.jsonl", root=folder, clip=clip)


# the other fields


def test_all_fields_of_a_record():
    row = {
        **ASK,
        "id": "q",
        "answer": "2",
        "category": "sound",
        "audio_cues": ["a beep", "a bell"],
        "hint": ["Listen.", "Count."],
        "system": "Be brief.",
        "response": REPLY,
        "unknown": 1,
    }
    dialogue = parsed(row)
    question = Question(
        "What is red?", "2", "numeric", (), "sound", "a beep\na bell", "Listen.\nCount."
    )
    assert dialogue == Dialogue(
        "r7", (Turn((), "What is red?", 0.0, REPLY),), system="Be brief.", question=question
    )
    assert dialogue.file == "d.jsonl"


def test_without_system_and_response_the_policy_answers():
    dialogue = parsed({**NUMERIC, "system": None, "response": None, "category": None, "hint": None})
    assert dialogue.system == qa.THINK_SYSTEM
    assert dialogue.turns[0].reply is None
    assert (dialogue.question.category, dialogue.question.hint) == ("", "")
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert tag in qa.THINK_SYSTEM


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"answer": "2"}, "question", "must be text, got nothing"),
        ({"question": " ", "answer": "2"}, "question", "is empty"),
        (ASK, "answer", "must be text, got nothing"),
        ({**NUMERIC, "system": 3}, "system", "must be text, got 3"),
        ({**NUMERIC, "category": 3}, "category", "must be text, got 3"),
        ({**NUMERIC, "hint": {"a": 1}}, "hint", "must be text"),
        ({**NUMERIC, "hint": ["x", 1]}, "hint[1]", "must be text, got 1"),
        ({**NUMERIC, "audio_cues": 1}, "audio_cues", "must be text, got 1"),
        ({**NUMERIC, "response": " "}, "response", "is empty; leave it out"),
        ({**NUMERIC, "response": 2}, "response", "must be text, got 2"),
        ({**NUMERIC, "start": 1.0}, "start", "needs a video or a sound"),
        ({**NUMERIC, "images": ["p.png"], "end": 1}, "end", "needs a video or a sound"),
        ({**NUMERIC, "images": "p.png"}, "images", "must be a list"),
        ({**NUMERIC, "images": [3]}, "images[0]", "must be text, got 3"),
        ({**NUMERIC, "video": "v.mp4", "images": ["p.png"]}, "video", "stands beside images"),
        ({**NUMERIC, "video": ""}, "video", "is an empty path"),
        ({**NUMERIC, "video": ["v.mp4"]}, "video", "must be text"),
        ({**NUMERIC, "video": "gone.mp4"}, "video", "/r/gone.mp4: no such file"),
        ({**NUMERIC, "audio": "gone.wav"}, "audio", "/r/gone.wav: no such file"),
        ({**NUMERIC, "audio": 1}, "audio", "must be text, got 1"),
    ],
)
def test_bad_fields_are_named(row, field, reason):
    with pytest.raises(InputError) as caught:
        parsed(row)
    error = caught.value
    assert (error.file, error.record, error.field) == ("d.jsonl", "r7", field)
    assert error.message.startswith(reason)


# clips


def test_frames_are_the_middles_of_equal_parts(folder):
    turn = parsed({**NUMERIC, "video": "v.mp4"}, folder, ClipSpec(4)).turns[0]
    path = str(folder / "v.mp4")
    assert turn.frames == tuple(Frame(path, t) for t in (0.375, 1.125, 1.875, 2.625))
    assert turn.video
    assert turn.time == 3.0
    assert turn.audio == Sound(path, 0.0, 3.0)
    one = parsed({**NUMERIC, "video": "v.mp4"}, folder, ClipSpec(1)).turns[0]
    assert one.frames == (Frame(path, 1.5),)


def test_a_part_of_a_clip(folder):
    row = {**NUMERIC, "video": "v.mp4", "start": 1, "end": 2.0}
    turn = parsed(row, folder, ClipSpec(2)).turns[0]
    assert [frame.time for frame in turn.frames] == [1.25, 1.75]
    assert (turn.time, turn.audio.start, turn.audio.end) == (2.0, 1.0, 2.0)
    past = parsed({**row, "end": 99.0}, folder, ClipSpec(2)).turns[0]
    assert [frame.time for frame in past.frames] == [1.5, 2.5]
    assert (past.time, past.audio.end) == (3.0, 3.0)


def test_a_clip_begins_at_a_whole_microsecond(folder):
    row = {**NUMERIC, "video": "v.mp4", "start": 1 / 3}
    turn = parsed(row, folder, ClipSpec(1)).turns[0]
    assert turn.audio.start == 0.333333
    assert turn.frames[0].time == qa.spread(0.333333, 3.0, 1)[0]


def test_no_frame_is_shown_twice(folder):
    turn = parsed({**NUMERIC, "video": "mute.mp4"}, folder, ClipSpec(64)).turns[0]
    frames = read_frames(folder / "mute.mp4", [frame.time for frame in turn.frames])
    assert numbers(frames) == list(range(20))
    part = {**NUMERIC, "video": "mute.mp4", "start": 1.0, "end": 1.5}
    assert len(parsed(part, folder, ClipSpec(64)).turns[0].frames) == 5
    moment = {**part, "end": 1.01}
    assert len(parsed(moment, folder, ClipSpec(64)).turns[0].frames) == 1


def test_sound_where_there_is_one_and_it_is_wanted(folder):
    heard = {**NUMERIC, "video": "v.mp4"}
    assert parsed(heard, folder, ClipSpec(2, sound=False)).turns[0].audio is None
    assert parsed({**NUMERIC, "video": "mute.mp4"}, folder).turns[0].audio is None
    other = parsed({**NUMERIC, "video": "mute.mp4", "audio": "a.wav"}, folder).turns[0]
    assert other.audio == Sound(str(folder / "a.wav"), 0.0, 2.0)
    instead = parsed({**heard, "audio": "a.wav", "start": 0.5}, folder).turns[0]
    assert instead.audio == Sound(str(folder / "a.wav"), 0.5, 3.0)
    silent = parsed({**heard, "audio": "a.wav"}, folder, ClipSpec(2, sound=False)).turns[0]
    assert silent.audio is None


def test_sound_alone_and_beside_images(folder):
    path = str(folder / "a.wav")
    alone = parsed({**NUMERIC, "audio": "a.wav"}, folder).turns[0]
    assert alone == Turn((), "What is red?", 2.5, audio=Sound(path, 0.0, 2.5))
    part = parsed({**NUMERIC, "audio": "a.wav", "start": 0.5, "end": 2}, folder).turns[0]
    assert (part.time, part.audio) == (2.0, Sound(path, 0.5, 2.0))
    of_video = parsed({**NUMERIC, "audio": "v.mp4"}, folder).turns[0]
    assert of_video.audio == Sound(str(folder / "v.mp4"), 0.0, 3.0)
    row = {**NUMERIC, "images": ["p.png", {"path": "v.mp4#t=1.5"}], "audio": "a.wav"}
    pictures = (Frame(str(folder / "p.png")), Frame(str(folder / "v.mp4"), 1.5))
    seen = parsed(row, folder).turns[0]
    assert (seen.frames, seen.video, seen.time) == (pictures, False, 2.5)
    unheard = parsed(row, folder, ClipSpec(2, sound=False)).turns[0]
    assert unheard == Turn(pictures, "What is red?", 0.0)


@pytest.mark.parametrize(
    ("start", "end", "field", "reason"),
    [
        (-1, None, "start", "must lie in the 3.00 s of the media, got -1"),
        (3.0, None, "start", "must lie in the 3.00 s"),
        (2.0, 2.0, "end", "must be after the start at 2 s, got 2"),
        (2.0, 1.0, "end", "must be after the start"),
        ("1", None, "start", "must be a number, got '1'"),
        (None, "2", "end", "must be a number"),
    ],
)
def test_bad_parts_are_named(folder, start, end, field, reason):
    row = {**NUMERIC, "video": "v.mp4", "start": start, "end": end}
    with pytest.raises(InputError) as caught:
        parsed(row, folder)
    assert (caught.value.record, caught.value.field) == ("r7", field)
    assert caught.value.message.startswith(reason)


def test_a_file_without_sound_is_no_sound_file(folder):
    for row in ({"audio": "mute.mp4"}, {"audio": "mute.mp4", "video": "v.mp4"}):
        with pytest.raises(InputError, match=r"field 'audio': .*mute.mp4: has no audio track"):
            parsed({**NUMERIC, **row}, folder)


# files


def test_lines_are_named_by_their_id(tmp_path):
    path = tmp_path / "d.jsonl"
    rows = [{**NUMERIC, "id": "q"}, {**NUMERIC, "id": 3}, NUMERIC, {**NUMERIC, "id": ""}]
    lines = [json.dumps(row) for row in [*rows, {**NUMERIC, "id": True}]]
    path.write_text("\n\n".join(lines))
    assert [name for name, _ in qa.rows(path)] == ["q", "3", "line 5", "line 7", "line 9"]
    with pytest.raises(InputError, match="no file of user turns"):
        qa.rows(path, user_turns="x.json")


def test_bad_lines_are_left_out_or_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(["{", "[]", json.dumps(NUMERIC)]))
    dialogues, skipped = load_dialogues("qa", path, on_bad_record="skip")
    assert [dialogue.id for dialogue in dialogues] == ["line 3"]
    assert skipped[0].startswith(f"{path}: record 'line 1': not JSON")
    assert skipped[1] == f"{path}: record 'line 2': not a JSON object"
    with pytest.raises(InputError, match="record 'line 1': not JSON"):
        load_dialogues("qa", path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not readable as text"):
        load_dialogues("qa", path)


ROWS = [
    {**ASK, "id": "choice", "video": "v.mp4", "options": ["x", "y"], "answer": "y"},
    {
        **ASK,
        "id": "twisted",
        "video": "mute.mp4",
        "options": {"A": "B", "B": "A"},
        "answer": "B. A",
    },
    {**ASK, "id": "lettered", "options": {"A": "A. x", "B": "B. y"}, "answer": "A"},
    {**ASK, "id": "same", "options": ["x", "x"], "answer": "B"},
    {**ASK, "id": "part", "video": "v.mp4", "start": 0.1, "end": 1.7, "answer": 2, "hint": "H"},
    {**ASK, "id": "odd", "video": "v.mp4", "start": 1 / 3, "end": 2.9, "answer": "two"},
    {**ASK, "id": "deaf", "video": "mute.mp4", "start": 0.3, "end": 1.9, "answer": "two"},
    {**ASK, "id": "deaf odd", "video": "mute.mp4", "start": 1 / 7, "answer": "x", "kind": "ocr"},
    {**ASK, "id": "dubbed", "video": "mute.mp4", "audio": "a.wav", "answer": "é", "system": ""},
    {**ASK, "id": "seen", "images": ["p.png", "v.mp4#t=0.5"], "answer": 4, "category": "c"},
    {**ASK, "id": "both", "images": ["p.png"], "audio": "a.wav", "end": 2.0, "answer": "4"},
    {**ASK, "id": "heard", "audio": "a.wav", "answer": 4, "audio_cues": "beep", "response": REPLY},
    {**ASK, "id": "told", "answer": "a  b\nc", "kind": "free-form", "system": "S."},
]


@pytest.mark.parametrize("clip", [ClipSpec(4), ClipSpec(7, sound=False), ClipSpec(1), None])
def test_what_is_written_is_read_again(tmp_path, folder, clip):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("\n".join(json.dumps(row) for row in ROWS))
    dialogues, _ = load_dialogues("qa", first, root=folder, clip=clip)
    assert [dialogue.id for dialogue in dialogues] == [row["id"] for row in ROWS]
    qa.write(dialogues, second, root=folder)
    assert load_dialogues("qa", second, root=folder, clip=clip)[0] == dialogues
    assert not list(tmp_path.glob(".*"))


def test_the_written_form(tmp_path, folder):
    row = {**ASK, "video": "v.mp4", "options": ["A. x", "B. y"], "answer": "y", "hint": "Look."}
    dialogue = parsed(row, folder, ClipSpec(4))
    qa.write([dialogue], tmp_path / "sub" / "d.jsonl", root=folder)
    assert json.loads((tmp_path / "sub" / "d.jsonl").read_text()) == {
        "id": "r7",
        "video": "v.mp4",
        "start": 0.0,
        "end": 3.0,
        "question": "What is red?",
        "options": ["x", "y"],
        "answer": "B",
        "kind": "multiple_choice",
        "hint": "Look.",
    }
    qa.write([dialogue], tmp_path / "e.jsonl", root=tmp_path)
    assert json.loads((tmp_path / "e.jsonl").read_text())["video"] == str(folder / "v.mp4")


V = "/m/v.mp4"
EVEN = tuple(Frame(V, t) for t in qa.spread(1.0, 3.0, 4))
ONE = Dialogue("q", (Turn((), "Q?", 0.0),), system="S.", question=Question("Q?", "4", "numeric"))


def clip_turn(**changes) -> dict:
    return {"turns": (replace(Turn(EVEN, "Q?", 3.0, video=True), **changes),)}


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"question": None}, "turns", "this format holds one turn with a question"),
        ({"turns": ONE.turns * 2}, "turns", "this format holds one turn"),
        ({"turns": ()}, "turns", "this format holds one turn"),
        ({"history": ("x",)}, "turns", "this format holds one turn"),
        ({"system": None}, "system", "needs a system text"),
        ({"turns": (Turn((), "Other?", 0.0),)}, "turns[0].text", "is not the question"),
        ({"turns": (Turn((), "Q?", 1.0),)}, "turns[0].time", "must be 0"),
        ({"turns": (Turn((), "Q?", 0.0, ""),)}, "response", "is empty"),
        ({"question": Question("Q?", " 4", "numeric")}, "question", "has blanks"),
        ({"question": Question("Q?", "x", "numeric")}, "answer", "must be a number"),
        (clip_turn(time=3.5), "turns[0].frames", "are not spread evenly"),
        (clip_turn(frames=(*EVEN[:3], Frame(V, 2.8))), "turns[0].frames", "are not spread evenly"),
        (clip_turn(frames=(*EVEN, Frame("/x", 3.0))), "turns[0].frames", "video is one file"),
        (clip_turn(frames=(Frame(V),)), "turns[0].frames", "video is one file"),
        (clip_turn(audio=Sound(V, 0.5, 3.0)), "turns[0].audio", "lasts as long as the clip"),
        (clip_turn(audio=Sound(V, 1.0, 2.5)), "turns[0].audio", "lasts as long as the clip"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(tmp_path, changes, field, reason):
    path = tmp_path / "d.jsonl"
    path.write_text("old")
    with pytest.raises(InputError) as caught:
        qa.write([ONE, replace(ONE, **changes)], path, root="/m")
    assert (caught.value.file, caught.value.record) == (str(path), "q")
    assert caught.value.field == field
    assert reason in caught.value.message
    assert path.read_text() == "old"


# the way to tokens


@pytest.fixture(scope="module")
def omni(tmp_path_factory):
    names = {"vision_start": "vision_bos", "vision_end": "vision_eos", "image_pad": "IMAGE"}
    names |= {"video_pad": "VIDEO"}
    special = [f"<|{names.get(name[2:-2], name[2:-2])}|>" for name in SPECIAL_TOKENS]
    corpus = ["user assistant system", "What is red?", REPLY]
    vocab = build_tokenizer(corpus, 340, tmp_path_factory.mktemp("v"), special_tokens=special)
    return ChatTemplate(vocab, FrameSpec(), style="qwen2_5_omni")


@pytest.mark.parametrize("clip", [ClipSpec(4), ClipSpec(3), ClipSpec(4, sound=False)])
def test_records_become_examples_and_tokens(tmp_path, folder, omni, clip):
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    dialogues, _ = load_dialogues("qa", path, root=folder, clip=clip)
    for dialogue in dialogues:
        example = load_example(dialogue, omni.spec, SoundSpec())
        assert list(example.grids) == probe_grids(dialogue, omni.spec)
        assert len(example.sounds) == (dialogue.turns[0].audio is not None)
        context = omni.context(dialogue, example.grids, upto=0)
        text = omni.vocab.decode(context.tokens)
        assert text.startswith(f"<|im_start|>system\n{dialogue.system}<|im_end|>\n<|im_start|>user")
        assert text.endswith(f"{dialogue.turns[0].text}<|im_end|>\n<|im_start|>assistant\n")
        pads = text.count("<|VIDEO|>") + text.count("<|IMAGE|>")
        assert pads == sum(t * h * w // 4 for t, h, w in example.grids)
        if dialogue.turns[0].reply:
            row = omni.training_row(dialogue, example.grids)
            assert omni.vocab.decode(row.tokens[row.loss_mask]) == REPLY + "<|im_end|>"


def test_a_clip_of_three_seconds_has_75_sound_tokens(folder, omni):
    dialogue = parsed({**NUMERIC, "video": "v.mp4"}, folder, ClipSpec(6))
    example = load_example(dialogue, omni.spec, SoundSpec())
    tokens = omni.context(dialogue, example.grids).tokens
    assert int((tokens == omni.vocab.audio_pad).sum()) == 75
    assert example.sounds[0].shape == (128, 300)
