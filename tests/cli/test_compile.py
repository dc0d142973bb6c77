"""``turnwise compile``: refusals that it reads, a small run compiled for a slice, bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise_jax.cli.main import main
from turnwise_jax.train.aot.topology import read_refusal

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
SMALL = """
from turnwise_jax.train.config import rl_config

def get_config():
    config = rl_config("turnwise")
    config.compile.update({"frames": 6, "frame": (4, 4), "turns": 2, "text": 32})
    config.data.batch_size, config.rollout.group_size = 2, 2
    config.rollout.max_new_tokens = 4
    config.policy.checkpoint = "CHECKPOINT"
    return config
"""

STAGES = """
from turnwise_jax.train.config import rl_config, sft_config
from turnwise_jax.train.curriculum import curriculum_config

SMALL = {{"frames": 6, "frame": (4, 4), "turns": 2, "text": 32}}

def get_config():
    start, rl = sft_config(), rl_config("grpo")
    start.compile.update(SMALL)
    start.policy.checkpoint = "{checkpoint}"
    start.data.batch_size = 4
    rl.compile.update(SMALL)
    rl.data.batch_size, rl.rollout.group_size, rl.rollout.max_new_tokens = 2, 2, 4
    rl.algorithm.kl, rl.optimizer.inner_epochs = 1e-3, 2
    return curriculum_config({{"cold_start": start, "rl": rl}})
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config whose model is a directory with nothing but a config.json."""
    place = tmp_path_factory.mktemp("compile")
    from turnwise_jax.models.qwen2_5_vl import Config

    model = Config.tiny(
        8192, text_hidden_size=512, text_head_dim=128, text_mrope_section=(16, 24, 24)
    )
    (place / "config.json").write_text(json.dumps(model.to_hf()))
    file = place / "small.py"
    file.write_text(SMALL.replace("CHECKPOINT", str(place)))
    return file


def turnwise(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: libtpu is loaded once per process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "turnwise_jax.cli.main", "compile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_a_refusal_is_read():
    found = read_refusal(
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.1G of 15.75G hbm.\n"
        "Largest program allocations in hbm:\n\n"
        '  1. Size: 2.00G\n     Operator: op_name="jit(f)/sin"\n     Shape: f32[512,1048576]{1,0}\n'
        "  2. Size: 512.0M\n     Shape: bf16[8,8]{1,0}\n"
    )
    assert (found.needed, found.available) == (18.1 * GIB, 15.75 * GIB)
    assert found.buffers[0] == (2.0 * GIB, "f32[512,1048576]", "jit(f)/sin")
    assert found.buffers[1][0] == GIB / 2


def test_a_refusal_without_a_list_is_read():
    found = read_refusal(
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (17.54G) exceeds available HBM (15.75G). HLO module: jit_f."
    )
    assert (found.needed, found.available, found.buffers) == (17.54 * GIB, 15.75 * GIB, ())


def test_other_errors_are_no_refusals():
    assert read_refusal("INTERNAL: something else") is None


def test_without_libtpu_the_extra_is_named(config, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["compile", f"--config={config}", "--topology=v5e:2x2"]) == 2
    assert "pip install -e '.[tpu]'" in capsys.readouterr().err


def test_a_run_without_a_barrier_compiles(config, tmp_path):
    out = tmp_path / "figures.json"
    flags = ("--topology=v5e:2x2", "--config.rollout.desynchronised=True", f"--output={out}")
    done = turnwise(f"--config={config}", "--config.rollout.group_size=4", *flags)
    assert done.returncode == 0, done.stderr
    programs = json.loads(out.read_text())["programs"]
    assert [program["name"] for program in programs] == [
        *("encode", "begin", "start", "turns_4x2", "narrow_4x2", "turns_4x1", "update")
    ]
    for program in programs:
        moves = program["name"].startswith(("start", "narrow"))
        assert (program["flops"] == 0) == moves
        assert (program["bytes"]["resident"] > 0) == (program["name"] != "update")


def test_the_stages_of_a_curriculum_compile_one_by_one(config, tmp_path):
    """All of the first one's architecture; with a KL and several updates a batch in the second."""
    file, out = tmp_path / "stages.py", tmp_path / "figures.json"
    file.write_text(STAGES.format(checkpoint=config.parent))
    done = turnwise(f"--config={file}", "--topology=v5e:2x2", f"--output={out}")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("stage ")] == [
        *("stage cold_start", "stage rl")
    ]
    stages = json.loads(out.read_text())["stages"]
    names = {name: [p["name"] for p in found["programs"]] for name, found in stages.items()}
    assert names == {
        "cold_start": ["update"],
        "rl": ["encode", "begin", "turn", "update", "old_logprobs", "reference"],
    }
    assert stages["cold_start"]["parameters"] == stages["rl"]["parameters"]
    assert done.stdout.count("fits: at most") == 2
    for found in stages.values():
        assert (found["devices"], found["mesh"]["fsdp"]) == (4, 4)
        for program in found["programs"]:
            assert 0 < program["bytes"]["total"] < found["usable_bytes"]
            assert program["flops"] > 0


def test_what_is_wrong_with_a_stage_is_said_with_its_name(config, tmp_path):
    file = tmp_path / "stages.py"
    file.write_text(STAGES.format(checkpoint=config.parent))
    wrong = "--config.stages.cold_start.compile.turn_frames=20"
    done = turnwise(f"--config={file}", "--topology=v5e:2x2", wrong)
    assert done.returncode == 2
    assert "field 'stages.cold_start.compile'" in done.stderr.splitlines()[-1]


def test_an_unknown_slice_is_one_line(config):
    done = turnwise(f"--config={config}", "--topology=v9:2x2")
    assert done.returncode == 2
    assert "v9:2x2" in done.stderr.splitlines()[-1]
