"""The files of a set: formats, determinism, splits, and refusal to mix or leave half a set."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from world_set import SEED, TEST, TRAIN

from turnwise_jax.cli.main import main
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import Dialogue
from turnwise_jax.data.video import probe, read_frames
from turnwise_jax.errors import InputError
from turnwise_jax.worlds import streamworld
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import WorldFiles, clips, generate, rl_record

SMALL = World(history_turns=1, target_turns=3, size=56)
COUNTS = {"train": TRAIN, "test": TEST}
ANNOTATIONS = [
    f"{kind}_{split}{ending}"
    for split in COUNTS
    for kind, ending in (("sft", ".jsonl"), ("rl", ".parquet"), ("rl", "-user_turns.json"))
]


def make(folder: Path, world: World = SMALL, *, train: int = 1, test: int = 1, seed: int = 0):
    return generate(folder, world, train=train, test=test, seed=seed, progress=False)


def rooted(dialogue: Dialogue, root: Path) -> Dialogue:
    """The dialogue as a reader gives it back: frame paths below `root`."""
    turns = tuple(
        replace(turn, frames=tuple(replace(f, path=str(root / f.path)) for f in turn.frames))
        for turn in dialogue.turns
    )
    return replace(dialogue, turns=turns)


@pytest.mark.parametrize("split", COUNTS)
def test_both_formats_read_back_what_was_written(files, split):
    made = [d for c in clips(World(), split, COUNTS[split], SEED) for d in c.dialogues]
    for source, path, expected in (
        ("mmduet2_sft", files.sft(split), made),
        ("mmduet2_rl", files.rl(split), [rl_record(World(), d) for d in made]),
    ):
        found, skipped = load_dialogues(source, path)
        assert not skipped
        assert [replace(d, file="") for d in found] == [rooted(d, files.root) for d in expected]
        assert {d.file for d in found} == {str(path)}


def test_the_files_are_in_the_public_formats(files):
    """Field by field as `facts` 4.1 and 4.2 list them, read without our readers."""
    row = pq.read_table(files.rl("test")).to_pylist()[0]
    truth = row["reward_model"]["ground_truth"]
    assert row["ability"] == "proactive"
    assert [m["role"] for m in row["prompt"][:3]] == ["system", "user", "assistant"]
    assert row["prompt"][-1]["role"] == "user"
    assert row["prompt"][1]["content"].startswith("<image><image>")
    assert row["images"][3] == {"type": "image", "image": "videos/test-0000.mp4#t=4.0"}
    assert row["extra_info"]["num_images"] == len(row["images"]) == 8
    assert truth["model_pred_timestamps"] == [8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0]
    assert {"content", "question", "reply_timespan", "role"} <= set(truth["answer"][0])
    turns = json.loads((files.root / "rl_test-user_turns.json").read_text())
    assert len(turns[truth["question_id"]]) == World().turns
    assert turns[truth["question_id"]][0]["content"][0]["type"] == "image"
    line = json.loads(files.sft("test").read_text().splitlines()[0])
    assert {"messages", "images", "metadata"} == set(line)
    assert line["metadata"]["video_id"] == "test-0000"
    assert line["images"][0] == {"path": "videos/test-0000.mp4#t=1.0"}


def test_videos_are_real_files_as_long_as_their_dialogues(files):
    names = sorted(path.name for path in files.videos.iterdir())
    assert names == sorted(f"{s}-{i:04d}.mp4" for s, n in COUNTS.items() for i in range(n))
    for path in files.videos.iterdir():
        info = probe(path)
        assert (info.width, info.height, info.fps) == (112, 112, 8)
        assert World().seconds < info.duration <= World().seconds + 1
        assert not info.has_audio


def test_the_same_seed_gives_the_same_annotation_bytes_and_pixels(tmp_path, monkeypatch):
    """However many threads draw."""
    made = []
    for threads in (3, 1):
        monkeypatch.setattr(streamworld, "THREADS", threads)
        made.append(make(tmp_path / str(threads), train=2))
    first, second = made
    for name in [*ANNOTATIONS, "manifest.json"]:
        assert (first.root / name).read_bytes() == (second.root / name).read_bytes()
    for path in first.videos.iterdir():
        times = np.arange(0.0, SMALL.seconds, 0.5).tolist()
        np.testing.assert_array_equal(
            read_frames(path, times), read_frames(second.videos / path.name, times)
        )


def test_seed_and_split_change_the_pixels(tmp_path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b", seed=1)
    times = [2.0, 4.0, 6.0]
    shown = [
        read_frames(files.videos / f"{split}-0000.mp4", times).tobytes()
        for files in (first, second)
        for split in COUNTS
    ]
    assert len(set(shown)) == len(shown)


def test_backgrounds_differ_between_and_move_within_videos(files):
    """No pixel stays put, so that a video cannot be told by its pixels' values alone."""
    corners = []
    for path in sorted(files.videos.iterdir()):
        frames = read_frames(path, [1.0, 2.0, 3.0])[:, :6, :6].astype(int)
        assert (frames[0] != frames[1]).any()
        corners.append(frames[0].mean())
    assert np.std(corners) > 3


