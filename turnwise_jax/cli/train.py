"""``turnwise train``: SFT or RL, as the config says."""

from __future__ import annotations

from collections.abc import Sequence

from ml_collections import ConfigDict

from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.cli.worker import is_worker, watch, work
from turnwise_jax.train.run import EXPORT, train

USAGE = """usage: turnwise train --config=FILE.py [--config.field=value ...]

Trains into config.run.dir. The same command on the same directory resumes after a crash, a kill or
SIGTERM (which saves and exits with status 0), and does nothing once the run is finished. On several
hosts it is started once on each, see config.hosts.
"""


def main(argv: Sequence[str]) -> None:
    config = parse(argv, USAGE, define_config).config
    if "hosts" not in config or config.hosts.count == 1:
        _train(config)
    elif is_worker():
        work(lambda: _train(config))
    else:
        watch(["train", *argv])


def _train(config: ConfigDict) -> None:
    directory, finished = train(config)
    if finished:
        print(f"finished: {directory}" + ("/" + EXPORT if config.run.export else ""))
    else:
        print(f"stopped with a checkpoint: {directory}; the same command goes on")
