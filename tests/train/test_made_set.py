"""A set made of one's own videos goes through supervised fine-tuning and RL like any other."""

from __future__ import annotations

import json

import numpy as np
import pytest
from runs import WORLD, rl, sft

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.making.cutting import CutSpec
from turnwise_jax.data.making.making import MakeJob, make_set
from turnwise_jax.train.metrics import METRICS, read_jsonl
from turnwise_jax.train.run import train


@pytest.fixture(scope="module")
def made(place, tmp_path_factory):
    """The world's videos with its windows, as a list of one's own."""
    folder = tmp_path_factory.mktemp("made")
    entries = [
        {
            "id": dialogue.id,
            "video": dialogue.turns[0].frames[0].path,
            "question": dialogue.turns[0].text,
            "answers": [{"span": [w.start, w.end], "text": w.answer} for w in dialogue.windows],
        }
        for dialogue in load_dialogues("mmduet2_sft", place.world.sft("train"))[0]
    ]
    (folder / "list.json").write_text(json.dumps(entries))
    spec = CutSpec(
        interval=WORLD.frame_interval,
        turn_frames=WORLD.frames_per_turn,
        segment=WORLD.target_turns * WORLD.frame_interval * WORLD.frames_per_turn,
    )
    counts, _ = make_set(MakeJob(folder / "list.json", folder / "set", spec=spec))
    assert counts.records["train"]["sft"] >= 8
    return folder / "set"


def steps(config) -> list[dict]:
    config.run.update(steps=2, export=False)
    directory, finished = train(config)
    assert finished
    return read_jsonl(directory / METRICS)


def test_supervised(place, made, tmp_path):
    config = sft(place, tmp_path / "run")
    config.data.path = str(made / "sft_train.jsonl")
    first, second = steps(config)
    assert second["loss"] < first["loss"]
    assert first["grad_norm"] > 0


def test_rl(place, made, tmp_path):
    config = rl(place, tmp_path / "run")
    config.data.path = str(made / "rl_train.parquet")
    for line in steps(config):
        assert np.isfinite(line["loss"])
        assert 0 < line["pauc"] < 100
