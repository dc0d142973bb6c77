"""The JSON-lines form of finished dialogues: round trip, messages, and what a kill leaves."""

from __future__ import annotations

import dataclasses
import json

import pytest

from turnwise_jax.data.records import Question, Target, Window
from turnwise_jax.errors import InputError
from turnwise_jax.eval.predictions import Prediction, PredictionWriter, read_predictions

FULL = Prediction(
    id="a",
    times=(2.0, 4.0),
    replies=("NO REPLY", "Ein roter Kreis \u2014 \u7ea2"),
    windows=(Window(1.0, 5.0, "What?", "A circle.", 4.0), Window(6.0, 6.0, "What?", "B")),
    history=("Before.",),
    video="v.mp4",
    group=3,
    step=5,
    quality=((None, None), (2.0, None)),
    repetitive=(None, 0.0),
)
BARE = Prediction(id="b", times=(), replies=())
CHOICE = Prediction(
    id="c",
    times=(3.0,),
    replies=("<think>red</think><answer>B</answer>",),
    question=Question("Which?", "B", "multiple_choice", ("blue", "red"), "colour", "two beeps"),
)
AIMED = Prediction("t", (4.0,), ("It starts.",), target=Target("CRR", "7", (3.5, 9.0), "starts"))
NUMBER = Prediction("n", (3.0,), ("5",), question=Question("How many?", "4", "numeric"))


def write(path, *predictions):
    with PredictionWriter(path) as writer:
        for prediction in predictions:
            writer.write(prediction)


def test_round_trip_is_exact(tmp_path):
    write(tmp_path / "new" / "p.jsonl", FULL, BARE, CHOICE, AIMED, NUMBER)
    kept = read_predictions(tmp_path / "new" / "p.jsonl")
    assert kept == [FULL, BARE, CHOICE, AIMED, NUMBER]


@pytest.mark.parametrize(
    ("target", "field"),
    [(["CRR"], "target"), ({"subset": 3}, "target.subset"), ({"times": ["1"]}, "target.times[0]")],
)
def test_a_bad_target_names_its_field(tmp_path, target, field):
    (tmp_path / "p.jsonl").write_text(json.dumps({**AIMED.to_json(), "target": target}) + "\n")
    with pytest.raises(InputError) as error:
        read_predictions(tmp_path / "p.jsonl")
    assert error.value.field == field


def test_a_question_is_kept_without_its_hint(tmp_path):
    asked = dataclasses.replace(CHOICE.question, hint="Listen first.")
    write(tmp_path / "p.jsonl", dataclasses.replace(CHOICE, question=asked))
    assert "Listen" not in (tmp_path / "p.jsonl").read_text()
    assert read_predictions(tmp_path / "p.jsonl") == [CHOICE]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out_and_overwritten(tmp_path, cut):
    path = tmp_path / "p.jsonl"
    write(path, FULL, BARE)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + cut])
    assert read_predictions(path) == [FULL]
    write(path, BARE)
    assert path.read_bytes() == whole


def test_a_cut_inside_a_character_is_torn_too(tmp_path):
    path = tmp_path / "p.jsonl"
    write(path, BARE, FULL)
    data = path.read_bytes()
    path.write_bytes(data[: data.index("\u7ea2".encode()) + 1])
    assert read_predictions(path) == [BARE]


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(FULL.to_json()))
    assert read_predictions(path) == [FULL]
    write(path, BARE)
    assert read_predictions(path) == [FULL, BARE]


def test_other_fields_are_left_alone(tmp_path):
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps({**FULL.to_json(), "reward": 0.7, "advantages": [0.5, None]}) + "\n")
    assert read_predictions(path) == [FULL]


def test_a_broken_line_in_the_middle_names_its_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "ti\n' + json.dumps(BARE.to_json()) + "\n")
    with pytest.raises(InputError, match=r"p\.jsonl: record 'line 1': is not JSON"):
        read_predictions(path)


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        read_predictions(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"times": None}, "times", "is missing"),
        ({"id": ""}, "id", "must be text or an integer"),
        ({"times": [2.0, 1.0]}, "times", "must not decrease"),
        ({"times": [2.0, float("nan")]}, "times[1]", "must be a finite number"),
        ({"times": [2.0]}, "replies", "has 2 entries for 1 times"),
        ({"replies": ["a", None]}, "replies[1]", "must be text"),
        ({"windows": [{"start": 0, "end": 1, "question": "q"}]}, "windows[0].answer", "is missing"),
        (
            {"windows": [{"start": 3, "end": 1, "question": "q", "answer": "a"}]},
            "windows[0]",
            "ends at 1 s, before it starts at 3 s",
        ),
        ({"history": "x"}, "history", "must be a list"),
        ({"group": [1]}, "group", "must be text or an integer"),
        ({"step": 1.5}, "step", "must be an integer"),
        ({"quality": [[None, None]]}, "quality", "has 1 rows for 2 decisions"),
        ({"quality": [[0], [1, 2]]}, "quality[0]", "has 1 entries, not 2"),
        ({"quality": [[0, 0], [1, 5]]}, "quality[1]", "must lie between 0 and 4"),
        ({"repetitive": [0.0]}, "repetitive", "has 1 entries, not 2"),
    ],
)
def test_bad_records_name_file_line_record_and_field(tmp_path, change, field, message):
    record = {k: v for k, v in {**FULL.to_json(), **change}.items() if v is not None}
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(BARE.to_json()) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(InputError) as caught:
        read_predictions(path)
    error = caught.value
    assert (error.file, error.field, error.message) == (str(path), field, message)
    assert "line 2" in error.record
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"text": None}, "question.text", "is missing"),
        ({"answer": 3}, "question.answer", "must be text"),
        ({"answer": "C"}, "question.answer", "is no letter of the 2 options"),
        ({"answer": ""}, "question.answer", "is no letter of the 2 options"),
        ({"options": None}, "question.answer", "is no letter of the 0 options"),
        ({"options": ["a", 1]}, "question.options[1]", "must be text"),
        ({"options": "ab"}, "question.options", "must be a list"),
        (
            {"kind": "essay"},
            "question.kind",
            "must be one of multiple_choice, numeric, ocr, free_form, exact",
        ),
        ({"category": ["x"]}, "question.category", "must be text"),
    ],
)
def test_bad_questions_name_their_field(tmp_path, change, field, message):
    record = CHOICE.to_json()
    record["question"] = {
        k: v for k, v in {**record["question"], **change}.items() if v is not None
    }
    (tmp_path / "p.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError) as caught:
        read_predictions(tmp_path / "p.jsonl")
    assert (caught.value.field, caught.value.message) == (field, message)


def test_a_question_is_an_object(tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({**CHOICE.to_json(), "question": "Which?"}))
    with pytest.raises(InputError, match="'question': must be an object"):
        read_predictions(tmp_path / "p.jsonl")
