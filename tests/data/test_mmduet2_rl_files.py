"""RL dialogues written to the files of the public data and read back, and bad files."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnwise_jax.data.records import Dialogue, Frame, Turn, Window
from turnwise_jax.data.sources import mmduet2_rl
from turnwise_jax.errors import InputError

DIALOGUES = [
    Dialogue(
        "full",
        (
            Turn((Frame("ROOT/v/a.mp4", 0.1), Frame("ROOT/i/b.jpg")), " What?\n", 2.0, "Yes. "),
            Turn((), "", 2.0, ""),
            Turn((Frame("/else/c.mp4", 1 / 3),), "Now?", 2.5),
            Turn((), "Again?", 1e3),
        ),
        (Window(0.1, 0.30000000000000004, "q", "a"), Window(5.0, 5.0, "q2", "é", 4.5)),
        "Système",
        ("Yes.", "Before."),
    ),
    Dialogue("small", (Turn((), "Hi", 0.0),)),
]


def with_root(dialogue: Dialogue, root) -> Dialogue:
    turns = tuple(
        Turn(
            tuple(Frame(f.path.replace("ROOT", str(root)), f.time) for f in t.frames),
            t.text,
            t.time,
            t.reply,
        )
        for t in dialogue.turns
    )
    return Dialogue(dialogue.id, turns, dialogue.windows, dialogue.system, dialogue.history)


def read_all(path, root) -> list[Dialogue]:
    rows = mmduet2_rl.rows(path)
    return [mmduet2_rl.parse(name, row, file=str(path), root=root) for name, row in rows]


def test_what_is_written_is_read_back_exactly(tmp_path):
    dialogues = [with_root(dialogue, tmp_path) for dialogue in DIALOGUES]
    path = tmp_path / "deep" / "train.parquet"
    mmduet2_rl.write(dialogues, path, root=tmp_path)
    assert read_all(path, tmp_path) == dialogues
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "train-user_turns.json",
        "train.parquet",
    ]


def test_the_written_files_have_the_public_layout(tmp_path):
    path = tmp_path / "train.parquet"
    mmduet2_rl.write([with_root(DIALOGUES[0], tmp_path)], path, root=tmp_path)
    (row,) = pq.read_table(path).to_pylist()
    assert list(row) == [
        "data_source", "ability", "prompt", "images", "reward_model", "extra_info",
    ]  # fmt: skip
    assert row["ability"] == "proactive"
    assert [m["role"] for m in row["prompt"]] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert row["prompt"][1]["content"] == "<image><image> What?\n"
    assert row["prompt"][1]["last_image_time"] == 2.0
    assert row["images"] == [
        {"type": "image", "image": "v/a.mp4#t=0.1"},
        {"type": "image", "image": "i/b.jpg"},
        {"type": "image", "image": "/else/c.mp4#t=0.3333333333333333"},
    ]
    truth = row["reward_model"]["ground_truth"]
    assert row["reward_model"]["style"] == "rule"
    assert truth["model_pred_timestamps"] == [2.5, 1000.0]
    assert truth["prev_assistant_replies"] == ["Yes.", "Before."]
    assert truth["answer"][0]["role"] == "assistant"
    assert row["extra_info"]["num_images"] == 3
    provider = row["extra_info"]["tools_kwargs"]["online_video_provider"]
    assert provider["execute_kwargs"]["question_id"] == "full"
    turns = json.loads((tmp_path / "train-user_turns.json").read_text())["full"]
    assert len(turns) == 4
    assert turns[2]["content"] == [
        {"type": "image", "image": "/else/c.mp4#t=0.3333333333333333"},
        {"type": "text", "text": "Now?"},
    ]


@pytest.mark.parametrize(
    ("dialogue", "message"),
    [
        (Dialogue("a", (Turn((), "x", 0.0, "y"),)), "at least one turn left to the policy"),
        (Dialogue("a", (Turn((), "see <image>", 0.0),)), "no text <image>"),
        (Dialogue("a", (Turn((Frame("v", 0.0),), "", 0.0, video=True),)), "no video turns"),
        (Dialogue("a", (Turn((Frame("x#t=3"),), "", 0.0),)), "name ends in #t="),
        (Dialogue("a", (Turn((Frame("x.tif", shown=3.0),), "", 3.0),)), "an image of that name"),
        (Dialogue("a", (Turn((Frame("x.jpg", 3.0),), "", 3.0),)), "a video of that name"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(tmp_path, dialogue, message):
    with pytest.raises(InputError, match=message):
        mmduet2_rl.write([dialogue], tmp_path / "a.parquet", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_dialogues_of_one_id_are_refused(tmp_path):
    with pytest.raises(InputError, match="record 'small': two dialogues have this id"):
        mmduet2_rl.write([DIALOGUES[1]] * 2, tmp_path / "a.parquet", root=tmp_path)


def test_rows_are_named_by_question_or_by_number(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [{"reward_model": {"ground_truth": {"question_id": "x"}}}, {"reward_model": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    (tmp_path / "a-user_turns.json").write_text("{}")
    assert [name for name, _ in mmduet2_rl.rows(path)] == ["x", "row 1"]


def test_the_companion_may_be_named(tmp_path):
    path = tmp_path / "train.parquet"
    mmduet2_rl.write([DIALOGUES[1]], path, root=tmp_path)
    moved = (tmp_path / "train-user_turns.json").rename(tmp_path / "turns.json")
    ((_, row),) = mmduet2_rl.rows(path, user_turns=moved)
    assert len(row["user_turns"]) == 1
    with pytest.raises(InputError, match=r"train-user_turns.json: no such file"):
        list(mmduet2_rl.rows(path))


@pytest.mark.parametrize(
    ("parquet", "companion", "message"),
    [
        (None, "{}", r"a.parquet: no such file"),
        (b"", "{}", r"a.parquet: not readable as parquet"),
        (b"PAR1 but not really PAR1", "{}", r"a.parquet: not readable as parquet"),
        (b"", "{", r"a-user_turns.json: not readable as JSON"),
        (b"", "[]", r"a-user_turns.json: must map question ids"),
    ],
)
def test_an_unreadable_file_is_one_clear_line(tmp_path, parquet, companion, message):
    if parquet is not None:
        (tmp_path / "a.parquet").write_bytes(parquet)
    (tmp_path / "a-user_turns.json").write_text(companion)
    with pytest.raises(InputError, match=message) as caught:
        list(mmduet2_rl.rows(tmp_path / "a.parquet"))
    assert "\n" not in str(caught.value)


def test_a_parquet_of_another_kind_is_a_bad_record_not_a_crash(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1], "reward_model": ["{}"], "extra_info": [3]}), path)
    (tmp_path / "a-user_turns.json").write_text("{}")
    ((name, row),) = mmduet2_rl.rows(path)
    with pytest.raises(InputError, match=r"record 'row 0': field 'reward_model': must be a map"):
        mmduet2_rl.parse(name, row, file=str(path), root=tmp_path)
