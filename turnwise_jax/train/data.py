"""A run's records, with what must be known of them before the first step."""

from __future__ import annotations

from dataclasses import dataclass

from ml_collections import ConfigDict

from turnwise_jax.data.load import find_records, load_dialogues
from turnwise_jax.data.pipeline import Grid, probe_grids
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.errors import InputError
from turnwise_jax.progress import ProgressBar
from turnwise_jax.rollout.policy import Policy


@dataclass(frozen=True)
class Data:
    """A run's records: the usable ones with their vision grids, and a line about each other one.

    ``skipped`` grows as unusable media are met while training.
    """

    dialogues: list[Dialogue]
    grids: list[list[Grid]]
    skipped: list[str]


def read_data(config: ConfigDict, policy: Policy) -> Data:
    """The records of ``config.data``, with what file headers tell: all shapes are known up front.

    Raises:
      InputError: a file that cannot be read; under ``on_bad_record="raise"``, also a bad record or
        a medium that cannot be opened.
    """
    fields = config.data
    dialogues, skipped = load_dialogues(
        fields.source,
        fields.path or find_records(fields.source, fields.root),
        root=fields.root or None,
        user_turns=fields.user_turns or None,
        on_bad_record=fields.on_bad_record,
        clip=ClipSpec(fields.frames, fields.sound),
    )
    data = Data([], [], skipped)
    with ProgressBar("reading headers", len(dialogues)) as bar:
        for dialogue in dialogues:
            try:
                check_turns(dialogue, supervised=config.algorithm.name == "sft")
                data.grids.append(probe_grids(dialogue, policy.spec))
                data.dialogues.append(dialogue)
            except InputError as error:
                if fields.on_bad_record == "raise":
                    raise
                skipped.append(str(error))
            bar.update()
    return data


def check_turns(dialogue: Dialogue, *, supervised: bool) -> None:
    """Supervised records have all replies, records for rollouts leave turns to decide."""
    if bool(dialogue.open_turns) != supervised:
        return
    raise InputError(
        f"turn {dialogue.first_open} has no reply to learn from; sft needs all of them"
        if supervised
        else "every turn has a reply: nothing is left to decide",
        file=dialogue.file,
        record=dialogue.id,
        field="turns",
    )
