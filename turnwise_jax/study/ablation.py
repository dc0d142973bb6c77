"""``run_ablation(config)``: variants of a method, several seeds each, as tables and pictures.

One world, one untrained policy and one supervised start serve all runs. Seeds are outermost, so
that a study that is cut short still compares all variants on the seeds that are done. Every part is
resumable by itself, and the same command, given again after a kill, ends as if nothing had
happened. What it leaves in ``config.dir``::

    world/ base/ start/        videos and records; the untrained policy; the common start
    runs/<variant>/<seed>/     logs and the exported policy of each run
    eval/<variant>/<seed>/<control>/   predictions and report; "none" is the plain evaluation
    eval/start/<control>/
    tables.md tables.csv results.json curves.png signal.png results.png tiers.png
    analysis/                  of a streaming study: training dynamics, credit redistribution
"""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
from ml_collections import ConfigDict
from rich.console import Console

from turnwise_jax.eval.report import Report
from turnwise_jax.eval.run import REPORT, evaluate
from turnwise_jax.study.ablation_config import (
    BASE,
    START,
    check,
    check_files,
    controls_of,
    evaluation_config,
    kind_of,
    label,
    run_config,
    start_config,
    world_root,
    world_setting,
)
from turnwise_jax.study.ablation_plots import write_pictures
from turnwise_jax.study.ablation_results import Results, outcome
from turnwise_jax.study.ablation_tables import summary, write_tables
from turnwise_jax.study.analyze import write_analysis
from turnwise_jax.study.analyze_runs import Run, read_run
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.directory import is_finished
from turnwise_jax.train.loop import CHECKPOINTS
from turnwise_jax.train.run import train
from turnwise_jax.train.signals import stop_on_sigterm


def run_ablation(config: ConfigDict, *, console: Console | None = None) -> tuple[Path, bool]:
    """Run or resume an ablation.

    Args:
      config: from ``study.ablation_config.ablation_config``, with overrides applied.
      console: where progress and the final tables are printed.

    Returns:
      (study directory, finished). Unfinished means that SIGTERM asked for an end.

    Raises:
      InputError: a value, file or record that cannot be used. The values of all runs are looked at
        before the first one begins.
    """
    check(config)
    console = console or Console()
    directory, sizes = Path(config.dir), config.world
    setting = world_setting(config)
    kind_of(config).generate(
        world_root(config), setting, train=sizes.train, test=sizes.test, seed=config.seed
    )
    check_files(config)
    make_tiny_policy(directory / BASE, setting, seed=config.seed, **config.base.to_dict())
    begin = start_config(config)
    if not _trained(config, begin, f"start: {label(config, START)}", console):
        return directory, False
    start, _ = _evaluated(config, begin, START, directory / "eval" / START)
    results = Results(config, outcome(kind_of(config), start, None), {})
    analysed: dict[str, list[Run]] = {}
    runs = [(seed, name) for seed in config.seeds for name in config.order]
    for number, (seed, name) in enumerate(runs, 1):
        run = run_config(config, name, seed)
        title = f"run {number} of {len(runs)}: {label(config, name)}, seed {seed}"
        if not _trained(config, run, title, console):
            return directory, False
        reports, new = _evaluated(config, run, name, directory / "eval" / name / str(seed))
        results.add(name, seed, outcome(kind_of(config), reports, Path(run.run.dir)))
        if kind_of(config).benchmark == "streaming":
            analysed.setdefault(label(config, name), []).append(read_run(run.run.dir))
        if new or number == len(runs):
            write_tables(directory, results)
            write_pictures(directory, results)
            write_analysis(analysed, directory / "analysis")
        if new:
            jax.clear_caches()  # a run compiles its own programs; many runs would fill the memory
    console.print(summary(results))
    console.print(f"tables and pictures are in {directory}")
    return directory, True


def _trained(config: ConfigDict, run: ConfigDict, title: str, console: Console) -> bool:
    """Train a run to its end and drop what it no longer needs; False if it was asked to stop."""
    directory = Path(run.run.dir)
    if not is_finished(directory, run):
        console.print(title)
    with stop_on_sigterm() as stop:
        _, finished = train(run)
    if finished and not config.keep_checkpoints:
        shutil.rmtree(directory / CHECKPOINTS, ignore_errors=True)
    if not finished or stop.requested:
        console.print(f"stopped in {title}; the same command goes on from there")
        return False
    return True


def _evaluated(
    config: ConfigDict, run: ConfigDict, name: str, place: Path
) -> tuple[dict[str, Report], bool]:
    """(reports of a finished run by control, whether one of them was not there before)."""
    controls = controls_of(config, name)
    new = not all((place / control / REPORT).exists() for control in controls)
    return {
        control: evaluate(evaluation_config(config, run, place / control, control))
        for control in controls
    }, new
