"""The fields of an ablation, and how its runs are tied to its world and to their common start."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from turnwise_jax.errors import InputError, within
from turnwise_jax.eval.config import eval_config
from turnwise_jax.rewards.judges import judge_fields
from turnwise_jax.study.worlds import WORLD_KINDS, Source, WorldKind
from turnwise_jax.train.directory import EXPORT, NAME
from turnwise_jax.train.validate import MAX_SEED, validate

# What a `policy.checkpoint` may be besides a directory: the untrained policy, and the common start.
BASE, START = "base", "start"
PLAIN = "none"  # the control that deprives a policy of nothing


def ablation_config(
    start: ConfigDict,
    runs: Mapping[str, ConfigDict],
    labels: Mapping[str, str],
    tables: Mapping[str, tuple[str, ...]],
) -> ConfigDict:
    """Defaults of an ablation: variants of one method, each trained with several seeds.

    Args:
      start: supervised training config of the policy that all runs start from; its
        ``policy.checkpoint`` is ``"base"``, the untrained tiny policy, or a directory.
      runs: variant -> training config, in the order in which they are run; ``policy.checkpoint``
        is ``"start"``. ``run.dir``, ``run.seed``, ``data.source`` and ``data.root`` are the
        study's to fill in; ``data.path`` may name a file of the world's folder.
      labels: variant -> how tables and pictures call it.
      tables: table -> the variants in its rows; the first one is what the others are compared to.
    """
    return ConfigDict(
        {
            "dir": "runs/ablation",
            "seed": 0,  # of the world, the untrained policy and the start
            "seeds": (0, 1, 2),  # each variant is trained once with each of them
            "world": {
                "kind": "soundworld",  # a key of WORLD_KINDS
                "name": "demo",  # of its named settings
                "train": 400,  # videos
                "test": 100,
                "changes": ConfigDict(),  # fields of the setting that differ from the named one
            },
            "base": {  # the untrained policy
                "family": "qwen2_5_omni",  # a key of MODELS
                "vocab_size": 700,
                "pixels": 84,  # side of a frame
                "model": ConfigDict(),  # overrides of the model's `Config.tiny`
            },
            "start": start,
            "order": tuple(runs),
            "labels": dict(labels),
            "runs": dict(runs),
            "table_order": tuple(tables),
            "tables": {name: tuple(rows) for name, rows in tables.items()},
            "keep_checkpoints": False,  # of finished runs; their logs and policies always stay
            "evaluation": {
                "batch_size": 16,
                "new_tokens": 48,
                "resamples": 200,  # of each report's own intervals, which no table shows
                # Variants that are also evaluated without their sound and without their frames, or
                # whatever else the world's kind says.
                "controls": tuple(runs)[-1:],
                "judge": judge_fields(),
            },
        }
    )


def check(config: ConfigDict) -> None:
    """Refuse what cannot work before anything is made.

    Raises:
      InputError: names the field.
    """
    if not config.dir:
        raise InputError("must name a directory", field="dir")
    if config.world.kind not in WORLD_KINDS:
        known = ", ".join(WORLD_KINDS)
        raise InputError(f"is {config.world.kind!r}; known: {known}", field="world.kind")
    if config.world.name not in kind_of(config).named:
        known = ", ".join(kind_of(config).named)
        raise InputError(f"is {config.world.name!r}; known: {known}", field="world.name")
    with within("world.changes"):
        world_setting(config)
    seeds = config.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"must be different seeds, at least one, is {seeds}", field="seeds")
    if not all(isinstance(seed, int) and 0 <= seed <= MAX_SEED for seed in seeds):
        raise InputError("must be whole numbers of 32 bits", field="seeds")
    _check_names(config)
    for name in (START, *config.order):
        with within(name if name == START else f"runs.{name}"):
            _check_run(config, name)


def _check_names(config: ConfigDict) -> None:
    if not config.order or len(set(config.order)) < len(config.order):
        raise InputError("must name runs, at least one and none twice", field="order")
    for name in config.order:
        if not NAME.fullmatch(name) or name in (BASE, START):
            raise InputError(f"{name!r} cannot be the name of a run", field="order")
    if set(config.table_order) != set(config.tables):
        raise InputError(f"must name the tables: {', '.join(config.tables)}", field="table_order")
    named = {"order": config.order, "evaluation.controls": config.evaluation.controls}
    named |= {f"tables.{table}": rows for table, rows in config.tables.items()}
    for field, names in named.items():
        for name in names:
            if name not in config.runs:
                known = ", ".join(config.runs)
                raise InputError(f"{name!r} is no run; known: {known}", field=field)


def _check_run(config: ConfigDict, name: str) -> None:
    given = config.start if name == START else config.runs[name]
    if (given.policy.checkpoint == START) != (name != START):
        meant = f"{BASE!r} or a directory" if name == START else repr(START)
        raise InputError(f"must be {meant}", field="policy.checkpoint")
    if given.hosts.count != 1:
        raise InputError("a study runs in one process", field="hosts.count")
    if not given.run.export:
        raise InputError("must be true: the study goes on from it", field="run.export")
    validate(start_config(config) if name == START else run_config(config, name, config.seeds[0]))


def check_files(config: ConfigDict) -> None:
    """Refuse a run whose file the world, which is there by now, does not have."""
    for name in config.order:
        path = run_config(config, name, config.seeds[0]).data.path
        if not Path(path).is_file():
            raise InputError("no such file", file=path, field=f"runs.{name}.data.path")


def kind_of(config: ConfigDict) -> WorldKind:
    """The kind of the study's world."""
    return WORLD_KINDS[config.world.kind]


