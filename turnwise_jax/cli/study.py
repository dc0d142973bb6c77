"""``turnwise study``: several trainings and their evaluation, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise_jax.cli.flags import STUDY, config_of, define_config, parse

USAGE = """usage: turnwise study --config=configs/worlds/demo.py [--config.field=value ...]

Makes a world, trains the config's runs one after another, evaluates them on held-out videos and
leaves tables, curves and pictures of dialogues in config.dir. The same command resumes.

A config with seeds is an ablation: all of its runs start from one policy, each is trained once with
each seed, and the tables show means and deviations over seeds.

A config with a problem is an exact study: a streaming problem small enough to enumerate, on which
estimators are compared with the true gradient. It trains no model and starts anew each time.
"""


def main(argv: Sequence[str]) -> None:
    """Parse and run; only what this kind of study needs is imported."""
    config = config_of(parse(argv, USAGE, define_config), STUDY)
    if "problem" in config:
        from turnwise_jax.study.exact import run_exact

        run_exact(config)
    elif "seeds" in config:
        from turnwise_jax.study.ablation import run_ablation

        run_ablation(config)
    else:
        from turnwise_jax.study.runner import run_study

        run_study(config)
