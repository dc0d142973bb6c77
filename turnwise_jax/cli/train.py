"""``turnwise train``: SFT, RL or a curriculum of both, as the config says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from turnwise_jax.cli.flags import CURRICULUM, RUN, config_of, define_config, parse
from turnwise_jax.cli.worker import is_worker, watch, work
from turnwise_jax.train.curriculum import exported, run_curriculum
from turnwise_jax.train.run import EXPORT, train

USAGE = """usage: turnwise train --config=FILE.py [--config.field=value ...]

Trains into config.run.dir. The same command on the same directory resumes after a crash, a kill or
SIGTERM (which saves and exits with status 0), and does nothing once the run is finished. On several
hosts it is started once on each, see config.hosts.

A config with stages is a curriculum: they are trained in order below config.dir, each from the
policy of the one before. --config.stages.NAME.field=value overrides a field of one of them.
"""


def main(argv: Sequence[str]) -> None:
    config = config_of(parse(argv, USAGE, define_config), RUN, CURRICULUM)
    if "stages" in config:
        _train_stages(config)
    elif "hosts" not in config or config.hosts.count == 1:
        _train(config)
    elif is_worker():
        work(lambda: _train(config))
    else:
        watch(["train", *argv])


def _train(config: ConfigDict) -> None:
    directory, finished = train(config)
    _say(directory / EXPORT if finished and config.run.export else directory, finished)


def _train_stages(config: ConfigDict) -> None:
    directory, finished = run_curriculum(config)
    _say(exported(config, len(config.order) - 1) if finished else directory, finished)


def _say(place: Path, finished: bool) -> None:
    if finished:
        print(f"finished: {place}")
    else:
        print(f"stopped with a checkpoint: {place}; the same command goes on")
