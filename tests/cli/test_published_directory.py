"""A downloaded checkpoint needs two flags: its directory and the folder of the data.

Narrow here; ``tests/published.py`` writes the real widths for a try by hand.
"""

from __future__ import annotations

import json

import pytest
from published import write_published

from turnwise_jax.cli.main import main
from turnwise_jax.models.safetensors import INDEX, Checkpoint
from turnwise_jax.worlds.settings import World
from turnwise_jax.worlds.streamworld import generate

NARROW = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
NARROW_VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 64,
}


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hub") / "Qwen2.5-VL-3B-Instruct"
    write_published(directory, text=NARROW, vision=NARROW_VISION)
    return directory


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of videos with one SFT file."""
    world = World(history_turns=1, target_turns=2, dialogues_per_video=1)
    files = generate(
        tmp_path_factory.mktemp("data") / "world", world, train=2, test=1, progress=False
    )
    files.sft("test").unlink()
    return files.root


def test_supervised_training_needs_the_checkpoint_and_the_data(downloaded, root, tmp_path):
    command = [
        *("train", "--config=configs/sft/qwen2_5_vl_3b.py"),
        *(f"--config.policy.checkpoint={downloaded}", f"--config.data.root={root}"),
        *(f"--config.run.dir={tmp_path}/run", "--config.run.steps=1"),
        *("--config.data.batch_size=2", "--config.optimizer.accumulate=1"),
    ]
    assert main(command) == 0
    (line,) = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    # Random weights say nothing yet: every token is about as likely as any other.
    assert json.loads(line)["loss"] == pytest.approx(11.93, abs=0.2)  # log 151,936
    written = Checkpoint(tmp_path / "run/policy")
    assert (downloaded / INDEX).is_file()
    assert sorted(written.names()) == sorted(Checkpoint(downloaded).names())
