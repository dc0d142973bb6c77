"""docs/avatar.md tells the truth: commands, records, fields and tables are those of the code."""

from __future__ import annotations

import re
import shutil
import wave
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from doc_commands import ROOT, blocks, commands, page, read

from turnwise_jax.cli.main import COMMANDS
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.sources.benchmarks import BENCHMARKS
from turnwise_jax.kernels import replay_advantages, tas_weights
from turnwise_jax.rewards.qa import STAGE_WEIGHTS
from turnwise_jax.rollout.replay import Sample
from turnwise_jax.train.config import avatar_config
from turnwise_jax.train.curriculum import stage_config, stage_directory
from turnwise_jax.train.validate import check_fields, flatten
from turnwise_jax.worlds.soundsettings import SoundWorld
from turnwise_jax.worlds.soundworld import generate

DOC = page("docs/avatar.md")


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_curriculums_last_policy_is_what_is_evaluated():
    (train,) = (words for words in commands(DOC) if "curriculum" in " ".join(words))
    config = read(train).config
    for stage in range(len(config.order)):
        check_fields(stage_config(config, stage))
    last = stage_directory(config, len(config.order) - 1) / "policy"
    evaluated = {
        read(words).config.policy.checkpoint for words in commands(DOC) if words[1] == "eval"
    }
    assert evaluated == {str(last), ""}  # "": predictions are scored again


def test_the_worlds_command_makes_what_the_page_lists(tmp_path):
    (words,) = (words for words in commands(DOC) if words[1] == "world")
    sizes = {"--train": "1", "--test": "1", "--sheets": "1", "--output": str(tmp_path / "set")}
    assert {flag.split("=")[0] for flag in words[2:]} == {"--kind", *sizes}
    COMMANDS[words[1]]([words[2], *(f"{flag}={value}" for flag, value in sizes.items())])
    named = re.findall(r"`((?:sft|rl|qa)_\w+\.jsonl)`", DOC)
    assert len(named) == 5
    assert all((tmp_path / "set" / name).is_file() for name in named)
    assert len(list((tmp_path / "set" / "sheets").glob("*.png"))) == 1


def test_example_records_can_be_read(tmp_path):
    made = generate(tmp_path / "set", SoundWorld(), train=1, test=1, progress=False)
    (tmp_path / "clips").mkdir()
    for name in ("kitchen", "street"):
        shutil.copy(made.videos / "train-0000.mp4", tmp_path / "clips" / f"{name}.mp4")
    PIL.Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "sign.png")
    with wave.open(str(tmp_path / "talk.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(bytes(32000))
    (tmp_path / "own.jsonl").write_text(blocks(DOC, "json")[0])
    dialogues, _ = load_dialogues("qa", tmp_path / "own.jsonl")
    kinds = [d.question.kind for d in dialogues]
    assert kinds == ["multiple_choice", "numeric", "ocr", "free_form", "multiple_choice"]
    assert [d.question.answer for d in dialogues][0::4] == ["B", "B"]
    assert [d.turns[0].audio is not None for d in dialogues] == [True, True, False, True, True]
    assert [d.turns[0].reply is not None for d in dialogues] == [False] * 4 + [True]


def test_fields_that_the_page_names_exist():
    fields = flatten(avatar_config().to_dict())
    sections = {name.split(".")[0] for name in fields}
    named = {
        name for name in re.findall(r"`(\w+\.\w+)(?:=\w+)?`", DOC) if name.split(".")[0] in sections
    }
    assert len(named) > 15
    assert named <= set(fields)


def test_stage_weights_are_those_of_the_table():
    rows = re.findall(r"^\| ([123]) [\w-]+(?: \w+)? \| (.*) \|$", DOC, re.MULTILINE)
    found = {
        (source, int(stage)): tuple(map(float, cell.split(", ")))
        for stage, cells in rows
        for source, cell in zip(("text", "table", "code"), cells.split(" | "), strict=True)
    }
    known = {(s, n): tuple(w) for s, stages in STAGE_WEIGHTS.items() for n, w in stages.items()}
    assert found == known


def test_every_benchmark_is_listed_with_the_name_of_its_file():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \| [^|]* \|$", DOC, re.MULTILINE))
    listed = {name: cell for name, cell in rows.items() if name in BENCHMARKS}
    assert set(listed) == set(BENCHMARKS)
    for name, module in BENCHMARKS.items():
        if name != "av_odyssey":  # its rows come in several forms
            suffix = Path(module.PATTERN).suffix
            assert suffix in listed[name], name
            assert module.PATTERN.split("*")[0] in listed[name], name


def test_numbers_that_the_page_states():
    long = np.ones(10_001, bool)
    means = {s: float(tas_weights(long, shape=s).mean()) for s in ("u", "linear_decay", "uniform")}
    assert means == pytest.approx({"u": 1 + 0.3 / 3, "linear_decay": 1.15, "uniform": 1}, abs=1e-4)
    reward, average = np.float32([2, 1, 1]), np.float32([1.5, 1, 1])
    first, same, _ = replay_advantages(reward, average)
    assert first > 0
    assert same == 0
    row = np.zeros(2048)
    sample = Sample("q", row, row, row, False, 0.0, 0.0, 0.0, 0)
    size = sum(getattr(sample, name).nbytes for name in ("tokens", "logp", "ref_logp"))
    assert size == 12 * 2048
    assert round(10_000 * size / 1e6, -1) == 250
