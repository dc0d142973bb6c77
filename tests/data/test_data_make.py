"""Sets made of one's own videos: that the files read back, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made_files import KITCHEN, LIST, TOUR, said, write_list

from turnwise_jax.data.example import load_example
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.making.cutting import CutSpec
from turnwise_jax.data.making.making import MakeJob, make_set
from turnwise_jax.data.records import Dialogue, Window
from turnwise_jax.errors import InputError

COOK = "What is the cook doing?"
ONION = Window(4.0, 9.5, COOK, "He cuts an onion.")
KNIFE = Window(18.0, 23.0, COOK, "He washes the knife.")


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    """A folder with the list and its videos; tests do not write into it."""
    return write_list(tmp_path_factory.mktemp("own")).parent


@pytest.fixture(scope="module")
def made(videos, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("made") / "set"
    make_set(MakeJob(videos / "list.json", out))
    return out


def job(videos: Path, tmp_path: Path, entries, **settings) -> MakeJob:
    """A job on other entries about the same videos."""
    path = tmp_path / "list.json"
    path.write_text(json.dumps(entries))
    return MakeJob(path, tmp_path / "set", root=videos, **settings)


def asked(dialogue: Dialogue) -> dict[float, str]:
    return {turn.time: turn.text for turn in dialogue.turns if turn.text}


def test_sft_dialogues_answer_at_the_last_decision_of_each_window(made, videos):
    kitchen, city = load_dialogues("mmduet2_sft", made / "sft_train.jsonl")[0]
    assert (kitchen.id, city.id) == ("kitchen", "city")
    assert said(kitchen) == {8.0: "He cuts an onion.", 20.0: "He washes the knife."}
    assert asked(kitchen) == {4.0: COOK}
    assert kitchen.windows == (ONION, KNIFE)
    assert [turn.time for turn in kitchen.turns] == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0]
    assert kitchen.turns[1].frames[0].path == str(videos / "kitchen.mp4")
    assert [frame.time for frame in kitchen.turns[1].frames] == [6.0, 8.0]
    assert kitchen.system is None
    assert city.system == "You are a guide."
    assert asked(city) == {4.0: "Name the buildings.", 44.0: "Which one is oldest?"}
    assert said(city) == {28.0: "A church.", 40.0: "A mill.", 52.0: "The mill."}


def test_a_window_ends_with_the_next_question_and_with_the_video(made):
    city = load_dialogues("mmduet2_sft", made / "sft_train.jsonl")[0][1]
    assert [(w.start, w.end, w.question) for w in city.windows] == [
        (17.0, 29.0, "Name the buildings."),
        (30.0, 42.0, "Name the buildings."),
        (42.0, TOUR, "Which one is oldest?"),
    ]


def test_rl_dialogues_leave_a_segment_open_after_its_past(made):
    dialogues, _ = load_dialogues("mmduet2_rl", made / "rl_train.parquet")
    assert [d.id for d in dialogues] == ["kitchen@0-20", "city@0-20", "city@20-40", "city@40-52"]
    kitchen, first, second, third = dialogues
    assert kitchen.windows == (ONION, KNIFE)
    assert [turn.time for turn in kitchen.open_turns] == [4.0, 8.0, 12.0, 16.0, 20.0]
    assert kitchen.history == ()
    # The church can be named from 17 s on; the teacher waits for 28 s, so two segments ask for it.
    assert [(w.start, w.end) for w in first.windows] == [(17.0, 29.0)]
    assert [(w.start, w.end) for w in second.windows] == [(20.0, 29.0), (30.0, 42.0)]
    assert said(second) == {}
    assert third.history == ("A church.", "A mill.")
    assert said(third) == {28.0: "A church.", 40.0: "A mill."}
    assert [turn.time for turn in third.open_turns] == [44.0, 48.0, 52.0]


def test_made_media_can_be_decoded_wherever_the_records_are_read_from(made, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    dialogues = [
        *load_dialogues("mmduet2_rl", made / "rl_train.parquet")[0],
        *load_dialogues("mmduet2_sft", made / "sft_train.jsonl")[0],
    ]
    for dialogue in dialogues:
        example = load_example(dialogue, FrameSpec(min_pixels=28 * 28, max_pixels=28 * 28))
        assert len(example.grids) == sum(len(turn.frames) for turn in dialogue.turns)


def test_paths_are_relative_so_that_set_and_videos_move_together(videos, tmp_path):
    before = tmp_path / "before"
    shutil.copytree(videos, before)
    make_set(MakeJob(before / "list.json", before / "set"))
    after = before.rename(tmp_path / "after")
    dialogue = load_dialogues("mmduet2_sft", after / "set/sft_train.jsonl")[0][1]
    assert dialogue.turns[0].frames[0].path == str(after / "trips/tour.mp4")


def test_what_is_counted(videos, tmp_path):
    counts, skipped = make_set(MakeJob(videos / "list.json", tmp_path / "set"))
    assert skipped == []
    assert counts.entries == 2
    assert counts.answers == 6
    assert counts.missed == 1  # 13 s to 14 s lies between two decisions
    assert counts.cut == 2
    assert counts.records == {"train": {"rl": 4, "sft": 2}, "test": {"rl": 0, "sft": 0}}
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["counts"] == counts._asdict()
    assert manifest["settings"]["segment"] == 20.0


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_one_kind_alone(videos, tmp_path, kind):
    make_set(MakeJob(videos / "list.json", tmp_path / "set", kind=kind))
    names = {
        "rl": {"rl_train.parquet", "rl_train-user_turns.json", "manifest.json"},
        "sft": {"sft_train.jsonl", "manifest.json"},
    }
    assert {path.name for path in (tmp_path / "set").iterdir()} == names[kind]


def test_held_out_videos_are_in_no_training_record(videos, tmp_path):
    counts, _ = make_set(MakeJob(videos / "list.json", tmp_path / "set", held_out=0.5))
    assert counts.videos == {"train": 1, "test": 1}
    shown = {
        split: {
            frame.path
            for source, name in (("mmduet2_rl", "rl_{}.parquet"), ("mmduet2_sft", "sft_{}.jsonl"))
            for dialogue in load_dialogues(source, tmp_path / "set" / name.format(split))[0]
            for turn in dialogue.turns
            for frame in turn.frames
        }
        for split in ("train", "test")
    }
    assert len(shown["train"]) == len(shown["test"]) == 1
    assert not shown["train"] & shown["test"]
    sides = set()
    for seed in range(8):
        out = tmp_path / f"seed{seed}"
        make_set(MakeJob(videos / "list.json", out, kind="sft", held_out=0.5, seed=seed))
        sides.add(load_dialogues("mmduet2_sft", out / "sft_test.jsonl")[0][0].id)
    assert sides == {"kitchen", "city"}  # the seed decides


def test_sound_is_kept_where_a_video_has_it(videos, tmp_path):
    make_set(MakeJob(videos / "list.json", tmp_path / "set", spec=CutSpec(sound=True)))
    kitchen, city, *_ = load_dialogues("mmduet2_rl", tmp_path / "set/rl_train.parquet")[0]
    assert [(t.audio.start, t.audio.end) for t in kitchen.turns[:2]] == [(0.0, 4.0), (4.0, 8.0)]
    assert all(turn.audio is None for turn in city.turns)


def changed(entry: int, **fields) -> list:
    entries = json.loads(json.dumps(LIST))
    entries[entry] |= fields
    return entries


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([[]], "record 'entry 1': must be a mapping"),
        (
            changed(0, video="nowhere.mp4"),
            "record 'nowhere': field 'video'.*no such file",
        ),
        (changed(0, question=" "), "record 'kitchen': field 'question': is empty"),
        (changed(0, questions=[]), "field 'question': stands beside questions"),
        (changed(1, questions=[]), "record 'city': field 'questions': is empty"),
        (changed(1, questions=["Q?"]), r"field 'questions\[0\]': must be a mapping"),
        (
            changed(1, questions=[{"text": "A?", "time": 3}, {"text": "B?", "time": 3}]),
            r"field 'questions\[1\].time': must be after the question at 3 s",
        ),
        (changed(1, questions=[{"text": "A?", "time": 60}]), "'questions': 60 s lies past the end"),
        (changed(0, answers=None), "field 'answers': must be a list"),
        (changed(0, answers=[{"span": [1], "text": "x"}]), r"'answers\[0\].span': must be \[start"),
        (changed(0, answers=[{"span": [1, 2]}]), r"'answers\[0\].text': must be text"),
        (
            changed(0, answers=[{"span": [1, "soon"], "text": "x"}]),
            r"'answers\[0\].span\[1\]': must be seconds or h:mm:ss, got 'soon'",
        ),
        (changed(0, answers=[{"span": [-1, 2], "text": "x"}]), "must not be negative"),
        (changed(0, answers=[{"span": [5, 2], "text": "x"}]), "ends at 2 s, before it starts"),
        (
            changed(0, answers=[{"span": [31, 40], "text": "x"}]),
            f"starts at 31 s, past the end of the video at {KITCHEN:.2f} s",
        ),
        (
            changed(1, answers=[{"span": [1, 4], "text": "x"}]),
            r"'answers\[0\].span': starts at 1 s, before the first question at 2 s",
        ),
        (changed(0, answers=[{"span": [1, 4], "text": "NO REPLY"}]), "is silence; leave out"),
        (changed(0, system=""), "field 'system': is empty"),
        (changed(0, id="city"), "record 'city': two entries have this id"),
        (changed(0, answers=[])[:1], "holds no answer to train on"),
        (
            changed(0, answers=[{"span": [13, 14], "text": "x"}])[:1],
            "1 of 1 answers have no decision in their window; choose a smaller interval",
        ),
        ([], "holds no usable entry"),
    ],
)
def test_bad_entries_are_named_and_nothing_is_left(videos, tmp_path, entries, message):
    with pytest.raises(InputError, match=message):
        make_set(job(videos, tmp_path, entries))
    assert [path.name for path in tmp_path.iterdir()] == ["list.json"]


def test_bad_entries_may_be_left_out(videos, tmp_path):
    entries = changed(0, video="nowhere.mp4")
    counts, skipped = make_set(job(videos, tmp_path, entries, on_bad_record="skip"))
    assert counts.entries == 1
    assert len(skipped) == 1
    assert "list.json: record 'nowhere': field 'video'" in skipped[0]
    with pytest.raises(InputError, match="no usable entry; the first of 1 bad ones"):
        make_set(
            job(videos, tmp_path, entries[:1], on_bad_record="skip")._replace(
                output=tmp_path / "other"
            )
        )


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"kind": "dpo"}, "kind"),
        ({"held_out": 1.0}, "held_out"),
        ({"question": "What?"}, "question"),
        ({"on_bad_record": "pass"}, "on_bad_record"),
        ({"spec": CutSpec(interval=0.0)}, "interval"),
        ({"spec": CutSpec(turn_frames=0)}, "turn_frames"),
        ({"spec": CutSpec(segment=18.0)}, "segment"),
        ({"spec": CutSpec(max_frames=9)}, "max_frames"),
        ({"spec": CutSpec(history_turns=-2)}, "history_turns"),
        ({"spec": CutSpec(reply_at="middle")}, "reply_at"),
    ],
)
def test_settings_that_cannot_work_are_refused(videos, tmp_path, settings, field):
    with pytest.raises(InputError, match=f"field '{field}'"):
        make_set(MakeJob(videos / "list.json", tmp_path / "set", **settings))
    assert not list(tmp_path.iterdir())


def test_one_video_cannot_be_split(videos, tmp_path):
    with pytest.raises(InputError, match="needs at least two videos"):
        make_set(job(videos, tmp_path, LIST[:1], held_out=0.1))


def test_what_is_there_is_not_overwritten(videos, made, tmp_path):
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    with pytest.raises(InputError, match="is there already; remove it"):
        make_set(MakeJob(videos / "list.json", made))
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    (tmp_path / "set").mkdir()
    make_set(MakeJob(videos / "list.json", tmp_path / "set"))  # an empty folder is fine
    assert (tmp_path / "set/manifest.json").is_file()


def test_an_interrupted_run_leaves_nothing_that_looks_finished(videos, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("turnwise_jax.data.making.making._WRITE", {"rl": stop, "sft": stop})
    with pytest.raises(KeyboardInterrupt):
        make_set(MakeJob(videos / "list.json", tmp_path / "set"))
    assert not list(tmp_path.iterdir())


def test_the_same_list_gives_the_same_files(videos, made, tmp_path):
    make_set(MakeJob(videos / "list.json", tmp_path / "set"))
    for source, name in (("mmduet2_rl", "rl_train.parquet"), ("mmduet2_sft", "sft_train.jsonl")):
        again = load_dialogues(source, tmp_path / "set" / name)[0]
        assert again == load_dialogues(source, made / name)[0]


def test_json_lines_and_a_system_text_for_entries_without_one(videos, tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text("\n\n".join(json.dumps(entry) for entry in LIST))
    make_set(MakeJob(path, tmp_path / "set", kind="sft", root=videos, system="Watch."))
    dialogues, _ = load_dialogues("mmduet2_sft", tmp_path / "set/sft_train.jsonl")
    assert [d.system for d in dialogues] == ["Watch.", "You are a guide."]


def test_second_entries_of_a_video_get_names_of_their_own(videos, tmp_path):
    entries = [LIST[0], LIST[0], {**LIST[0], "id": 7}]
    make_set(job(videos, tmp_path, entries, kind="sft"))
    dialogues, _ = load_dialogues("mmduet2_sft", tmp_path / "set/sft_train.jsonl")
    assert [dialogue.id for dialogue in dialogues] == ["kitchen", "kitchen%Q2", "7"]
