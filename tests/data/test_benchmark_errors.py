"""Readers of public benchmarks: what is wrong is named, and costs only its own questions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from benchmark_files import CLIP, EXPECTED, write_benchmarks

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.sources.benchmarks import BENCHMARKS
from turnwise_jax.errors import InputError


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("benchmarks"))


def edited(tree: Path, tmp_path: Path, annotation: str, edit) -> Path:
    """A copy of an annotation file whose (first) record was edited."""
    text = (tree / annotation).read_text()
    path = tmp_path / Path(annotation).name
    if path.suffix == ".jsonl":
        first, *others = text.splitlines()
        row = json.loads(first)
        edit(row)
        path.write_text("\n".join([json.dumps(row), *others]))
    else:
        value = json.loads(text)
        edit(value[0] if isinstance(value, list) else value)
        path.write_text(json.dumps(value))
    return path


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def edit(row):
        for key in keys:
            row = row[key]
        row[last] = value

    return edit


WRONG = [
    ("omnibench/dataset/sample.jsonl", put("answer", "He swims."), "0", "answer", "text of one of"),
    ("omnibench/dataset/sample.jsonl", put("options", ["x"]), "0", "options", "2 to 26"),
    ("omnibench/dataset/sample.jsonl", put("audio_path", None), "0", "audio_path", "must be text"),
    ("omnibench/dataset/sample.jsonl", put("audio_path", "no.wav"), "0", "audio_path", "no such"),
    ("omnibench/dataset/sample.jsonl", put("task type", ""), "0", "task type", "is empty"),
    ("daily_omni/qa.json", put("Answer", "E"), "door01_0", "Answer", "one of 4 options, got 'E'"),
    ("daily_omni/qa.json", put("Answer", "Rain"), "door01_0", "Answer", "must be the letter"),
    ("daily_omni/qa.json", put("Question", " "), "door01_0", "Question", "is empty"),
    ("daily_omni/qa.json", put("Choice", "A. x"), "door01_0", "Choice", "must be a list"),
    ("daily_omni/qa.json", put("video_id", "gone"), "gone_0", "video_id", "no such file"),
    (
        "worldsense/worldsense_qa.json",
        put("harbour", "task0", "answer", None),
        "harbour_task0",
        "answer",
        "must be text, got nothing",
    ),
    ("worldsense/worldsense_qa.json", put("harbour", 3), "harbour", None, "must be a mapping"),
    ("worldsense/worldsense_qa.json", put("harbour", {}), "harbour", None, "has no task"),
    (
        "worldsense/worldsense_qa.json",
        put("harbour", "task0", []),
        "harbour_task0",
        None,
        "must be a mapping",
    ),
    (
        "av_odyssey/av_odyssey.json",
        put("audio_path", ["sounds/note.wav"] * 4),
        "1_0",
        "audio_path",
        "holds 4 files; a turn has room for one",
    ),
    (
        "av_odyssey/av_odyssey.json",
        put("video_path", ["clips/step.mp4"]),
        "1_0",
        "video_path",
        "beside image_path",
    ),
    ("av_odyssey/av_odyssey.json", put("image_path", "x.png"), "1_0", "image_path", "a list"),
    ("video_mme/videomme.jsonl", put("options", None), "001-1", "answer", "one of 0 options"),
    ("video_mme/videomme.jsonl", put("videoID", "gone"), "001-1", "videoID", "gone.mp4: no such"),
    (
        "mvbench/json/action_sequence.json",
        put("answer", "A"),
        "action_sequence_0",
        "answer",
        "text of one of 4 options, got 'A'",
    ),
    (
        "mvbench/json/action_sequence.json",
        put("start", 9.0),
        "action_sequence_0",
        "start",
        "must lie in",
    ),
    (
        "mvbench/json/episodic_reasoning.json",
        put("start", 4.0),
        "episodic_reasoning_0",
        "end",
        "must leave something of the 12 frames",
    ),
    (
        "mvbench/json/episodic_reasoning.json",
        put("video", "gone"),
        "episodic_reasoning_0",
        "video",
        "holds no frames",
    ),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "answer", "F"), "0", "answer", "got 'F'"),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "question", "Why?"), "0", "question", "options"),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "question_type", []), "0", "question_type", ""),
    ("lvbench/video_info.meta.jsonl", put("qa", 0, "text"), "long-_video1_0", None, "a mapping"),
    ("lvbench/video_info.meta.jsonl", put("qa", None), "long-_video1", None, "has no list qa"),
    (
        "video_holmes/test_Video-Holmes.json",
        put("Options", {"A": "x", "C": "y"}),
        "film_-01_1",
        "Options",
        "must have the letters A, B, C",
    ),
    (
        "video_holmes/test_Video-Holmes.json",
        put("Options", ["x", "y"]),
        "film_-01_1",
        "Options",
        "must be a mapping",
    ),
    ("mmvu/validation.json", put("question_type", "essay"), "validation_0", "question_type", "got"),
    ("mmvu/validation.json", put("metadata", {}), "validation_0", "metadata.subject", "must be"),
    ("tomato/data/shape&trend.json", put("0", "answer", 4), "shape&trend_0", "answer", "got 4"),
    ("tomato/data/shape&trend.json", put("0", "answer", 1.5), "shape&trend_0", "answer", "got 1.5"),
    ("tomato/data/shape&trend.json", put("0", "answer", "B"), "shape&trend_0", "answer", "number"),
    ("tomato/data/shape&trend.json", put("0", []), "shape&trend_0", None, "must be a mapping"),
    ("intentbench/qa.json", put("problem_type", "essay"), "q_why_1", "problem_type", "or judge"),
    ("intentbench/qa.json", put("problem_type", "judge"), "q_why_1", "solution", "Yes or No"),
    ("intentbench/qa.json", put("solution", "<answer></answer>"), "q_why_1", "solution", "empty"),
    ("cg_av_counting/cg-av-counting.json", put("answer", "few"), "0", "answer", "a number"),
    ("cg_av_counting/cg-av-counting.json", put("answer", True), "0", "answer", "a number"),
    ("cg_av_counting/cg-av-counting.json", put("question", None), "0", "question_en", "be text"),
]


def test_mmvu_leaves_out_empty_choices(tree, tmp_path):
    path = edited(tree, tmp_path, "mmvu/validation.json", put("choices", "E", ""))
    first = load_dialogues("mmvu", path, root=tree / "mmvu", clip=CLIP)[0][0]
    assert first.question.options == ("1.0", "2.0", "4.0", "8.0")


@pytest.mark.parametrize(("annotation", "edit", "record", "field", "message"), WRONG)
def test_what_is_wrong_is_named(tree, tmp_path, annotation, edit, record, field, message):
    name = annotation.split("/")[0]
    path = edited(tree, tmp_path, annotation, edit)
    with pytest.raises(InputError) as caught:
        load_dialogues(name, path, root=tree / name, clip=CLIP)
    error = caught.value
    assert (error.file, error.record, error.field) == (str(path), record, field)
    assert message in error.message


@pytest.mark.parametrize(
    ("annotation", "gone", "kept"),
    [
        ("video_mme/videomme.jsonl", "data/road-_02.MP4", ["001-1"]),
        ("mmvu/validation.json", "videos/Chemistry/0.mp4", ["validation_1"]),
        ("tomato/data/shape&trend.json", "videos/human/0001-00.mp4", ["shape&trend_7"]),
        ("intentbench/qa.json", "trial.mp4", ["q_why_1", "sample_1_1"]),
        ("omnibench/dataset/sample.jsonl", "mm_data/audio/whistle.wav", []),
    ],
)
def test_a_missing_medium_costs_only_its_own_questions(tree, tmp_path, annotation, gone, kept):
    name = annotation.split("/")[0]
    shutil.copytree(tree / name, tmp_path / name)
    (tmp_path / name / gone).unlink()
    path = tmp_path / annotation
    skip = {"root": tmp_path / name, "clip": CLIP, "on_bad_record": "skip"}
    if not kept:
        with pytest.raises(InputError, match=r"no usable record; the first of 2 bad ones.*no such"):
            load_dialogues(name, path, **skip)
        return
    dialogues, skipped = load_dialogues(name, path, **skip)
    assert [dialogue.id for dialogue in dialogues] == kept
    assert all("no such file" in line for line in skipped)
    assert len(skipped) == len(EXPECTED[annotation]) - len(kept)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_files_that_hold_no_records_are_refused(tmp_path, name):
    module = BENCHMARKS[name]
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(InputError, match="not readable as JSON"):
        list(module.rows(path))
    path.write_text("3")
    with pytest.raises(InputError, match="must hold a"):
        list(module.rows(path))
    with pytest.raises(InputError, match="no file of user turns"):
        list(module.rows(path, user_turns=path))
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        list(module.rows(path))
    (tmp_path / "x.parquet").write_text("no table")
    if name not in ("worldsense", "tomato"):
        with pytest.raises(InputError, match="not readable as parquet"):
            list(module.rows(tmp_path / "x.parquet"))


def test_entries_that_are_no_records_are_refused_one_by_one(tree, tmp_path):
    rows = json.loads((tree / "daily_omni/qa.json").read_text())
    path = tmp_path / "qa.json"
    path.write_text(json.dumps([rows[0], "text", rows[1]]))
    kept = {"root": tree / "daily_omni", "clip": CLIP}
    dialogues, skipped = load_dialogues("daily_omni", path, on_bad_record="skip", **kept)
    assert [dialogue.id for dialogue in dialogues] == ["door01_0", "door01_2"]
    assert skipped == [f"{path}: record 'question_1': must be a mapping"]


def test_mvbench_files_are_called_after_their_task(tree, tmp_path):
    path = tmp_path / "mvbench.json"
    shutil.copy(tree / "mvbench/json/action_sequence.json", path)
    with pytest.raises(InputError, match=r"field 'task': the file must be called <task>\.json"):
        load_dialogues("mvbench", path, root=tree / "mvbench")
