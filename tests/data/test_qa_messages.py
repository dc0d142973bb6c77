"""Questions as chat messages: the same dialogues as the plain format, every oddity and error."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sound_files import beeps, write_sound
from video_files import write_video

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue, Frame, Question, Sound
from turnwise_jax.data.sources import qa, qa_messages
from turnwise_jax.data.sources.questions import options_in
from turnwise_jax.errors import InputError

REPLY = "<think>Two beeps.</think><answer>B</answer>"
TEXT = "What sounds?\nA. the disc\nB. the square"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messages")
    write_sound(folder / "v.mp4", beeps(3, [1, 2]), codec="aac", video_seconds=3)
    write_video(folder / "mute.mp4", 20)  # 2 s
    write_sound(folder / "a.wav", beeps(2.5, [0.5]))
    return folder


def messages(content="What?", *, system=None, reply=None) -> list[dict]:
    texts = {"system": system, "user": content, "assistant": reply}
    return [{"role": role, "content": text} for role, text in texts.items() if text is not None]


def record(content="What?", *, system=None, reply=None, **row) -> dict:
    return {"messages": messages(content, system=system, reply=reply), "solution": "4", **row}


def parsed(row, folder="/r", clip=None) -> Dialogue:
    return qa_messages.parse("r7", row, file="d.jsonl", root=folder, clip=clip)


def asked(content, **row) -> Question:
    question = parsed(record(content, **row)).question
    assert question is not None
    return question


# the same as the plain format

EXTRA = {"category": "sound", "audio_cues": ["a beep", "a bell"], "hint": ["Listen.", "Count."]}
PAIRS = {
    "choice": (
        record(f"<video>{TEXT}", videos=["v.mp4"], solution="<answer>B</answer>", **EXTRA),
        {"video": "v.mp4", "question": "What sounds?", "answer": "B", **EXTRA},
    ),
    "supervised": (
        record(f"<video>\n{TEXT}", videos="v.mp4", solution="B", reply=REPLY, system="S."),
        {"video": "v.mp4", "question": "What sounds?", "answer": "B", "response": REPLY}
        | {"system": "S."},
    ),
    "counted": (
        record("<audio>How many?", audios=["a.wav"], problem_type="numerical"),
        {"audio": "a.wav", "question": "How many?", "answer": "4", "options": []},
    ),
    "dubbed": (
        record("<video><audio>Who?", videos=["mute.mp4"], audios=[{"path": "a.wav"}], solution="I"),
        {"video": "mute.mp4", "audio": "a.wav", "question": "Who?", "answer": "I", "options": []},
    ),
    "seen": (
        record("<image> <image>Read.", images=["p.png", {"path": "q.png"}], problem_type="OCR"),
        {"images": ["p.png", "q.png"], "question": "Read.", "answer": "4", "kind": "ocr"}
        | {"options": []},
    ),
    "part": (
        record("<video>Who?", videos=["v.mp4"], start=1.0, end=2.0, solution="she"),
        {"video": "v.mp4", "start": 1.0, "end": 2.0, "question": "Who?", "answer": "she"}
        | {"options": []},
    ),
    "text": (record(solution=4), {"question": "What?", "answer": 4, "options": []}),
}


@pytest.mark.parametrize("clip", [ClipSpec(4), ClipSpec(3, sound=False)])
def test_both_formats_give_the_same_dialogues(tmp_path, folder, clip):
    ours, theirs, again = (tmp_path / f"{name}.jsonl" for name in ("ours", "theirs", "again"))
    options = ["the disc", "the square"]
    theirs.write_text(
        "\n".join(json.dumps({**row, "prompt_id": name}) for name, (row, _) in PAIRS.items())
    )
    ours.write_text(
        "\n".join(
            json.dumps({"options": options, **row, "id": name}) for name, (_, row) in PAIRS.items()
        )
    )
    dialogues, _ = load_dialogues("avatar", theirs, root=folder, clip=clip)
    assert [dialogue.id for dialogue in dialogues] == list(PAIRS)
    assert dialogues == load_dialogues("qa", ours, root=folder, clip=clip)[0]
    qa.write(dialogues, again, root=folder)
    assert load_dialogues("qa", again, root=folder, clip=clip)[0] == dialogues


def test_the_text_stays_as_it_is_and_the_question_is_its_own_field(folder):
    content = "<video> Watch.\nWhat sounds? Options: (A) the disc (B) the square\n"
    row = record(content, videos=["v.mp4"], solution="(B)", question="What sounds?")
    dialogue = parsed(row, folder, ClipSpec(2))
    turn = dialogue.turns[0]
    assert turn.text == "Watch.\nWhat sounds? Options: (A) the disc (B) the square"
    path = str(folder / "v.mp4")
    assert turn.frames == (Frame(path, 0.75), Frame(path, 2.25))
    assert (turn.video, turn.time, turn.audio) == (True, 3.0, Sound(path, 0.0, 3.0))
    options = ("the disc", "the square")
    assert dialogue.question == Question("What sounds?", "B", "multiple_choice", options)
    assert replace(dialogue, question=None).system == qa.THINK_SYSTEM


def test_media_without_tags_come_first(folder):
    tagged = record("<video>What?", videos=["v.mp4"])
    assert parsed(record(videos=["v.mp4"]), folder) == parsed(tagged, folder)
    two = parsed(record("<image>What?", images=["p.png", "q.png"])).turns[0]
    assert [frame.path for frame in two.frames] == ["/r/p.png", "/r/q.png"]
    assert two.text == "What?"


def test_rows_are_named_by_their_prompt(tmp_path):
    path = tmp_path / "d.jsonl"
    rows = [{"prompt_id": 7, "id": "x"}, {"id": "x"}, {}]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n[]")
    read = list(qa_messages.rows(path))
    assert [name for name, _ in read] == ["7", "x", "line 3", "line 4"]
    with pytest.raises(InputError, match="record 'line 4': not a JSON object"):
        qa_messages.parse(*read[3], file="d.jsonl", root="")
    with pytest.raises(InputError, match="no file of user turns"):
        qa_messages.rows(path, user_turns="x.json")


# questions and answers


@pytest.mark.parametrize(
    "solution",
    [
        *("4", 4, "<answer>4</answer>", "<answer> 4\n</answer>", ["4", "four"]),
        *(["<answer>4</answer>"], "<think>Not <answer>3</answer>?</think><answer>4</answer>"),
    ],
)
def test_the_solution_may_stand_in_tags(solution):
    assert asked("How many?", solution=solution).answer == "4"


@pytest.mark.parametrize(
    ("row", "kind", "answer"),
    [
        ({"problem_type": "numerical"}, "numeric", "4"),
        ({"problem_type": "free_form", "solution": "a dog"}, "free_form", "a dog"),
        ({"problem_type": "descriptive", "solution": "a dog"}, "free_form", "a dog"),
        ({"problem_type": "text_recognition", "solution": "STOP"}, "ocr", "STOP"),
        ({"problem_type": "code", "solution": "x = 1"}, "exact", "x = 1"),
        ({"problem_type": "default", "solution": "yes"}, "exact", "yes"),
        ({"solution": "yes"}, "exact", "yes"),
        ({}, "numeric", "4"),
    ],
)
def test_the_problem_type_is_the_kind(row, kind, answer):
    question = asked("What?", **row)
    assert (question.kind, question.answer, question.options) == (kind, answer, ())


def test_options_of_a_field_come_before_those_of_the_text():
    question = asked("What? A. one B. two", options=["B. bee", "A. ant"], solution="bee")
    assert (question.options, question.answer) == (("ant", "bee"), "B")
    assert question.text == "What? A. one B. two"


@pytest.mark.parametrize("solution", ["B", "b", "(B)", "<answer>B.</answer>"])
def test_choices_that_are_not_listed_are_asked_as_they_are(solution):
    question = asked("Which picture?", solution=solution, problem_type="multiple_choice")
    assert question == Question("Which picture?", "B", "exact")


def test_other_kinds_list_no_options():
    question = asked("Describe A. the cat B. the dog", solution="x", problem_type="free_form")
    assert (question.kind, question.options) == ("free_form", ())
    assert question.text == "Describe A. the cat B. the dog"


LISTED = [
    "Q?\nA. red\nB. dark blue\nC. 3.5 m",
    "Q?\nA) red\nB) dark blue\nC) 3.5 m\n",
    "Q?\n  (A) red\n  (B) dark blue\n  (C) 3.5 m",
    "Q?\nA: red\nB: dark blue\nC: 3.5 m",
    "Q?\nOptions:\nA. red\nB. dark blue\nC. 3.5 m\nAnswer with the letter.",
    "Q? A. red B. dark blue C. 3.5 m",
    "Q? (A) red (B) dark blue (C) 3.5 m",
    "Q? Choices: A) red B) dark blue C) 3.5 m",
    "Q?\n\nA.red\nB.dark blue\nC.3.5 m",
]


@pytest.mark.parametrize("text", LISTED)
def test_options_are_found_in_the_text(text):
    assert options_in(text) == ("Q?", ("red", "dark blue", "3.5 m"))


def test_an_option_may_have_several_lines():
    assert options_in("Q?\nA. red\nor pink\nB. blue\nor grey") == (
        "Q?",
        ("red\nor pink", "blue\nor grey"),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "Is vitamin A. good?", "A. only one", "B. red C. blue", "A.\nB."),
        *("What is a.b? x) y", "Who is J. A. Smith, and B?", "(B) one (A) two"),
    ],
)
def test_texts_without_options(text):
    assert options_in(text) == (text, ())


# errors


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"messages": None}, "messages", "must be a list, got nothing"),
        ({"messages": ["x"]}, "messages[0]", "must be a mapping"),
        ({"messages": []}, "messages", "must be one of the user, at most one reply; got []"),
        ({"messages": messages() * 2}, "messages", "must be one of the user"),
        ({"messages": messages(None, reply="x")}, "messages", "must be one of"),
        ({"messages": messages(3)}, "messages[0].content", "must be text, got 3"),
        ({"messages": messages("<video> ")}, "messages[0].content", "asks nothing"),
        ({"messages": messages(reply=" ")}, "messages[1].content", "is empty; leave it out"),
        (
            record("See <video>: what?", videos=["v.mp4"], system="S."),
            "messages[1].content",
            "has text before a <video>; media come first",
        ),
        (record("<video>What?"), "videos", "holds 0 for 1 <video>s"),
        (record("<image><image>What?", images=["p.png"]), "images", "holds 1 for 2 <image>s"),
        (record("<audio>What?", audios=[]), "audios", "holds 0 for 1 <audio>s"),
        (record(videos=["v.mp4", "w.mp4"]), "videos", "a turn has at most one video, got 2"),
        (record(audios=["a.wav"] * 2), "audios", "a turn has at most one audio, got 2"),
        (record(videos=[3]), "videos[0]", "must be text, got 3"),
        (record(videos={"path": "v.mp4"}), "videos", "must be a list"),
        (record(videos=["gone.mp4"]), "videos[0]", "/r/gone.mp4: no such file"),
        (record(audios=["gone.wav"]), "audios[0]", "/r/gone.wav: no such file"),
        (record(images=[None]), "images[0]", "must be text, got nothing"),
        (record(videos=["v.mp4"], images=["p.png"]), "videos[0]", "stands beside images"),
        (record(solution=None), "solution", "must be text, got nothing"),
        (record(solution="<answer> </answer>"), "solution", "is empty"),
        (record(solution="C", options=["x", "y"]), "solution", "'C' is none of the 2 options"),
        (record(TEXT, solution="C"), "solution", "'C' is none of the 2 options"),
        (record(problem_type="essay"), "problem_type", "must be one of multiple_choice"),
        (record(problem_type="numerical", solution="x"), "solution", "must be a number"),
        (record(question=3), "question", "must be text, got 3"),
        (record(hint=3), "hint", "must be text, got 3"),
        (record(start=1.0), "start", "needs a video or a sound"),
    ],
)
def test_bad_fields_are_named(row, field, reason):
    with pytest.raises(InputError) as caught:
        parsed({"solution": "4", **row})
    error = caught.value
    assert (error.file, error.record, error.field) == ("d.jsonl", "r7", field)
    assert error.message.startswith(reason)
