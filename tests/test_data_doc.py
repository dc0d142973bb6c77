"""docs/data.md tells the truth: commands, formats, defaults and problems are those of the code."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from doc_commands import ROOT, blocks, page

from turnwise_jax.data.checking.problems import KINDS
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.making.cutting import CutSpec
from turnwise_jax.data.making.making import MakeJob, make_set
from turnwise_jax.data.records import Window
from turnwise_jax.data.sources import mmduet2_rl

DOC = page("docs/data.md")
ONION = Window(4.0, 9.5, "What is the cook doing?", "He cuts an onion.")


def made_names() -> set[str]:
    """Files that the page's `data make` commands and its own words promise."""
    return set(re.findall(r"(?:rl|sft)_train\.\w+", DOC))


def write_video(path: Path, seconds: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1)
        for index in range(seconds):
            picture = np.full((48, 64, 3), index, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def test_the_example_list_can_be_made(tmp_path):
    write_video(tmp_path / "kitchen.mp4", 30)
    write_video(tmp_path / "trips/tour.mp4", 54)
    (tmp_path / "list.json").write_text(blocks(DOC, "json")[0])
    counts, _ = make_set(MakeJob(tmp_path / "list.json", tmp_path / "own"))
    assert (counts.answers, counts.missed, counts.cut) == (4, 0, 0)
    assert made_names() <= {path.name for path in (tmp_path / "own").iterdir()}


def test_the_rl_example_can_be_read(tmp_path):
    row, companion = (json.loads(block) for block in blocks(DOC, "json")[1:3])
    path = tmp_path / "rl.parquet"
    pq.write_table(pa.Table.from_pylist([row], schema=mmduet2_rl.SCHEMA), path)
    mmduet2_rl.user_turns_path(path).write_text(json.dumps(companion))
    (dialogue,) = load_dialogues("mmduet2_rl", path)[0]
    assert [(turn.time, turn.reply) for turn in dialogue.turns] == [
        (4.0, "NO REPLY"),
        (8.0, None),
        (12.0, None),
    ]
    assert dialogue.windows == (ONION,)


def test_the_sft_example_can_be_read(tmp_path):
    (tmp_path / "sft.jsonl").write_text(json.dumps(json.loads(blocks(DOC, "json")[3])))
    (dialogue,) = load_dialogues("mmduet2_sft", tmp_path / "sft.jsonl")[0]
    assert [(turn.time, turn.reply) for turn in dialogue.turns] == [
        (4.0, "NO REPLY"),
        (8.0, "He cuts an onion."),
    ]
    assert dialogue.windows == (ONION,)


def test_every_problem_is_listed_with_its_meaning():
    rows = re.findall(r"^\| `(\w+)` \| (yes)? ?\| (.*) \|$", DOC, re.MULTILINE)
    assert {kind: (fatal == "yes", meaning) for kind, fatal, meaning in rows} == KINDS


def test_defaults_are_those_of_the_table():
    rows = dict(re.findall(r"^\| `--(\w+)` \| (\S+) \|", DOC, re.MULTILINE))
    assert float(rows.pop("held_out")) == MakeJob(Path(), Path()).held_out
    words = {True: "on", False: "off"}
    usual = CutSpec()._asdict()
    assert rows == {
        name: words[value] if isinstance(value, bool) else f"{value:g}" if value != "end" else value
        for name, value in usual.items()
    }


def test_pictures_exist():
    for name in re.findall(r"!\[.*?\]\((\S+)\)", DOC):
        assert (ROOT / "docs" / name).is_file()
