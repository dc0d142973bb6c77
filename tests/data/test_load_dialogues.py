"""Loading dialogue files: one bad record stops the run or is left out and listed."""

from __future__ import annotations

import json

import pytest

from turnwise_jax.data import DATASETS
from turnwise_jax.data.load import find_records, load_dialogues
from turnwise_jax.data.records import Dialogue, Frame, Turn
from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft
from turnwise_jax.errors import InputError

OPEN = [Dialogue(f"d{i}", (Turn((Frame("v.mp4", 2.0),), "Hi", 2.0),)) for i in range(3)]
LINE = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
    "metadata": {"question_id": "good"},
}


def write_lines(path, *rows) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows))


def test_the_table_names_both_formats():
    assert DATASETS.items() >= {"mmduet2_rl": mmduet2_rl, "mmduet2_sft": mmduet2_sft}.items()


def test_paths_start_at_the_folder_of_the_file_or_at_the_given_root(tmp_path):
    path = tmp_path / "a.parquet"
    mmduet2_rl.write(OPEN, path, root="")
    dialogues, skipped = load_dialogues("mmduet2_rl", path)
    assert [d.id for d in dialogues] == ["d0", "d1", "d2"]
    assert skipped == []
    assert dialogues[0].turns[0].frames == (Frame(str(tmp_path / "v.mp4"), 2.0),)
    assert dialogues[0].file == str(path)
    elsewhere, _ = load_dialogues("mmduet2_rl", path, root="/media")
    assert elsewhere[0].turns[0].frames == (Frame("/media/v.mp4", 2.0),)


def test_a_folder_with_one_file_of_the_format_needs_no_name(tmp_path):
    with pytest.raises(InputError, match=r"field 'data.path': holds 0 files \*.parquet; name"):
        find_records("mmduet2_rl", tmp_path)
    mmduet2_rl.write(OPEN, tmp_path / "a.parquet", root="")
    write_lines(tmp_path / "b.jsonl", LINE)
    assert find_records("mmduet2_rl", tmp_path) == tmp_path / "a.parquet"
    assert find_records("mmduet2_sft", tmp_path) == tmp_path / "b.jsonl"
    write_lines(tmp_path / "c.jsonl", LINE)
    with pytest.raises(InputError, match=r"holds 2 files \*.jsonl: b.jsonl, c.jsonl; name the one"):
        find_records("mmduet2_sft", tmp_path)
    with pytest.raises(InputError, match="no such directory"):
        find_records("mmduet2_sft", tmp_path / "nowhere")


def test_all_files_of_a_folder_are_read_in_order(tmp_path):
    for index, name in enumerate(("b.parquet", "a.parquet")):
        mmduet2_rl.write(OPEN[index : index + 1], tmp_path / name, root="")
    (tmp_path / "c.parquet").mkdir()
    dialogues, skipped = load_dialogues("mmduet2_rl", tmp_path)
    assert [(d.id, d.file) for d in dialogues] == [
        ("d1", str(tmp_path / "a.parquet")),
        ("d0", str(tmp_path / "b.parquet")),
    ]
    assert skipped == []
    assert dialogues[0].turns[0].frames == (Frame(str(tmp_path / "v.mp4"), 2.0),)
    elsewhere, _ = load_dialogues("mmduet2_rl", tmp_path, root="/media")
    assert elsewhere[0].turns[0].frames == (Frame("/media/v.mp4", 2.0),)
    with pytest.raises(InputError, match=r"field 'user_turns': goes with one file, .* has 2$"):
        load_dialogues("mmduet2_rl", tmp_path, user_turns=tmp_path / "x.json")


def test_a_folder_without_a_file_of_the_format_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no file \*\.jsonl; name the one to use"):
        load_dialogues("mmduet2_sft", tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load_dialogues("mmduet2_sft", tmp_path / "nowhere")


def test_a_bad_record_stops_the_run_or_is_listed(tmp_path):
    path = tmp_path / "a.jsonl"
    write_lines(path, LINE, {**LINE, "images": ["x.jpg"]}, [], LINE)
    with pytest.raises(InputError, match="record 'good': field 'images'"):
        load_dialogues("mmduet2_sft", path)
    dialogues, skipped = load_dialogues("mmduet2_sft", path, on_bad_record="skip")
    assert len(dialogues) == 2
    assert len(skipped) == 2
    assert skipped[0].startswith(f"{path}: record 'good': field 'images': holds 1 pictures")
    assert skipped[1].startswith(f"{path}: record 'line 3': not a JSON object")


def test_a_question_missing_from_the_user_turns_is_one_bad_record(tmp_path):
    path = tmp_path / "a.parquet"
    mmduet2_rl.write(OPEN, path, root="")
    companion = tmp_path / "a-user_turns.json"
    turns = json.loads(companion.read_text())
    del turns["d1"]
    companion.write_text(json.dumps(turns))
    with pytest.raises(InputError, match=f"'d1': field 'user_turns': {companion} has no such"):
        load_dialogues("mmduet2_rl", path)
    dialogues, skipped = load_dialogues("mmduet2_rl", path, on_bad_record="skip")
    assert [d.id for d in dialogues] == ["d0", "d2"]
    assert len(skipped) == 1


def test_a_file_without_a_usable_record_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("")
    with pytest.raises(InputError, match=r"holds no usable record$"):
        load_dialogues("mmduet2_sft", path)
    write_lines(path, [], [])
    with pytest.raises(InputError, match=r"no usable record; the first of 2 bad ones: .*'line 1'"):
        load_dialogues("mmduet2_sft", path, on_bad_record="skip")


def test_settings_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"must be one of mmduet2_rl, .*, got 'x'"):
        load_dialogues("x", tmp_path)
    with pytest.raises(InputError, match="field 'on_bad_record': must be 'raise' or 'skip'"):
        load_dialogues("mmduet2_sft", tmp_path, on_bad_record="ignore")