def world_setting(config: ConfigDict) -> Any:
    """The study's world: the named one with its changes."""
    kind = kind_of(config)
    named = dataclasses.asdict(kind.named[config.world.name])
    return kind.setting({**named, **config.world.changes.to_dict()})


def world_root(config: ConfigDict) -> Path:
    """The world's folder."""
    return Path(config.dir) / "world"


def start_directory(config: ConfigDict) -> Path:
    """Where the supervised run lies that all others start from."""
    return Path(config.dir) / START


def run_directory(config: ConfigDict, name: str, seed: int) -> Path:
    """Where the logs and the policy of a variant's run with this seed lie."""
    return Path(config.dir) / "runs" / name / str(seed)


def start_config(config: ConfigDict) -> ConfigDict:
    """The training config of the common start."""
    run = copy.deepcopy(config.start)
    if run.policy.checkpoint == BASE:
        run.policy.checkpoint = str(Path(config.dir) / BASE)
    run.run.update(dir=str(start_directory(config)), seed=config.seed)
    return _in_world(config, run, kind_of(config).taught)


def run_config(config: ConfigDict, name: str, seed: int) -> ConfigDict:
    """The training config of a variant's run with this seed."""
    run = copy.deepcopy(config.runs[name])
    run.policy.checkpoint = str(start_directory(config) / EXPORT)
    run.run.update(dir=str(run_directory(config, name, seed)), seed=seed)
    return _in_world(config, run, kind_of(config).asked)


def _in_world(config: ConfigDict, run: ConfigDict, source: Source) -> ConfigDict:
    root = world_root(config)
    path = str(root / (run.data.path or source.file))
    run.data.update(source=source.format, path=path, root=str(root))
    return run


def evaluation_config(
    config: ConfigDict, trained: ConfigDict, place: Path, control: str
) -> ConfigDict:
    """The config of ``eval.run.evaluate`` for one policy on the held-out records.

    Args:
      trained: the finished run's training config.
      place: where predictions and report go.
      control: of ``eval.run.CONTROLS``.
    """
    kind, own = kind_of(config), eval_config(kind_of(config).benchmark)
    own.dir, own.control, own.resamples = str(place), control, config.evaluation.resamples
    own.policy.update(checkpoint=str(Path(trained.run.dir) / EXPORT), dtype=trained.policy.dtype)
    own.data.update(
        source=kind.held_out.format,
        path=str(world_root(config) / kind.held_out.file),
        root=str(world_root(config)),
        frames=trained.data.frames,
        sound=trained.data.sound,
    )
    own.decoding.update(
        max_new_tokens=config.evaluation.new_tokens,
        batch_size=config.evaluation.batch_size,
        seed=config.seed,
    )
    own.judge = config.evaluation.judge
    return own


def controls_of(config: ConfigDict, name: str) -> tuple[str, ...]:
    """How a variant is evaluated: plainly, the chosen ones and the start also under controls."""
    asked = name == START or name in config.evaluation.controls
    return (PLAIN, *(kind_of(config).controls if asked else ()))


def rows_of(config: ConfigDict, table: str) -> list[str]:
    """The variants in a table's rows, as far as they are run."""
    return [name for name in config.tables[table] if name in config.order]


def label(config: ConfigDict, name: str) -> str:
    """How tables and pictures call a variant, or the start."""
    return config.labels.get(name, name)