def test_splits_share_neither_records_nor_videos(files):
    seen = {}
    for split in COUNTS:
        dialogues, _ = load_dialogues("mmduet2_rl", files.rl(split))
        seen[split] = (
            {d.id for d in dialogues},
            {t.frames[0].path for d in dialogues for t in d.turns},
        )
    for train, test in zip(seen["train"], seen["test"], strict=True):
        assert train
        assert test
        assert not train & test


def test_a_finished_set_is_found_not_made_again(tmp_path):
    files = make(tmp_path / "set")
    before = {path: path.stat().st_mtime_ns for path in files.root.rglob("*")}
    assert make(tmp_path / "set") == files
    assert {path: path.stat().st_mtime_ns for path in files.root.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"world": replace(SMALL, noise=5.0)}, "noise (3.0, asked for 5.0)"),
        ({"seed": 1}, "seed (0, asked for 1)"),
        ({"train": 2}, "train (1, asked for 2)"),
    ],
)
def test_another_setting_does_not_overwrite(tmp_path, change, named):
    files = make(tmp_path / "set")
    before = files.manifest.read_bytes()
    with pytest.raises(InputError) as caught:
        make(tmp_path / "set", **change)
    assert named in str(caught.value)
    assert str(files.root) in str(caught.value)
    assert files.manifest.read_bytes() == before


@pytest.mark.parametrize("manifest", [None, "{", "[]"])
def test_a_folder_with_something_else_is_left_alone(tmp_path, manifest):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("keep")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match="mine"):
        make(folder)
    assert (folder / "notes.txt").read_text() == "keep"


def test_an_interrupted_run_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    drawn = streamworld.draw_video

    def broken(path, *arguments):
        if "test-" in str(path):
            raise KeyboardInterrupt
        drawn(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(streamworld, "draw_video", broken)
        with pytest.raises(KeyboardInterrupt):
            make(folder)
    assert not folder.exists()
    files = make(folder)
    assert files.manifest.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.lock", "set"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "set").mkdir()
    assert make(tmp_path / "set").manifest.is_file()


@pytest.mark.parametrize(("field", "value"), [("train", 0), ("test", -1), ("seed", -1)])
def test_sizes_that_cannot_be_are_refused(tmp_path, field, value):
    with pytest.raises(InputError, match=f"field '{field}'"):
        make(tmp_path / "set", **{field: value})
    assert not list(tmp_path.iterdir())


def test_the_set_may_be_moved(files, tmp_path):
    moved = WorldFiles(tmp_path / "elsewhere")
    shutil.copytree(files.root, moved.root)
    dialogues, _ = load_dialogues("mmduet2_rl", moved.rl("test"))
    frame = dialogues[0].turns[0].frames[0]
    assert frame.path.startswith(str(moved.root))
    assert read_frames(frame.path, [frame.time]).shape == (1, 112, 112, 3)


def test_command_line_makes_a_set(tmp_path, capsys):
    sizes = ["--train", "1", "--test", "1", "--seed", "2", "--sheets", "1"]
    settings = ["--set", "size=56", "--set", "target_turns=3", "--set", "window=[3,5]"]
    out = f"--output={tmp_path / 'set'}"
    assert main(["world", out, "--world", "quiet", *sizes, *settings]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "set")
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert manifest["world"]["window"] == [3, 5]
    assert manifest["world"]["miss"] == 0.4
    assert len(list((tmp_path / "set" / "sheets").glob("test-0000-*.png"))) == 1


def test_command_line_reports_bad_settings_in_one_line(tmp_path, capsys):
    assert main(["world", f"--output={tmp_path / 'set'}", "--set", "window=[1,2]"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("turnwise world: error: field 'window'")
    assert not list(tmp_path.iterdir())
