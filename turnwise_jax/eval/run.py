"""``evaluate(config)``: dialogues through a policy, or predictions from a file, to a report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
from ml_collections import ConfigDict

from turnwise_jax.data.frame_cache import open_cache
from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.reply_styles import STYLES
from turnwise_jax.errors import InputError
from turnwise_jax.eval import BENCHMARKS, JUDGED
from turnwise_jax.eval.controls import EXAMPLE_CONTROLS, forced_to_speak, swap_frames
from turnwise_jax.eval.generate import Decoding, generate
from turnwise_jax.eval.predictions import Prediction, check_distinct, read_predictions
from turnwise_jax.eval.report import Report, judged_by, make_judges
from turnwise_jax.eval.throughput import Meter
from turnwise_jax.files import write_text
from turnwise_jax.rewards.judges import misplaced_rule
from turnwise_jax.rollout.policy import load_sampler
from turnwise_jax.rollout.sampling import Sampling

CONTROLS = ("none", "swapped", "forced", *EXAMPLE_CONTROLS)
PREDICTIONS, REPORT = "predictions.jsonl", "report.json"
THROUGHPUT, SKIPPED = "throughput.json", "skipped.txt"


def evaluate(config: ConfigDict, *, predictions: str | os.PathLike[str] | None = None) -> Report:
    """Run (or resume) one evaluation and write its report.

    Args:
      config: from ``eval.config.eval_config``, with overrides applied.
      predictions: finished dialogues to score instead of running the policy.

    Returns:
      The report, also in ``<dir>/report.json``. Dialogues that were left out under
      ``data.on_bad_record="skip"`` are in its counts and listed in ``<dir>/skipped.txt``, which is
      looked for beside ``predictions`` too. How fast the policy ran is printed and written to
      ``<dir>/throughput.json``; if all dialogues were finished before, that file stays.

    Raises:
      InputError: a value, file or record that cannot be used.
    """
    for field, value, allowed in (
        ("benchmark", config.benchmark, tuple(BENCHMARKS)),
        ("control", config.control, CONTROLS),
        ("policy.replies", config.policy.replies, tuple(STYLES)),
    ):
        if value not in allowed:
            raise InputError(f"is {value!r}; allowed: {', '.join(allowed)}", field=field)
    if jax.process_count() > 1:
        raise InputError(
            f"this is one of {jax.process_count()} processes; evaluation runs in one, on one host"
        )
    directory = Path(config.dir)
    skipped: list[str] = []
    if predictions is None:
        meter = Meter()
        said = run_policy(config, directory / PREDICTIONS, skipped, meter)
        if meter.batches:
            write_text(directory / THROUGHPUT, json.dumps(meter.to_json(), indent=2) + "\n")
            print(f"evaluate: {meter.line()}", file=sys.stderr)
    else:
        skipped = _lines(Path(predictions).with_name(SKIPPED))
        said = read_predictions(predictions)
    file = predictions or directory / PREDICTIONS
    if not said:
        first = f"; the first of {len(skipped)} left out: {skipped[0]}" if skipped else ""
        raise InputError(f"holds no finished dialogue{first}", file=file)
    report = _scored(config, said, file)
    directory.mkdir(parents=True, exist_ok=True)
    if skipped:
        report = replace(report, counts={**report.counts, "skipped_dialogues": len(skipped)})
        write_text(directory / SKIPPED, "".join(f"{line}\n" for line in skipped))
    else:
        (directory / SKIPPED).unlink(missing_ok=True)
    report.write(directory / REPORT)
    return report


def _scored(config: ConfigDict, said: Sequence[Prediction], file: str | os.PathLike[str]) -> Report:
    """The benchmark's report; what is wrong with a record is said with the file it stands in."""
    judges = make_judges(config.judge)
    try:
        check_distinct(said)
        report: Report = BENCHMARKS[config.benchmark].report(
            said, judges, resamples=config.resamples, seed=config.decoding.seed
        )
        if config.benchmark not in JUDGED:
            return report
        windows = (window for prediction in said for window in prediction.windows)
        return replace(report, rule=f"{report.rule}; {judged_by(config.judge, windows)}")
    except InputError as error:
        if error.record is None or error.file:
            raise
        raise InputError(error.message, file=file, record=error.record, field=error.field) from None
    finally:
        for judge in judges:
            judge.close()


def run_policy(
    config: ConfigDict, path: Path, skipped: list[str], meter: Meter
) -> list[Prediction]:
    """What the config's policy says in its dialogues, kept in ``path`` one by one."""
    for field in ("policy.checkpoint", "data.path"):
        section, name = field.split(".")
        if not config[section][name]:
            raise InputError("is required unless --predictions is given", field=field)
    data, decoding = config.data, config.decoding
    dialogues, unread = load_dialogues(
        data.source,
        data.path,
        root=data.root or None,
        user_turns=data.user_turns or None,
        on_bad_record=data.on_bad_record,
        clip=ClipSpec(data.frames, data.sound, data.interval, data.turn_frames, data.context),
    )
    skipped += unread
    if config.benchmark in JUDGED:
        _warn(config, dialogues)
    if data.reopen:
        dialogues = [dialogue.reopened() for dialogue in dialogues]
    policy, placement = load_sampler(
        config.policy.checkpoint,
        dtype=config.policy.dtype,
        param_dtype=config.policy.param_dtype,
        max_pixels=data.max_pixels,
        mesh=config.mesh,
    )
    if config.control == "forced":
        if config.policy.replies != "plain":
            raise InputError("'forced' can only keep plain replies from silence", field="control")
        policy = forced_to_speak(policy)
    if config.control == "swapped":
        dialogues = swap_frames(dialogues, seed=decoding.seed)
    return generate(
        policy,
        dialogues,
        path,
        decoding=Decoding(
            sampling=Sampling.of(decoding),
            new_tokens=decoding.max_new_tokens,
            batch_size=decoding.batch_size,
            seed=decoding.seed,
            buckets=decoding.buckets,
        ),
        on_bad_record=data.on_bad_record,
        skipped=skipped,
        control=config.control if config.control in EXAMPLE_CONTROLS else "none",
        meter=meter,
        replies=config.policy.replies,
        cache=open_cache(data.cache_dir, data.cache_gb),
        placement=placement,
    )


def _warn(config: ConfigDict, dialogues: Sequence[Dialogue]) -> None:
    """Before hours of decoding: the report will say the same."""
    answers = (window.answer for dialogue in dialogues for window in dialogue.windows)
    warning = misplaced_rule(config.judge.kind, answers)
    if warning:
        print(f"evaluate: WARNING: {warning}", file=sys.stderr)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
