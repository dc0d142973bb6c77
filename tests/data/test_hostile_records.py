"""Legal files in odd dress are read; values no reader can use are refused, whatever their size."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from online_files import read, write_online
from test_mmduet2_rl import ROW

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.sources import json_lines, mmduet2_rl
from turnwise_jax.data.sources.benchmarks import common, proactive_videoqa
from turnwise_jax.errors import InputError

HUGE = 10**400  # JSON may hold it, no float does
DIGITS = "9" * 400
BOM = b"\xef\xbb\xbf"
WEB = "proactive_videoqa/WEB/anno.json"
OVO = "ovo_bench/ovo_bench_new.json"
REAL = "streamingbench/questions_real.json"
DUE = "streamingbench/questions_proactive.json"
CSV = "streamingbench/Real_Time_Visual_Understanding.csv"
VIEW = "proactive_views/web-1_sec_per_frame-frame_input_format.json"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_online(tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("hostile"))


def spoilt(tree: Path, tmp_path: Path, name: str, keys: tuple, value) -> Path:
    whole = json.loads((tree / name).read_text())
    *parents, last = keys
    holder = whole
    for key in parents:
        holder = holder[key]
    holder[last] = value
    target = tmp_path / Path(name).name
    target.write_text(json.dumps(whole))
    return target


FIRST = (0, "questions", 0)
WRONG = [
    ("proactive_videoqa", WEB, (0, "duration"), HUGE, "must be finite"),
    ("proactive_videoqa", WEB, (0, "duration"), -HUGE, "must be finite"),
    ("proactive_videoqa", WEB, (0, "answer", 0, "reply_timespan", 1), DIGITS, "must be finite"),
    ("proactive_videoqa", WEB, (0, "conversation", 0, "time"), f"{DIGITS}:00", "must be finite"),
    ("ovo_timing", OVO, (4, "start_times"), [1.0, HUGE], "must be finite"),
    ("ovo_timing", OVO, (2, "video"), "x" * 5000, "no such file"),
    ("ovo_bench", OVO, (0, "video"), "/", "names no file"),
    ("ovo_bench", OVO, (0, "video"), ".", "names no file"),
    ("ovo_bench", OVO, (0, "video"), "a\0b", "a\0b"),
    ("ovo_bench", OVO, (0, "gt"), HUGE, "must be finite"),
    ("streamingbench", REAL, (0, "video_path"), "x" * 5000, "no such file"),
    ("streamingbench", REAL, (*FIRST, "answer"), "B" * 5000, "got 'BBB"),
    ("streamingbench_proactive", DUE, (*FIRST, "time_stamp"), HUGE, "must be finite"),
    ("streamingbench_polling", DUE, (*FIRST, "ground_truth_time_stamp"), 1e12, "3600 s at most"),
    ("streamingbench_polling", DUE, (*FIRST, "ground_truth_time_stamp"), DIGITS, "must be finite"),
]


@pytest.mark.parametrize(("source", "name", "keys", "value", "message"), WRONG)
def test_no_size_of_a_value_is_too_much_for_a_reader(
    tree, tmp_path, source, name, keys, value, message
):
    path = spoilt(tree, tmp_path, name, keys, value)
    with pytest.raises(InputError, match=message) as caught:
        read(source, path, root=(tree / name).parent)
    error = caught.value
    assert error.file == str(path)
    assert error.record
    assert error.field
    assert len(error.message) <= 400


@pytest.mark.parametrize(("source", "name"), [("proactive_videoqa", WEB), ("ovo_timing", OVO)])
def test_a_byte_order_mark_and_other_line_ends_change_nothing(tree, tmp_path, source, name):
    dressed = tmp_path / Path(name).name
    dressed.write_bytes(BOM + (tree / name).read_text().replace("\n", "\r\n").encode())
    root = (tree / name).parent
    plain = read(source, tree / name, root=root)
    assert [d.turns for d in read(source, dressed, root=root)] == [d.turns for d in plain]


@pytest.mark.parametrize("text", ["", None])
def test_a_subtitle_line_without_text_is_passed_over(tree, tmp_path, text):
    name = "proactive_videoqa/TV/anno.json"
    whole = json.loads((tree / name).read_text())
    line = {"role": "user", "content": text, "time": 2.0}
    whole[0]["conversation"].insert(1, line)
    path = tmp_path / "anno.json"
    path.write_text(json.dumps(whole))
    root = tree / "proactive_videoqa"
    found = read("proactive_videoqa", path, root=root)
    assert [d.turns for d in found] == [
        d.turns for d in read("proactive_videoqa", tree / name, root=root)
    ]


def test_a_byte_order_mark_before_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(BOM + b'{"a": 1}\r\n{"a": 2}\r\n')
    assert [row for _, row in json_lines.read_rows(path, lambda row: None)] == [{"a": 1}, {"a": 2}]


def test_json_that_nests_too_deep_is_refused(tmp_path):
    deep = "[" * 200_000
    path = tmp_path / "anno.json"
    path.write_text(deep)
    with pytest.raises(InputError, match="not readable as JSON"):
        common.document(path, None)
    path.write_text(deep + "\n" + '{"a": 1}\n')
    (_, bad), (_, good) = json_lines.read_rows(path, lambda row: None)
    assert "not JSON" in bad[json_lines.UNREADABLE]
    assert good == {"a": 1}


def test_a_csv_line_with_a_comma_too_many_is_refused(tree, tmp_path):
    lines = (tree / CSV).read_text().splitlines(keepends=True)
    count = len(list(csv.DictReader(lines)))
    path = tmp_path / "rows.csv"
    path.write_text("".join([*lines[:-1], lines[-1].rstrip("\n") + ",x\n"]))
    good, bad = load_dialogues(
        "streamingbench", path, root=(tree / CSV).parent, on_bad_record="skip"
    )
    assert len(good) == count - 1
    assert len(bad) == 1
    assert "1 values more than the header" in bad[0]


def rl_file(tmp_path: Path, identity, companion: dict) -> Path:
    row = copy.deepcopy(ROW)
    row.pop("user_turns")
    row["reward_model"]["ground_truth"]["question_id"] = identity
    row["extra_info"]["question_id"] = identity
    path = tmp_path / "rl.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    mmduet2_rl.user_turns_path(path).write_bytes(BOM + json.dumps(companion).encode())
    return path


def test_a_question_id_may_be_a_whole_number(tmp_path):
    path = rl_file(tmp_path, 2**60, {str(2**60): ROW["user_turns"]})
    (found,) = read("mmduet2_rl", path)
    assert found.id == str(2**60)
    assert len(found.turns) == 5


@pytest.mark.parametrize("identity", [["clip"], [7], 1.5])
def test_a_question_id_of_another_type_is_refused(tmp_path, identity):
    path = rl_file(tmp_path, identity, {"clip": ROW["user_turns"]})
    with pytest.raises(InputError, match=r"question_id.*must be text") as caught:
        read("mmduet2_rl", path)
    assert caught.value.record == "row 0"


def views(tree: Path, tmp_path: Path, identity, annotations: list) -> Path:
    (shown,) = json.loads((tree / VIEW).read_text())[:1]
    path = tmp_path / Path(VIEW).name
    path.write_text(json.dumps([{**shown, "question_id": identity}]))
    (tmp_path / "web-proactivevideoqa_format.json").write_text(json.dumps(annotations))
    return path


def gold(tree: Path) -> dict:
    return json.loads((tree / "proactive_views/web-proactivevideoqa_format.json").read_text())[0]


@pytest.mark.parametrize(("identity", "own"), [(7, 7), (7, "7"), ("7", 7)])
def test_pictures_and_annotation_meet_by_id_however_it_is_spelt(tree, tmp_path, identity, own):
    path = views(tree, tmp_path, identity, [{**gold(tree), "question_id": own}])
    (found,) = read("proactive_videoqa", path, root=tree / "proactive_views")
    assert found.id == "7"
    assert found.windows


@pytest.mark.parametrize(("identity", "own"), [(None, None), ([1], [1]), ("", "")])
def test_pictures_without_an_id_get_no_annotation(tree, tmp_path, identity, own):
    path = views(tree, tmp_path, identity, [{**gold(tree), "question_id": own}])
    with pytest.raises(InputError, match="annotation") as caught:
        read("proactive_videoqa", path, root=tree / "proactive_views")
    assert caught.value.record == "question 0"


def test_two_annotations_of_one_id_are_refused(tree, tmp_path):
    own = {**gold(tree), "question_id": 7}
    path = views(tree, tmp_path, 7, [own, {**own, "answer": []}])
    with pytest.raises(InputError, match="another annotation has this id"):
        list(proactive_videoqa.rows(path))
