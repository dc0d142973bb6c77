"""``turnwise train``: SFT or RL, as the config says."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.train.run import EXPORT, train

USAGE = """usage: turnwise train --config=FILE.py [--config.field=value ...]

Trains into config.run.dir. The same command on the same directory resumes after a crash, a kill or
SIGTERM (which saves and exits with status 0), and does nothing once the run is finished.
"""


def main(argv: Sequence[str]) -> None:
    values = parse(argv, USAGE, define_config)
    directory, finished = train(values.config)
    if finished:
        print(f"finished: {directory}" + ("/" + EXPORT if values.config.run.export else ""))
    else:
        print(f"stopped with a checkpoint: {directory}; the same command goes on")
