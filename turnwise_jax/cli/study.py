"""``turnwise study``: several trainings and their evaluation, a table and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise_jax.cli.flags import define_config, parse
from turnwise_jax.study.runner import run_study

USAGE = """usage: turnwise study --config=configs/worlds/demo.py [--config.field=value ...]

Makes a world, trains the config's runs one after another, evaluates them on held-out videos and
leaves tables, curves and pictures of dialogues in config.dir. The same command resumes.
"""


def main(argv: Sequence[str]) -> None:
    values = parse(argv, USAGE, define_config)
    run_study(values.config)
