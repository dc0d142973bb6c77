"""``run_study(config)``: make a world, train its runs in order, evaluate, tabulate and draw.

Every part is resumable by itself: the world is made whole or not at all, a finished run returns at
once and an unfinished one goes on from its checkpoint, predictions are kept dialogue by dialogue,
and what is computed from them is cheap and simply made again. So the same command, given again
after a kill, ends as if nothing had happened. What a study leaves in ``config.dir``::

    world/ base/               videos and records; the untrained policy
    <run>/                     logs, checkpoints and the exported policy of each run
    eval/<row>.jsonl .json     predictions and report of each row of the table
    table.md table.csv results.json results.png curves.png curves_sft.png
    dialogues/<name>.png .txt  held-out dialogues as the policies see and answer them
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict
from rich.console import Console

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import Dialogue
from turnwise_jax.eval import streaming
from turnwise_jax.eval.controls import forced_to_speak, silent_replies, swap_frames, video_of
from turnwise_jax.eval.generate import Decoding, as_prediction, generate
from turnwise_jax.eval.predictions import Prediction
from turnwise_jax.eval.report import Judges, Report, make_judges
from turnwise_jax.files import write_text
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.study.config import (
    BASE,
    check,
    exported,
    label,
    run_config,
    run_directory,
    world_setting,
)
from turnwise_jax.study.tiny import make_tiny_policy
from turnwise_jax.train.run import train
from turnwise_jax.worlds.streamworld import WorldFiles
from turnwise_jax.worlds.streamworld import generate as make_world


class Row(NamedTuple):
    """One row of the table. ``run`` None: no policy at all (silence)."""

    key: str
    label: str
    run: str | None
    kind: str  # "silent", "forced", "plain" or "swapped"


def run_study(config: ConfigDict, *, console: Console | None = None) -> tuple[Path, bool]:
    """Run or resume a study.

    Args:
      config: from ``study.config.study_config``, with overrides applied.
      console: where the final table is printed.

    Returns:
      (study directory, finished). Unfinished means that a training run was asked to stop.

    Raises:
      InputError: a value, file or record that cannot be used.
    """
    check(config)
    console = console or Console()
    directory = Path(config.dir)
    world = WorldFiles(directory / "world")
    setting, sizes = world_setting(config), config.world
    make_world(world.root, setting, train=sizes.train, test=sizes.test, seed=config.seed)
    make_tiny_policy(directory / BASE, setting, seed=config.seed, **config.base.to_dict())
    for name in config.order:
        _, finished = train(run_config(config, name, world))
        if not finished:
            console.print(f"stopped in {name}; the same command goes on from there")
            return directory, False
    # matplotlib is slow to import, and the first update should not wait for it
    from turnwise_jax.study.report import terminal, write_curves, write_results

    dialogues, _ = load_dialogues("mmduet2_rl", world.rl("test"), root=world.root)
    judges = make_judges(config.evaluation.judge)
    try:
        predictions = evaluate(config, dialogues)
        reports = score(config, predictions, judges)
        write_results(directory, reports)
        write_curves(directory, {label(config, n): run_directory(config, n) for n in config.order})
        draw(config, dialogues, predictions, judges)
    finally:
        for judge in judges:
            judge.close()
    console.print(terminal(reports, f"{len(dialogues)} held-out dialogues"))
    console.print(f"tables, curves and dialogues are in {directory}")
    return directory, True


def rows(config: ConfigDict) -> list[Row]:
    """The rows of the table: silence, forced speech, every run, and runs on swapped frames."""
    evaluation = config.evaluation
    return [
        Row("silent", "always silent", None, "silent"),
        *(
            Row(f"{name}_forced", f"always replying ({label(config, name)})", name, "forced")
            for name in evaluation.forced
        ),
        *(Row(name, label(config, name), name, "plain") for name in config.order),
        *(
            Row(f"{name}_swapped", f"{label(config, name)}, frames swapped", name, "swapped")
            for name in evaluation.swapped
        ),
    ]


def evaluate(config: ConfigDict, dialogues: list[Dialogue]) -> dict[Row, list[Prediction]]:
    """What every row's policy says in the held-out dialogues."""
    decoding = Decoding(
        new_tokens=config.evaluation.new_tokens,
        batch_size=config.evaluation.batch_size,
        seed=config.seed,
    )
    found = {}
    for row in rows(config):
        if row.run is None:
            found[row] = [as_prediction(d, silent_replies(d)) for d in dialogues]
            continue
        policy = Policy.load(exported(config, row.run), dtype=config.runs[row.run].policy.dtype)
        found[row] = generate(
            forced_to_speak(policy) if row.kind == "forced" else policy,
            swap_frames(dialogues, seed=config.seed) if row.kind == "swapped" else dialogues,
            Path(config.dir) / "eval" / f"{row.key}.jsonl",
            decoding=decoding,
            title=f"evaluate {row.label}",
        )
    return found


def score(
    config: ConfigDict, predictions: Mapping[Row, list[Prediction]], judges: Judges
) -> dict[str, Report]:
    """The report of every row, by label; also written to ``eval/``."""
    reports = {}
    for row, said in predictions.items():
        report = streaming.report(
            said, judges, resamples=config.evaluation.resamples, seed=config.seed
        )
        report.write(Path(config.dir) / "eval" / f"{row.key}.json")
        reports[row.label] = report
    return reports


def draw(
    config: ConfigDict,
    dialogues: list[Dialogue],
    predictions: Mapping[Row, list[Prediction]],
    judges: Judges,
) -> None:
    """Pictures and texts of a few held-out dialogues, the compared runs under one another."""
    from turnwise_jax.study.dialogues import draw_dialogue, transcript

    by_run = {row.run: said for row, said in predictions.items() if row.kind == "plain"}
    for dialogue in pick(dialogues, config.pictures.dialogues):
        said = {
            label(config, name): next(p for p in by_run[name] if p.id == dialogue.id)
            for name in config.pictures.compare
        }
        place = Path(config.dir) / "dialogues" / dialogue.id
        draw_dialogue(dialogue, said, place.with_suffix(".png"), judge=judges.reward)
        text = transcript(dialogue, said, judge=judges.reward)
        write_text(place.with_suffix(".txt"), text)


def pick(dialogues: list[Dialogue], count: int) -> list[Dialogue]:
    """The first dialogues with two windows or more, one of each video: not chosen by result."""
    chosen: dict[str, Dialogue] = {}
    for dialogue in sorted(dialogues, key=lambda d: len(d.windows) < 2):
        chosen.setdefault(video_of(dialogue), dialogue)
    return list(chosen.values())[:count]
