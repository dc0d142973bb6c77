"""``turnwise data`` as a user calls it: what it prints, writes and returns, and how it refuses."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from turnwise_jax.cli.main import main
from turnwise_jax.data.load import load_dialogues

ENTRY = {
    "video": "clip.mp4",
    "question": "What happens?",
    "answers": [{"span": [2, 5], "text": "A door opens."}, {"span": [6, 7], "text": "It shuts."}],
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    """A list, captions, and two videos of 12 s."""
    folder = tmp_path_factory.mktemp("videos")
    for name in ("clip", "other"):
        with av.open(str(folder / f"{name}.mp4"), "w") as out:
            stream = out.add_stream("libx264", rate=1)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            stream.codec_context.time_base = Fraction(1, 1)
            for index in range(12):
                picture = np.full((48, 64, 3), 20 * index, np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts = index
                out.mux(stream.encode(frame))
            out.mux(stream.encode())
    entries = [ENTRY, {**ENTRY, "video": "other.mp4"}]
    (folder / "list.json").write_text(json.dumps(entries))
    (folder / "clip.vtt").write_text("WEBVTT\n\n00:02.000 --> 00:05.000\nA door opens.\n")
    return folder


def refused(capsys, *argv: str) -> str:
    """The one line in which a command refuses, with status 2."""
    assert main(["data", *argv]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_set_is_made_and_found_in_order(videos, tmp_path, capsys):
    out = tmp_path / "set"
    command = ["data", "make", f"--input={videos / 'list.json'}", f"--output={out}"]
    assert main([*command, "--held_out=0.5"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: train: 1 rl, 1 sft of 1 videos",
        f"{out}: test: 1 rl, 1 sft of 1 videos",
        "2 of 4 answers; 2 have no decision in their window (one every 4 s)",
    ]
    for source, name in (("mmduet2_rl", "rl_train.parquet"), ("mmduet2_sft", "sft_train.jsonl")):
        checks = tmp_path / "checked" / source
        check = ["data", "check", str(out / name), f"--source={source}", f"--output={checks}"]
        assert main([*check, "--decode"]) == 0
        printed = capsys.readouterr().out
        assert "1 records, 0 unusable." in printed
        assert printed.startswith((checks / "summary.md").read_text())
        assert {path.name for path in checks.iterdir()} == {
            *("summary.md", "problems.jsonl", "summary.png"),
        }
    assert main(command) == 2  # it is there


def test_every_setting_reaches_the_set(videos, tmp_path, capsys):
    out = tmp_path / "set"
    assert (
        main(
            [
                *("data", "make", f"--input={videos / 'clip.vtt'}", f"--output={out}"),
                *("--kind=rl", "--question=What is it?", "--system=Look.", "--interval=1"),
                *("--turn_frames=1", "--segment=2", "--max_frames=6", "--history_turns=1"),
                *("--reply_at=start", "--keep_silent", "--sound"),
            ]
        )
        == 0
    )
    capsys.readouterr()
    dialogues, _ = load_dialogues("mmduet2_rl", out / "rl_train.parquet")
    assert [len(d.open_turns) for d in dialogues] == [2] * 6
    assert [d.first_open for d in dialogues] == [0, 1, 1, 1, 1, 1]
    assert dialogues[0].turns[0].text == "What is it?"
    assert dialogues[0].system == "Look."
    assert dialogues[1].turns[0].reply == "A door opens."  # at 2 s, the start of its window
    settings = json.loads((out / "manifest.json").read_text())["settings"]
    assert settings == {
        **{"interval": 1.0, "turn_frames": 1, "segment": 2.0, "max_frames": 6, "history_turns": 1},
        **{"reply_at": "start", "sound": True, "keep_silent": True},
        **{"kind": "rl", "held_out": 0.0, "seed": 0},
    }


def test_unusable_records_end_in_status_1(videos, tmp_path, capsys):
    out = tmp_path / "set"
    main(["data", "make", f"--input={videos / 'list.json'}", f"--output={out}", "--kind=sft"])
    path = out / "sft_train.jsonl"
    path.write_text(path.read_text().replace("other.mp4", "gone.mp4"))
    with pytest.raises(SystemExit) as status:
        main(["data", "check", "--source=mmduet2_sft", str(path)])
    assert status.value.code == 1
    printed = capsys.readouterr().out
    assert "2 records, 1 unusable." in printed
    assert "record 'other': field 'turns[2].frames[1]': missing_media:" in printed


def test_the_grid_of_whole_videos_can_be_chosen(videos, tmp_path, capsys):
    row = {"id": "q", "video": str(videos / "clip.mp4"), "question": "What?", "answer": "A door"}
    (tmp_path / "qa.jsonl").write_text(json.dumps(row))
    command = ["data", "check", str(tmp_path / "qa.jsonl"), "--source=qa", "--frames=3"]
    assert main(command) == 0
    assert "| frames | 3 |" in capsys.readouterr().out


def test_entries_that_were_left_out_are_printed(videos, tmp_path, capsys):
    entries = [ENTRY, *({**ENTRY, "video": f"{index}.mp4"} for index in range(25))]
    path = tmp_path / "list.json"
    path.write_text(json.dumps(entries))
    command = ["data", "make", f"--input={path}", f"--root={videos}", f"--output={tmp_path / 'a'}"]
    assert "record '0': field 'video'" in refused(capsys, *command[1:])
    assert main([*command, "--on_bad_record=skip"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("left out: ") for line in printed) == 21
    assert printed[-1] == "left out: 5 more"


def test_what_is_refused(videos, tmp_path, capsys):
    path = str(videos / "list.json")
    for argv, message in (
        (["mend"], "unknown command 'mend'; see `turnwise data --help`"),
        (["check", "--source=qa"], "needs one PATH"),
        (["check", path], "--source is required"),
        (["check", path, path, "--source=qa"], "needs one PATH"),
        (["check", path, "--source=mmduet3"], "mmduet3"),
        (["check", str(videos), "--source=qa", f"--output={videos}"], "is the set itself"),
        (["check", str(tmp_path / "none"), "--source=qa"], "no such file"),
        (["make", f"--input={path}"], "--output is required"),
        (["make", "--output=x"], "--input is required"),
        (["make", f"--input={tmp_path / 'none'}", "--output=x"], "no such file or folder"),
        (["make", path, "--output=x"], "unexpected argument"),
    ):
        assert message in refused(capsys, *argv)


def test_help_lists_commands_and_flags(capsys):
    for argv, text in (
        (["--help"], "check     what is in a set"),
        (["check", "--help"], "--turn_frames"),
        (["make", "--help"], "--history_turns"),
    ):
        with pytest.raises(SystemExit) as status:
            main(["data", *argv])
        assert status.value.code == 0
        assert text in capsys.readouterr().out
    with pytest.raises(SystemExit) as status:
        main(["data"])
    assert status.value.code == 2
