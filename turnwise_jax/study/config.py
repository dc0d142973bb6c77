"""The fields of a study, and how its runs are tied to its world and to each other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ml_collections import ConfigDict

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges import judge_fields
from turnwise_jax.worlds.settings import WORLDS, World
from turnwise_jax.worlds.streamworld import WorldFiles

BASE = "base"  # the name by which a run's `policy.checkpoint` means the untrained tiny policy


def study_config(runs: Mapping[str, ConfigDict], labels: Mapping[str, str]) -> ConfigDict:
    """Defaults of a study in the embedded world.

    Args:
      runs: name -> training config, in the order in which they are run. A ``policy.checkpoint``
        that is ``"base"`` or the name of an earlier run means that policy, an empty ``data.path``
        the study's world; ``run.dir`` is always ``<dir>/<name>``.
      labels: name -> how tables and pictures call the run.
    """
    return ConfigDict(
        {
            "dir": "runs/study",
            "seed": 0,  # of the world and of the untrained policy
            "world": {
                "name": "demo",  # a key of WORLDS
                "train": 250,  # videos
                "test": 60,
                "changes": ConfigDict(),  # fields of World that differ from the named one
            },
            "base": {  # the untrained policy
                "family": "qwen2_5_vl",  # a key of MODELS
                "vocab_size": 400,
                "pixels": 56,  # side of a frame
                "model": ConfigDict(),  # overrides of the model's `Config.tiny`
            },
            "order": tuple(runs),
            "labels": dict(labels),
            "runs": dict(runs),
            "evaluation": {
                "batch_size": 16,
                "new_tokens": 16,
                "resamples": 2000,
                "forced": tuple(runs)[:1],  # runs also evaluated without the right to be silent
                "swapped": tuple(runs)[-1:],  # runs also evaluated on another video's frames
                "judge": judge_fields(),
            },
            "pictures": {
                "dialogues": 4,
                "compare": (*tuple(runs)[:1], *tuple(runs)[-1:]),
            },
        }
    )


def check(config: ConfigDict) -> None:
    """Refuse what cannot work before anything is made.

    Raises:
      InputError: names the field.
    """
    if config.world.name not in WORLDS:
        raise InputError(
            f"is {config.world.name!r}; known: {', '.join(WORLDS)}", field="world.name"
        )
    if not config.order:
        raise InputError("must name at least one run", field="order")
    earlier: list[str] = []
    for name in config.order:
        if name not in config.runs:
            raise InputError(f"{name!r} is no run; known: {', '.join(config.runs)}", field="order")
        start = config.runs[name].policy.checkpoint
        if start in config.runs and start not in earlier:
            raise InputError(
                f"{start!r} is not run before {name!r}", field=f"runs.{name}.policy.checkpoint"
            )
        if config.runs[name].hosts.count != 1:
            raise InputError("a study runs in one process", field=f"runs.{name}.hosts.count")
        earlier.append(name)
    for field in ("evaluation.forced", "evaluation.swapped", "pictures.compare"):
        section, key = field.split(".")
        for name in config[section][key]:
            if name not in earlier:
                raise InputError(f"{name!r} is not in `order`", field=field)


def run_config(config: ConfigDict, name: str, world: WorldFiles) -> ConfigDict:
    """The training config of one run with the study's paths filled in."""
    run = copy.deepcopy(config.runs[name])
    run.run.dir = str(run_directory(config, name))
    start = run.policy.checkpoint
    if start == BASE:
        run.policy.checkpoint = str(Path(config.dir) / BASE)
    elif start in config.runs:
        run.policy.checkpoint = str(exported(config, start))
    if not run.data.path:
        supervised = run.data.source == "mmduet2_sft"
        run.data.path = str(world.sft("train") if supervised else world.rl("train"))
        run.data.root = str(world.root)
    return run


def run_directory(config: ConfigDict, name: str) -> Path:
    """Where a run's logs and checkpoints lie."""
    return Path(config.dir) / name


def exported(config: ConfigDict, name: str) -> Path:
    """Where a finished run's policy lies as a Hugging Face directory."""
    return run_directory(config, name) / "policy"


def label(config: ConfigDict, name: str) -> str:
    """How tables and pictures call a run."""
    return config.labels.get(name, name)


def world_setting(config: ConfigDict) -> World:
    """The study's world: the named one with its changes."""
    named = dataclasses.asdict(WORLDS[config.world.name])
    return World.from_dict({**named, **config.world.changes.to_dict()})
