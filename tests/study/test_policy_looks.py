"""A policy trained from random weights beats silence, and only with its own video's frames.

The one test that trains to the point of success: an easy world, about a minute on two cores.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from turnwise_jax.eval.report import Report
from turnwise_jax.study.config import BASE, study_config
from turnwise_jax.study.runner import run_study
from turnwise_jax.train.config import sft_config

SILENCE = 25.0


def easy_study(directory):
    """Two shapes in four colours, one question, five turns; SFT only."""
    sft = sft_config()
    sft.policy.update(checkpoint=BASE, freeze=(), dtype="float32", remat="none")
    sft.optimizer.update(learning_rate=4e-3, warmup_steps=20, schedule="cosine", b2=0.99)
    sft.data.update(batch_size=16, shuffle=True)
    sft.run.update(steps=180, checkpoint_every=1000)
    sft.shapes.row_buckets = 1
    config = study_config({"sft": sft}, {"sft": "SFT"})
    config.dir = str(directory)
    config.world.update(train=160, test=24)
    config.world.changes.update(
        colours=4,
        shapes=2,
        questions=("appear",),
        dialogues_per_video=1,
        two_questions=0.0,
        history_turns=1,
        target_turns=4,
        leave=0.3,
        recolour=0.0,
        object_size=(0.6, 0.8),
        fps=4,
        size=56,
        noise=2.0,
        texture=4.0,
    )
    config.base.vocab_size = 320
    config.base.model.update(
        text_initializer_range=0.1, vision_fullatt_block_indexes=(0, 1), text_num_hidden_layers=2
    )
    config.evaluation.update(batch_size=24, new_tokens=8, resamples=50, forced=())
    config.pictures.dialogues = 0
    return config


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    directory = tmp_path_factory.mktemp("looks")
    run_study(easy_study(directory), console=Console(file=io.StringIO()))
    return {
        name: Report.read(directory / "eval" / f"{name}.json").metrics
        for name in ("silent", "sft", "sft_swapped")
    }


def test_it_beats_silence_on_held_out_videos(reports):
    assert reports["silent"]["pauc"] == SILENCE
    assert reports["sft"]["pauc"] > SILENCE + 15
    assert reports["sft"]["reward"] > reports["silent"]["reward"] + 0.5


def test_with_another_videos_frames_it_falls_to_silence(reports):
    assert reports["sft_swapped"]["pauc"] < SILENCE + 6
    assert reports["sft_swapped"]["reward"] < reports["sft"]["reward"] - 0.5
