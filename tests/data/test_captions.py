"""Caption files as answers: SubRip, WebVTT, and the video that they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest
from video_files import write_video

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.making.captions import read_captions, rows
from turnwise_jax.data.making.making import MakeJob, make_set
from turnwise_jax.errors import InputError

SRT = """1
00:00:01,000 --> 00:00:09,500
<i>He</i> cuts
an onion.

2
00:00:10,000 --> 00:00:11,000


3
01:00:12,250 --> 01:00:16,000 X1:40 X2:600 Y1:20 Y2:50
{\\an8}5 < 6 &amp; done.
"""
VTT = """WEBVTT - made by hand
Kind: captions

STYLE
::cue { color: red }

NOTE 00:00:00.000 --> 00:00:01.000
is no caption

intro
00:01.000 --> 00:09.500 align:start position:0%
<v Ann>He <00:00:02.000><c.loud>cuts</c>
an onion.</v>

01:00:12.250 --> 01:00:16.000
5 &lt; 6 &amp; done.
"""
SAID = [(1.0, 9.5, "He cuts an onion."), (3612.25, 3616.0, "5 < 6 & done.")]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two videos with captions, one of them in a folder of its own."""
    (tmp_path / "in/day 2").mkdir(parents=True)
    write_video(tmp_path / "in/cook.mp4", 24, rate=1)
    write_video(tmp_path / "in/day 2/walk.final.mkv", 24, rate=1)
    (tmp_path / "in/cook.en.srt").write_text(SRT.partition("\n3\n")[0])
    (tmp_path / "in/day 2/walk.final.vtt").write_text(
        "WEBVTT\n\n00:02.000 --> 00:08.000\nA bridge.\n\n00:09.000 --> 00:30.000\nA mill.\n"
    )
    return tmp_path / "in"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(("name", "text"), [("a.srt", SRT), ("a.vtt", VTT)])
def test_captions_are_read_without_their_markup(tmp_path, name, text, mark, ending):
    path = tmp_path / name
    path.write_text(mark + text.replace("\n", ending), encoding="utf-8", newline="")
    assert [(c.start, c.end, c.text) for c in read_captions(path)] == SAID


def test_a_folder_of_captions_becomes_a_set(folder, tmp_path):
    job = MakeJob(folder, tmp_path / "set", question=" What happens? ", system="Watch.")
    counts, _ = make_set(job)
    assert [name for name, _ in rows(folder)] == ["cook.en", "day 2/walk.final"]
    assert (counts.entries, counts.answers, counts.cut) == (2, 3, 1)
    cook, walk = load_dialogues("mmduet2_sft", tmp_path / "set/sft_train.jsonl")[0]
    assert cook.turns[0].text == "What happens?"
    assert cook.system == "Watch."
    assert [(w.start, w.end, w.answer) for w in cook.windows] == [SAID[0]]
    assert cook.turns[1].reply == "He cuts an onion."
    assert [(w.start, w.end) for w in walk.windows] == [(2.0, 8.0), (9.0, 24.0)]
    assert walk.turns[0].frames[0].path == str(folder / "day 2/walk.final.mkv")


def test_one_caption_file(folder, tmp_path):
    job = MakeJob(folder / "cook.en.srt", tmp_path / "set", question="What happens?", kind="rl")
    make_set(job)
    (dialogue,) = load_dialogues("mmduet2_rl", tmp_path / "set/rl_train.parquet")[0]
    assert dialogue.id == "cook.en@0-20"
    assert dialogue.turns[0].frames[0].path == str(folder / "cook.mp4")


def test_captions_need_a_question_and_a_video(folder, tmp_path):
    with pytest.raises(InputError, match="field 'question': is needed: what the captions answer"):
        make_set(MakeJob(folder, tmp_path / "set"))
    (folder / "cook.mp4").unlink()
    with pytest.raises(InputError, match=r"cook.en.srt: record 'cook.en': field 'video': no cook"):
        make_set(MakeJob(folder, tmp_path / "set", question="What happens?"))
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: holds no captions \(.srt, .vtt\)"):
        make_set(MakeJob(folder / "empty", tmp_path / "set", question="What happens?"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SRT.replace("00:00:09,500", "0.09,5"), r"bad.srt: record 'bad': field 'captions\[0\]': "),
        (SRT.replace("01:00:12,250", "soon"), r"field 'captions\[2\]': needs h:mm:ss --> h:mm:ss"),
        (SRT.replace("00:00:09,500", ""), "needs h:mm:ss"),
        ("WEBVTT\n\nNOTE nothing else\n", "holds no caption"),
        ("", "holds no caption"),
    ],
)
def test_bad_captions_are_named(tmp_path, text, message):
    path = tmp_path / "bad.srt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_captions(path)


def test_captions_in_another_encoding_are_refused(tmp_path):
    path = tmp_path / "bad.srt"
    path.write_bytes(SRT.replace("onion", "crêpe").encode("latin-1"))
    with pytest.raises(InputError, match="not readable as UTF-8 text"):
        read_captions(path)
