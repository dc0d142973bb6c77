"""The files of an audio-visual set: formats, determinism, splits; no half set, none mixed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from turnwise_jax.cli.main import main
from turnwise_jax.data.audio import read_audio
from turnwise_jax.data.hints import hinted, is_hinted
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.sources import qa
from turnwise_jax.data.video import probe, read_frames
from turnwise_jax.errors import InputError
from turnwise_jax.worlds import soundworld
from turnwise_jax.worlds.sounddraw import question_sheet
from turnwise_jax.worlds.soundscript import STAGES
from turnwise_jax.worlds.soundsettings import SOUNDWORLDS, SoundWorld
from turnwise_jax.worlds.soundworld import SoundWorldFiles, clips, dialogues, generate

SMALL = SoundWorld(size=42, fps=4)
TRAIN, TEST, SEED = 6, 3, 5


def make(folder: Path, world: SoundWorld = SMALL, *, train: int = 1, test: int = 1, seed: int = 0):
    return generate(folder, world, train=train, test=test, seed=seed, progress=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> SoundWorldFiles:
    return make(
        tmp_path_factory.mktemp("sounds") / "set",
        SoundWorld(),
        train=TRAIN,
        test=TEST,
        seed=SEED,
    )


def read(path: Path, clip: ClipSpec | None = None) -> list[Dialogue]:
    found, skipped = load_dialogues("qa", path, clip=clip)
    assert not skipped
    return found


def plain(dialogue: Dialogue, root: Path) -> Dialogue:
    """The dialogue with media paths relative to ``root``."""
    turn = dialogue.turns[0]
    frames = tuple(
        replace(f, path=str(Path(f.path).relative_to(root)), time=round(f.time, 6))
        for f in turn.frames
    )
    audio = replace(turn.audio, path=str(Path(turn.audio.path).relative_to(root)))
    return replace(dialogue, turns=(replace(turn, frames=frames, audio=audio),), file="")


def test_what_was_written_is_read_back(files):
    for path, split, families, reply in (
        (files.sft("train"), "train", None, True),
        (files.sft("test"), "test", None, True),
        (files.rl(), "train", None, False),
        (files.qa_test, "test", None, False),
        *((files.rl(stage), "train", families, False) for stage, families in STAGES.items()),
    ):
        world, count = SoundWorld(), TRAIN if split == "train" else TEST
        expected = [
            d
            for clip in clips(world, split, count, SEED)
            for d in dialogues(world, clip, families, reply=reply)
        ]
        found = read(path, ClipSpec(world.slots))
        helped = [is_hinted(d.id) for d in found]
        assert any(helped) == (path == files.sft("train"))
        expected = [
            hinted(d) if with_hint else d for d, with_hint in zip(expected, helped, strict=True)
        ]
        assert [plain(d, files.root) for d in found] == [plain(d, Path()) for d in expected]
        assert {d.turns[0].reply is not None for d in found} == {reply}


def test_the_frames_and_the_sound_are_those_that_the_config_asks_for(files):
    (turn,) = read(files.qa_test, ClipSpec(8))[0].turns
    assert len(turn.frames) == 8
    assert turn.video
    assert (turn.audio.start, turn.audio.end) == (0.0, 3.0)
    (turn,) = read(files.qa_test, ClipSpec(8, sound=False))[0].turns
    assert turn.audio is None


def test_the_lines_are_plain_json_with_the_formats_own_fields(files):
    line = json.loads(files.sft("train").read_text().splitlines()[0])
    assert {"id", "video", "question", "answer", "kind", "category"} <= set(line)
    assert {"audio_cues", "hint", "system", "response", "start", "end"} <= set(line)
    assert line["video"] == "videos/train-0000.mp4"
    assert line["response"].startswith("<think>")
    open_ones = [json.loads(line) for line in files.rl().read_text().splitlines()]
    assert not any("response" in line for line in open_ones)


def test_the_stages_hold_their_families_of_all_training_questions(files):
    every = {d.id for d in read(files.rl())}
    for stage, families in STAGES.items():
        ids = {d.id for d in read(files.rl(stage))}
        assert ids == {i for i in every if i.rsplit("-", 1)[1] in families}


def test_writing_again_gives_the_same_bytes(files, tmp_path):
    found = read(files.sft("train"))
    qa.write(found, files.root / "again.jsonl", root=files.root)
    again = (files.root / "again.jsonl").read_bytes()
    (files.root / "again.jsonl").unlink()
    assert again == files.sft("train").read_bytes()


def test_clips_are_real_files_with_pictures_and_sound(files):
    names = sorted(path.name for path in files.videos.iterdir())
    counts = {"train": TRAIN, "test": TEST}
    assert names == sorted(f"{s}-{i:04d}.mp4" for s, n in counts.items() for i in range(n))
    for path in files.videos.iterdir():
        info = probe(path)
        assert (info.width, info.height, info.fps, info.duration) == (84, 84, 8, 3.0)
        assert info.has_audio
        assert np.abs(read_audio(path, 0.0, 3.0)).max() > 0.2


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    first, second = make(tmp_path / "a", train=2), make(tmp_path / "b", train=2)
    names = [p.relative_to(first.root) for p in first.root.rglob("*") if p.is_file()]
    assert len(names) == 11
    for name in names:
        if name.suffix != ".mp4":
            assert (first.root / name).read_bytes() == (second.root / name).read_bytes()
    for path in first.videos.iterdir():
        times = [0.25, 1.25, 2.75]
        other = second.videos / path.name
        np.testing.assert_array_equal(read_frames(path, times), read_frames(other, times))
        np.testing.assert_array_equal(read_audio(path, 0, 3), read_audio(other, 0, 3))


def test_seed_and_split_change_what_is_seen_and_heard(tmp_path):
    made = [make(tmp_path / "a"), make(tmp_path / "b", seed=1)]
    paths = [f.videos / f"{split}-0000.mp4" for f in made for split in ("train", "test")]
    assert len({read_frames(path, [1.0]).tobytes() for path in paths}) == 4
    assert len({read_audio(path, 0, 3).tobytes() for path in paths}) == 4


def test_splits_share_neither_records_nor_clips(files):
    train, test = read(files.sft("train")), read(files.sft("test"))
    assert not {d.id for d in train} & {d.id for d in test}
    assert not {d.turns[0].frames[0].path for d in train} & {d.turns[0].audio.path for d in test}
    ids = Counter(d.id for d in train)
    assert max(ids.values()) == 1


def test_a_finished_set_is_found_and_another_is_not_overwritten(tmp_path):
    files = make(tmp_path / "set")
    before = {path: path.stat().st_mtime_ns for path in files.root.rglob("*")}
    assert make(tmp_path / "set") == files
    for change in ({"seed": 1}, {"train": 2}, {"world": replace(SMALL, noise=5.0)}):
        with pytest.raises(InputError, match=r"another (seed|train|noise)"):
            make(tmp_path / "set", **change)
    assert {path: path.stat().st_mtime_ns for path in files.root.rglob("*")} == before


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(InputError, match="mine"):
        make(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_an_interrupted_run_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    drawn = soundworld.draw_clip

    def broken(path, *arguments):
        if "test-" in str(path):
            raise KeyboardInterrupt
        drawn(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(soundworld, "draw_clip", broken)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert make(tmp_path / "set").manifest.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.lock", "set"]


@pytest.mark.parametrize(("field", "value"), [("train", 0), ("test", -1), ("seed", -1)])
def test_sizes_that_cannot_be_are_refused(tmp_path, field, value):
    with pytest.raises(InputError, match=f"field '{field}'"):
        make(tmp_path / "set", **{field: value})
    assert not list(tmp_path.iterdir())


def test_command_line_makes_a_set_with_sheets(tmp_path, capsys):
    sizes = ["--train", "1", "--test", "1", "--seed", "2", "--sheets", "2"]
    out = tmp_path / "set"
    command = ["world", "--kind=sound", f"--output={out}", "--world=hard", *sizes]
    assert main([*command, "--set", "things=[2,3]"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["world"]["things"] == [2, 3]
    assert manifest["world"]["noise"] == SOUNDWORLDS["hard"].noise
    assert len(list((out / "sheets").glob("test-0000-*.png"))) == 2


def test_command_line_reports_bad_settings_in_one_line(tmp_path, capsys):
    command = ["world", "--kind=sound", f"--output={tmp_path / 'set'}"]
    for wrong, told in {
        "--set=seconds=2.7": "field 'seconds'",
        "--set=seconds": "field 'set': 'seconds' is not of the form",
        "--world=redundant": "field 'world': is 'redundant'; sound has demo",
        "--out=elsewhere": "Unknown command line flag 'out'",
    }.items():
        assert main([*command, wrong]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith(f"turnwise world: error: {told}")
    assert not list(tmp_path.iterdir())


def test_turnwise_world_makes_either_kind(tmp_path):
    sizes = ["--train", "1", "--test", "1"]
    assert main(["world", "--kind=sound", f"--output={tmp_path / 'heard'}", *sizes]) == 0
    assert main(["world", f"--output={tmp_path / 'seen'}", *sizes, "--set", "size=56"]) == 0
    assert (tmp_path / "heard" / "qa_test.jsonl").is_file()
    assert (tmp_path / "seen" / "rl_test.parquet").is_file()
    command = ["world", "--kind=sound", f"--output={tmp_path / 'x'}"]
    assert main([*command, "--set", "window=[3,5]"]) == 2  # a field of the other kind


def test_a_sheet_shows_frames_wave_and_texts(files, tmp_path):
    dialogue = read(files.sft("test"), ClipSpec(6))[0]
    for reply in (None, "<think>I see: top ring red.</think><answer>red</answer>"):
        question_sheet(dialogue, tmp_path / f"{reply is None}.png", reply=reply)
    pixels = []
    for name in ("True", "False"):
        with Image.open(tmp_path / f"{name}.png") as sheet:
            pixels.append(np.asarray(sheet.convert("RGB")))
    height, width, _ = pixels[0].shape
    assert width > 600
    assert height > 300
    assert (pixels[0] != pixels[1]).any()
    (turn,) = dialogue.turns
    muted = replace(dialogue, turns=(replace(turn, audio=None),))
    question_sheet(muted, tmp_path / "muted.png")
    with Image.open(tmp_path / "muted.png") as sheet:
        assert (np.asarray(sheet.convert("RGB")) != pixels[0]).sum() > 500
