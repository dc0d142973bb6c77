"""Ablations without a model: runs log random numbers, policies answer right as often as is said."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

from turnwise_jax.data.load import load_dialogues
from turnwise_jax.data.records import ClipSpec
from turnwise_jax.eval.generate import as_prediction
from turnwise_jax.eval.predictions import PredictionWriter
from turnwise_jax.eval.run import PREDICTIONS, evaluate
from turnwise_jax.study import ablation
from turnwise_jax.train.directory import is_finished

RIGHT = {"none": 0.6, "muted": 0.4, "blanked": 0.2}  # share of right answers under each control


def pretend(patch, train=None, evaluate=None) -> None:
    """Puts the pretended parts into the study's place."""
    patch.setattr(ablation, "train", train or train_nothing)
    patch.setattr(ablation, "evaluate", evaluate or answer_at_random)
    patch.setattr(ablation, "make_tiny_policy", lambda directory, *_, **__: directory)


def rng_of(place: Path) -> np.random.Generator:
    """Random numbers of the last three parts of a path, such as variant, seed and control."""
    return np.random.default_rng(zlib.crc32("/".join(place.parts[-3:]).encode()))


def train_nothing(config):
    """A finished run's directory: as many batches as the config says, with random logs."""
    place = Path(config.run.dir)
    if is_finished(place, config):
        return place, True
    (place / "policy").mkdir(parents=True, exist_ok=True)
    (place / "policy" / "config.json").write_text("{}")
    (place / "checkpoints").mkdir(exist_ok=True)
    metrics, groups = [], []
    if config.algorithm.name == "avatar":
        for step in range(config.run.steps):
            line, samples = batch(config, step, rng_of(place / str(step)))
            metrics.append(line)
            groups += samples
    for name, lines in (("metrics", metrics), ("groups", groups)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(li) + "\n" for li in lines))
    report = {"iterations": config.run.steps, "updates": config.run.steps, "skipped_updates": 0}
    (place / "report.json").write_text(json.dumps(report))
    return place, True


def batch(config, step: int, rng: np.random.Generator):
    """(line of metrics.jsonl, lines of groups.jsonl) of one batch that learns slowly."""
    prompts, done = config.data.batch_size, step / config.run.steps
    replayed = prompts * config.replay.samples if step else 0
    fresh = prompts * config.rollout.group_size
    stuck = 0.75 - 0.4 * done + 0.15 * rng.standard_normal()
    line = {
        "step": step,
        "accuracy": float(np.clip(0.3 + 0.4 * done + 0.1 * rng.standard_normal(), 0, 1)),
        "hinted": float(rng.random() * 0.2) if config.hints.use else 0.0,
        "zero_signal": float(np.clip(stuck, 0, 1)),
        "zero_signal_mixed": float(np.clip(stuck - 0.3 * bool(replayed), 0, 1)),
        "replayed": replayed,
    }
    if config.replay.samples:
        held = fresh * (step + 1)
        line |= {"buffer_easy": min(held // 4, 100), "buffer_medium": min(held // 3, 140)}
        line["buffer_hard"] = min(held - held // 4 - held // 3, 160)
    samples = [{"step": step, "replayed": False}] * fresh + [
        {"step": step, "replayed": True}
    ] * replayed
    return line, samples


def answer_at_random(config):
    """A real report about made-up replies, of which a fixed share is right."""
    place = Path(config.dir)
    if not (place / PREDICTIONS).exists():
        dialogues, _ = load_dialogues(
            "qa", config.data.path, root=config.data.root, clip=ClipSpec(2, True)
        )
        rng = rng_of(place)
        with PredictionWriter(place / PREDICTIONS) as writer:
            for dialogue in dialogues:
                right = rng.random() < RIGHT[config.control]
                said = dialogue.question.answer if right else "nothing"
                reply = f"<think>so</think><answer>{said}</answer>"
                writer.write(as_prediction(dialogue, [reply]))
    return evaluate(config, predictions=place / PREDICTIONS)
