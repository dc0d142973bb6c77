"""The parts that a benchmark averages within: ``target.subset`` of its predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from turnwise_jax.data.records import Question, Target
from turnwise_jax.errors import InputError
from turnwise_jax.eval.bootstrap import Ratio
from turnwise_jax.eval.predictions import Prediction

Members = Mapping[str, np.ndarray]  # subset -> bool[D], which dialogues are of it


def by_subset(predictions: Sequence[Prediction], known: Sequence[str] = ()) -> Members:
    """Which of D dialogues are of which subset, in the order of ``known``, else by name.

    Raises:
      InputError: a prediction without a subset, or with one that is not among ``known``.
    """
    names = [target_of(prediction).subset for prediction in predictions]
    for prediction, name in zip(predictions, names, strict=True):
        if not name or (known and name not in known):
            wanted = f"; it must be one of {', '.join(known)}" if known else ""
            raise InputError(
                f"is {name!r}, this benchmark averages within subsets{wanted}",
                record=prediction.id,
                field="target.subset",
            )
    found = sorted(set(names), key=lambda name: (known.index(name) if known else 0, name))
    names_D = np.array(names, dtype=object)
    return {name: names_D == name for name in found}


def apart(
    total_D: Sequence[float], count_D: Sequence[float], members: Members, scale: float = 100.0
) -> dict[str, Ratio]:
    """One ratio of the same sums for each subset, in percent unless ``scale`` says otherwise."""
    total_D, count_D = np.asarray(total_D, float), np.asarray(count_D, float)
    return {
        name: Ratio(total_D * member_D, count_D * member_D, scale)
        for name, member_D in members.items()
    }


def named(prefix: str, ratios: Mapping[str, Ratio]) -> dict[str, Ratio]:
    """The ratios as a report calls them: ``PREFIX/subset``."""
    return {f"{prefix}/{name}": ratio for name, ratio in ratios.items()}


def target_of(prediction: Prediction) -> Target:
    """The benchmark's annotation of a prediction; InputError if it carries none."""
    if prediction.target is None:
        raise InputError(
            "is missing; make the predictions from this benchmark's own annotation file",
            record=prediction.id,
            field="target",
        )
    return prediction.target


def answered(prediction: Prediction) -> tuple[Question, str]:
    """The question and the one reply of a prediction that answers one.

    Raises:
      InputError: no question, or not exactly one reply.
    """
    if prediction.question is None:
        raise InputError(
            "is missing: this benchmark marks answers to questions",
            record=prediction.id,
            field="question",
        )
    if len(prediction.replies) != 1:
        raise InputError(
            f"has {len(prediction.replies)} entries, a question takes one",
            record=prediction.id,
            field="replies",
        )
    return prediction.question, prediction.replies[0]
