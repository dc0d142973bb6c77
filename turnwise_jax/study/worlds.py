"""The kinds of worlds that an ablation can be made in: their files, and what is measured in them.

All that an ablation must know of a world and of its benchmark is here, so that another world is
another entry of ``WORLD_KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turnwise_jax.eval.report import Report
from turnwise_jax.worlds import soundworld, streamworld
from turnwise_jax.worlds.settings import WORLDS, World
from turnwise_jax.worlds.soundsettings import MODALITY, SOUNDWORLDS, SoundWorld


class Source(NamedTuple):
    """Records of a world: a key of ``DATASETS`` and the file's name in the world's folder."""

    format: str
    file: str


class Measure(NamedTuple):
    """A number of the benchmark as a column: its name, its title, and its decimals."""

    name: str
    title: str
    decimals: int = 1


class WorldKind(NamedTuple):
    """One kind of world.

    Attributes:
      named: the world's named settings; ``setting`` makes one of a mapping of all its fields.
      generate: (folder, setting, train=, test=, seed=) makes the world or finds it there.
      taught: records with the teacher's replies, for the policy that all runs start from.
      asked: records that a run learns from unless its config names another file of the world.
      held_out: records of the evaluation.
      benchmark: a key of ``BENCHMARKS``.
      controls: of ``eval.run.CONTROLS``, what the runs in ``evaluation.controls`` are deprived of.
      measures: columns of the tables, the one that runs are compared by first.
      values: report -> value of each measure by name; further names, all with a "/" in them, are
        those of categories.
      floor: report -> what knowing nothing earns, by the same names, where that is known.
      curve: the metric of the training log that learning curves show, and its title.
    """

    named: Mapping[str, Any]
    setting: Callable[[Mapping[str, Any]], Any]
    generate: Callable[..., Any]
    taught: Source
    asked: Source
    held_out: Source
    benchmark: str
    controls: tuple[str, ...]
    measures: tuple[Measure, ...]
    values: Callable[[Report], dict[str, float]]
    floor: Callable[[Report], dict[str, float]]
    curve: tuple[str, str]


def answer_values(report: Report) -> dict[str, float]:
    """Accuracy, %: of all questions, of each modality and of each category "modality/family"."""
    found = {name: report.metrics[f"accuracy/{name}"] for name in _categories(report)}
    return {"accuracy": report.metrics["accuracy"], **_modalities(report, found), **found}


def answer_floor(report: Report) -> dict[str, float]:
    """What knowing nothing earns, %, by the names of :func:`answer_values`.

    Guessing where a question has options, always the most common answer where it has none.
    """
    found = {}
    for name in _categories(report):
        level = "chance" if f"chance/{name}" in report.metrics else "constant"
        found[name] = report.metrics[f"{level}/{name}"]
    return {"accuracy": _mean(report, found), **_modalities(report, found), **found}


def streaming_values(report: Report) -> dict[str, float]:
    """The streaming measures as they are in the report."""
    return {measure.name: report.metrics[measure.name] for measure in STREAMING}


def _categories(report: Report) -> list[str]:
    """The categories that have questions, those of one modality beside one another."""
    named = [f"{modality}/{family}" for family, modality in MODALITY.items()]
    return [name for name in named if f"accuracy/{name}" in report.metrics]


def _modalities(report: Report, values: Mapping[str, float]) -> dict[str, float]:
    """Means over the questions of each modality, from the values of its categories."""
    found = {}
    for modality in dict.fromkeys(MODALITY.values()):
        own = {n: value for n, value in values.items() if n.partition("/")[0] == modality}
        if own:
            found[modality] = _mean(report, own)
    return found


def _mean(report: Report, values: Mapping[str, float]) -> float:
    """The mean over questions of values of whole categories."""
    counts = [report.counts[f"questions/{name}"] for name in values]
    return sum(v * n for v, n in zip(values.values(), counts, strict=True)) / sum(counts)


STREAMING = (
    Measure("reward", "reward", 3),
    Measure("pauc", "PAUC"),
    Measure("repetition_rate", "repetitive, %"),
    Measure("out_of_window_rate", "out of window, %"),
    Measure("non_silent_share", "non-silent, %"),
)
_sounds = soundworld.SoundWorldFiles(Path())
_stream = streamworld.WorldFiles(Path())
WORLD_KINDS: dict[str, WorldKind] = {
    "soundworld": WorldKind(
        named=SOUNDWORLDS,
        setting=SoundWorld.from_dict,
        generate=soundworld.generate,
        taught=Source("qa", _sounds.sft("train").name),
        asked=Source("qa", _sounds.rl().name),
        held_out=Source("qa", _sounds.qa_test.name),
        benchmark="qa",
        controls=("muted", "blanked"),
        measures=(
            Measure("accuracy", "accuracy, %"),
            *(Measure(name, f"{name}, %") for name in dict.fromkeys(MODALITY.values())),
        ),
        values=answer_values,
        floor=answer_floor,
        curve=("accuracy", "Accuracy reward of the fresh answers"),
    ),
    "streamworld": WorldKind(
        named=WORLDS,
        setting=World.from_dict,
        generate=streamworld.generate,
        taught=Source("mmduet2_sft", _stream.sft("train").name),
        asked=Source("mmduet2_rl", _stream.rl("train").name),
        held_out=Source("mmduet2_rl", _stream.rl("test").name),
        benchmark="streaming",
        controls=("swapped",),
        measures=STREAMING,
        values=streaming_values,
        floor=lambda report: {},
        curve=("reward", "Reward (eq. 1) of the fresh dialogues"),
    ),
}
