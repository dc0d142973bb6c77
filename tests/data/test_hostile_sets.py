"""``data check`` and ``data make`` with settings and texts that no set can be read or made with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from video_files import write_video

from turnwise_jax.cli import data
from turnwise_jax.data.checking.checking import check_set
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.making.cutting import CutSpec, check_spec
from turnwise_jax.data.records import ClipSpec
from turnwise_jax.data.sources import json_lines
from turnwise_jax.errors import InputError

HALF = "\ud83d"  # of a pair: JSON can spell it, no file can hold it


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    (folder / "WEB/videos").mkdir(parents=True)
    write_video(folder / "WEB/videos/a.mp4", 24, rate=2)
    return folder


def entry(**fields) -> dict:
    answers = [{"span": [3, 9], "text": "He cuts an onion."}]
    return {"video": "WEB/videos/a.mp4", "question": "What?", "answers": answers, **fields}


def annotated(folder: Path, records: list, name: str = "anno.json") -> Path:
    path = folder / "WEB" / name
    path.write_text(json.dumps(records))
    return path


def record(**fields) -> dict:
    return {
        "video": "a.mp4",
        "question_id": "a.mp4",
        "conversation": [{"role": "user", "content": "What?", "time": 0}],
        "answer": [{"content": "He cuts.", "reply_timespan": [3, 9]}],
        **fields,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
@pytest.mark.parametrize("field", ["interval", "segment"])
def test_a_set_is_not_cut_by_numbers_that_are_none(field, value):
    with pytest.raises(InputError, match="above 0 and finite") as caught:
        check_spec(CutSpec()._replace(**{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"question": HALF}, r"record 'a': field 'question': holds half a surrogate pair"),
        ({"question": "see <image>"}, r"list.json: record 'a@0-12': field 'turns\[0\]'"),
        (
            {"answers": [{"span": ["9" * 400 + ":00:00", 9], "text": "x"}]},
            r"field 'answers\[0\].span\[0\]': must be seconds or h:mm:ss",
        ),
        ({"video": "."}, "record 'entry 1': field 'video'"),
    ],
)
def test_what_no_set_can_hold_is_named_in_its_source(videos, tmp_path, fields, message):
    path = videos / "list.json"
    path.write_text(json.dumps([entry(**fields)]))
    with pytest.raises(InputError, match=message) as caught:
        data.main(["make", f"--input={path}", f"--output={tmp_path / 'out'}"])
    assert caught.value.file == str(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("interval", value) for value in (0.0, -1.0, 1e-9, math.nan, math.inf)),
        *(("context", value) for value in (-1.0, math.nan)),
        *(("turn_frames", 0), ("frames", -1)),
    ],
)
def test_no_record_is_blamed_for_settings_that_show_nothing(videos, field, value):
    path = annotated(videos, [record()])
    clip = ClipSpec()._replace(**{field: value})
    for work in (check_set, load_dialogues):
        with pytest.raises(InputError, match="at least") as caught:
            work("proactive_videoqa", path, root=videos, clip=clip)
        assert (caught.value.field, caught.value.record) == (field, None)


def test_a_grid_too_coarse_for_a_video_breaks_no_video(videos):
    path = annotated(videos, [record()])
    clip = ClipSpec(interval=100.0)
    checked = check_set("proactive_videoqa", path, root=videos, clip=clip)
    assert checked.counts == {"unreadable": 1}
    assert not checked.media.bad


def test_a_set_without_records_is_no_good_set(videos):
    with pytest.raises(InputError, match="holds no record"):
        check_set("proactive_videoqa", annotated(videos, []), root=videos)


def test_a_summary_does_not_go_into_a_file(videos, tmp_path):
    path = annotated(videos, [record()])
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        data.main(
            ["check", str(path), "--source=proactive_videoqa", f"--output={tmp_path / 'out'}"]
        )
    assert (tmp_path / "out").read_text() == "mine"


def test_names_that_no_file_can_hold_give_way_to_places(videos, tmp_path):
    path = annotated(videos, [record(question_id=HALF)])
    (found,), _ = load_dialogues("proactive_videoqa", path, root=videos)
    assert found.id == "question 0"
    lines = tmp_path / "x.jsonl"
    lines.write_text(json.dumps({"id": HALF}) + "\n" + json.dumps({"id": True}) + '\n{"id": 7}\n')
    names = [name for name, _ in json_lines.read_rows(lines, lambda row: row["id"])]
    assert names == ["line 1", "line 2", "7"]
