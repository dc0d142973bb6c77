"""``write_analysis(runs, output)``: the papers' analyses of runs' logs as pictures and tables.

What there is to say about the given runs is written, each as PNG, CSV and Markdown::

    dynamics.*        streaming RL: reward, penalties, share of replies (TurnWise, Fig. 3)
    redistribution.*  shared against turn-level advantages of the logged decisions (Fig. 4)
    answers.*         questions with an answer: accuracy, prompts without a signal (AVATAR)
    tiers.png         the replay buffer of such runs
    supervised.*      cross-entropy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise_jax.errors import InputError
from turnwise_jax.files import write_text
from turnwise_jax.study import analyze_credit, analyze_dynamics
from turnwise_jax.study.ablation_plots import draw_tiers
from turnwise_jax.study.analyze_plots import plot_redistribution
from turnwise_jax.study.analyze_runs import Run, read_run
from turnwise_jax.study.plots import plot_seeds
from turnwise_jax.study.style import save


def labelled(directories: Sequence[str], labels: Sequence[str] = ()) -> dict[str, list[Run]]:
    """Read runs and group them by label.

    Args:
      directories: of training runs.
      labels: one for each; runs of one label are seeds of one variant. None given: each run has the
        last part of its path, and as many parts more as tell it apart.

    Raises:
      InputError: other than one label for each directory, an empty one, a directory twice, or logs
        that cannot be used.
    """
    places = [Path(directory).resolve() for directory in directories]
    if not places:
        raise InputError("name at least one training run's directory")
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError("is named twice", file=directories[number])
    names = list(labels) if labels else _names(places)
    if len(names) != len(places):
        raise InputError(
            f"there are {len(names)} labels for {len(places)} runs; give one for each",
            field="labels",
        )
    if not all(names):
        raise InputError("must not be empty", field="labels")
    found: dict[str, list[Run]] = {}
    for name, directory in zip(names, directories, strict=True):
        found.setdefault(name, []).append(read_run(directory))
    return found


def write_analysis(runs: Mapping[str, Sequence[Run]], output: Path) -> list[Path]:
    """Write the analyses of these runs.

    Args:
      runs: label -> its runs, seeds of one variant.
      output: the directory, made if need be.

    Returns:
      The files written.
    """
    written = []
    for sort, group in analyze_dynamics.sorted_runs(runs).items():
        place = output / sort.name
        records = {label: [run.records for run in own] for label, own in group.items()}
        warmup = max(run.warmup for own in group.values() for run in own)
        plot_seeds(records, place.with_suffix(".png"), panels=sort.panels, warmup=warmup)
        write_text(place.with_suffix(".csv"), analyze_dynamics.comma_separated(sort, group))
        write_text(place.with_suffix(".md"), analyze_dynamics.markdown(sort, group))
        written += [place.with_suffix(suffix) for suffix in (".png", ".csv", ".md")]
    figure = draw_tiers(analyze_dynamics.buffers(runs), "update")
    if figure is not None:
        save(figure, output / "tiers.png")
        written.append(output / "tiers.png")
    return written + _write_redistribution(analyze_credit.with_credit(runs), output)


def _write_redistribution(runs: Mapping[str, Sequence[Run]], output: Path) -> list[Path]:
    figure = plot_redistribution(runs)
    if figure is None:
        return []
    place = output / "redistribution"
    save(figure, place.with_suffix(".png"))
    write_text(place.with_suffix(".csv"), analyze_credit.comma_separated(runs))
    write_text(place.with_suffix(".md"), analyze_credit.markdown(runs))
    return [place.with_suffix(suffix) for suffix in (".png", ".csv", ".md")]


def _names(places: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    longest = max(len(place.parts) for place in places)
    for length in range(1, longest + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]
