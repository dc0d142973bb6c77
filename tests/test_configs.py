"""Every file under ``configs/`` resolves to a run that could start, and is a lab record."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from turnwise_jax.algorithms import ALGORITHMS
from turnwise_jax.data.images import FrameSpec, frame_grid
from turnwise_jax.errors import InputError
from turnwise_jax.models import MODELS
from turnwise_jax.study import ablation_config, exact_config
from turnwise_jax.study.config import check, run_config
from turnwise_jax.train.aot.plan import assumed_frame
from turnwise_jax.train.curriculum import stage_config
from turnwise_jax.train.validate import validate
from turnwise_jax.worlds.streamworld import WorldFiles

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "configs").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
COMMANDS = {"eval": "eval", "worlds": "study"}  # folder -> command; all others are for `train`


def load(path: Path):
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def variants(path: Path) -> list[ConfigDict]:
    """The config as it is, and for each argument that the file takes: ``FILE.py:2``."""
    get_config = load(path).get_config
    arguments = {
        (): (),
        ("stage",): ("1", "2", "3"),
        ("size",): ("3b", "7b"),
        ("algorithm",): tuple(name for name in ALGORITHMS if name != "sft"),
    }[tuple(inspect.signature(get_config).parameters)]
    return [get_config(), *map(get_config, arguments)]


def runs(path: Path) -> list[ConfigDict]:
    """Every training run that a file describes."""
    folder = path.relative_to(ROOT / "configs").parts[0]
    if folder == "eval":
        return []
    configs = variants(path)
    if folder != "worlds":
        return [run for config in configs for run in stages(config)]
    return [run for config in configs for run in study_runs(config)]


def study_runs(config: ConfigDict) -> list[ConfigDict]:
    """The runs of a study, of an ablation those of its first seed and their start.

    An exact study trains nothing.
    """
    if "problem" in config:
        exact_config.check(config)
        return []
    if "seeds" in config:
        ablation_config.check(config)
        seed = config.seeds[0]
        start = ablation_config.start_config(config)
        return [start, *(ablation_config.run_config(config, name, seed) for name in config.order)]
    check(config)
    return [run_config(config, name, WorldFiles(Path("world"))) for name in config.order]


def stages(config: ConfigDict) -> list[ConfigDict]:
    """The runs of a curriculum; otherwise the config itself."""
    if "stages" not in config:
        return [config]
    return [stage_config(config, stage) for stage in range(len(config.order))]


def test_there_are_configs_for_every_kind_of_work():
    assert {path.relative_to(ROOT / "configs").parts[0] for path in FILES} >= {
        "sft", "turnwise", "eval", "worlds",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_config_resolves(path):
    for config in variants(path):
        assert isinstance(config, ConfigDict)
    for run in runs(path):
        # What an experiment cannot know: where the user's files lie.
        run.policy.checkpoint = run.policy.checkpoint or "checkpoint"
        run.data.path = run.data.path or "records"
        validate(run)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_config_is_a_lab_record(path):
    text = load(path).__doc__
    command = COMMANDS.get(path.parent.name, "train")
    assert f"turnwise {command} --config={path.relative_to(ROOT)}" in text


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_variants_have_directories_of_their_own(path):
    found = [c.run.dir for c in variants(path)[1:] if "run" in c]
    assert len(set(found)) == len(found)


PAPERS = [p for p in FILES if p.parent.name in ("sft", "turnwise", "baselines", "avatar")]


@pytest.mark.parametrize("path", PAPERS, ids=[str(p.relative_to(ROOT)) for p in PAPERS])
def test_frames_are_of_the_papers_size(path):
    """64 tokens (50,176 pixels) with AVATAR, 128 with the others; compiled for as many."""
    most = 64 if path.parent.name == "avatar" else 128
    for run in runs(path):
        family, size = run.compile.model.split("/")
        config = MODELS[family].Config.from_hf(MODELS[family].PUBLISHED[size])
        spec = FrameSpec(
            patch_size=config.vision.patch_size, merge_size=config.merge, max_pixels=12_845_056
        ).at_most(run.data.max_pixels)
        high, wide = assumed_frame(run, spec.factor)
        assert high * wide == most
        for frame in ((720, 1280), (1080, 1920), (480, 640)):
            grid = frame_grid(*frame, spec)
            assert most / 2 < grid[1] * grid[2] / spec.merge_size**2 <= most


@pytest.mark.parametrize(("name", "argument"), [("qwen2_5_omni_3b", "4"), ("curriculum", "9b")])
def test_an_argument_that_no_config_knows_is_refused(name, argument):
    with pytest.raises(InputError, match=rf"no (size|stage) '{argument}'; known: "):
        load(ROOT / "configs" / "avatar" / f"{name}.py").get_config(argument)
