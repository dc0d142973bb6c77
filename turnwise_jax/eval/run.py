"""``evaluate(config)``: dialogues through a policy, or predictions from a file, to a report."""

from __future__ import annotations

import os
from pathlib import Path

import jax
from ml_collections import ConfigDict

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec
from turnwise_jax.errors import InputError
from turnwise_jax.eval import BENCHMARKS
from turnwise_jax.eval.controls import EXAMPLE_CONTROLS, forced_to_speak, swap_frames
from turnwise_jax.eval.generate import Decoding, generate
from turnwise_jax.eval.predictions import Prediction, read_predictions
from turnwise_jax.eval.report import Report, make_judges
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.sampling import Sampling

CONTROLS = ("none", "swapped", "forced", *EXAMPLE_CONTROLS)
PREDICTIONS, REPORT = "predictions.jsonl", "report.json"


def evaluate(config: ConfigDict, *, predictions: str | os.PathLike[str] | None = None) -> Report:
    """Run (or resume) one evaluation and write its report.

    Args:
      config: from ``eval.config.eval_config``, with overrides applied.
      predictions: finished dialogues to score instead of running the policy.

    Returns:
      The report, also in ``<dir>/report.json``. Dialogues that were left out under
      ``data.on_bad_record="skip"`` are in its counts and listed in ``<dir>/skipped.txt``.

    Raises:
      InputError: a value, file or record that cannot be used.
    """
    for field, value, allowed in (
        ("benchmark", config.benchmark, tuple(BENCHMARKS)),
        ("control", config.control, CONTROLS),
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
        said = run_policy(config, directory / PREDICTIONS, skipped)
    else:
        said = read_predictions(predictions)
        if not said:
            raise InputError("holds no finished dialogue", file=predictions)
    judges = make_judges(config.judge)
    try:
        report = BENCHMARKS[config.benchmark].report(
            said, judges, resamples=config.resamples, seed=config.decoding.seed
        )
    finally:
        for judge in judges:
            judge.close()
    if skipped:
        report.counts["skipped_dialogues"] = len(skipped)
        (directory / "skipped.txt").write_text("".join(f"{line}\n" for line in skipped))
    directory.mkdir(parents=True, exist_ok=True)
    report.write(directory / REPORT)
    return report


def run_policy(config: ConfigDict, path: Path, skipped: list[str]) -> list[Prediction]:
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
    if data.reopen:
        dialogues = [dialogue.reopened() for dialogue in dialogues]
    policy = Policy.load(config.policy.checkpoint, dtype=config.policy.dtype)
    if config.control == "forced":
        policy = forced_to_speak(policy)
    if config.control == "swapped":
        dialogues = swap_frames(dialogues, seed=decoding.seed)
    return generate(
        policy,
        dialogues,
        path,
        decoding=Decoding(
            sampling=_sampling(decoding),
            new_tokens=decoding.max_new_tokens,
            batch_size=decoding.batch_size,
            seed=decoding.seed,
        ),
        on_bad_record=data.on_bad_record,
        skipped=skipped,
        control=config.control if config.control in EXAMPLE_CONTROLS else "none",
    )


def _sampling(decoding: ConfigDict) -> Sampling:
    if decoding.temperature == 0:
        return Sampling(greedy=True)
    return Sampling(temperature=decoding.temperature, top_k=decoding.top_k, top_p=decoding.top_p)
