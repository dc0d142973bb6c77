"""A run's records, with what must be known of them before the first step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NoReturn

from ml_collections import ConfigDict

from turnwise_jax.data.load import find_records, load_dialogues
from turnwise_jax.data.pipeline import Grid, probe_grids
from turnwise_jax.data.records import ClipSpec, Dialogue
from turnwise_jax.data.reply_styles import restyled
from turnwise_jax.errors import InputError
from turnwise_jax.progress import ProgressBar
from turnwise_jax.rollout.policy import Policy


@dataclass(frozen=True)
class Data:
    """A run's records: the usable ones with their vision grids, and a line about each other one.

    ``held_out``: usable ones that are not trained on, in the order of the data, and theirs.
    ``skipped`` grows as unusable media are met while training.
    """

    dialogues: list[Dialogue]
    grids: list[list[Grid]]
    skipped: list[str]
    held_out: list[Dialogue] = field(default_factory=list)
    held_out_grids: list[list[Grid]] = field(default_factory=list)

    @property
    def every(self) -> tuple[list[Dialogue], list[list[Grid]]]:
        """All usable records, those that are trained on first, and their grids."""
        return [*self.dialogues, *self.held_out], [*self.grids, *self.held_out_grids]


def read_data(config: ConfigDict, policy: Policy) -> Data:
    """The records of ``config.data``, with what file headers tell: all shapes are known up front.

    Raises:
      InputError: a file that cannot be read; under ``on_bad_record="raise"``, also a bad record or
        a medium that cannot be opened; a share to hold out that leaves none to train on.
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
    dialogues = dialogues[: fields.limit or None]
    if "replies" in config.policy:
        dialogues = [restyled(dialogue, config.policy.replies) for dialogue in dialogues]
    data = Data([], [], skipped)
    share = fields.held_out if "held_out" in fields else 0.0
    with ProgressBar("reading headers", len(dialogues)) as bar:
        for dialogue in dialogues:
            try:
                check_turns(dialogue, config.algorithm.name)
                grids = probe_grids(dialogue, policy.spec)
            except InputError as error:
                if fields.on_bad_record == "raise":
                    raise
                skipped.append(str(error))
            else:
                held = is_held_out(dialogue.id, share)
                (data.held_out if held else data.dialogues).append(dialogue)
                (data.held_out_grids if held else data.grids).append(grids)
            bar.update()
    if share:
        _check_parts(data, share)
    return data


def is_held_out(name: str, share: float) -> bool:
    """Whether a record of this name is among the share that is kept from training.

    The name alone decides, by 64 bits of its SHA-256 as a number below 1: neither order, other
    records, seed nor the number of processes move a record to the other part. Of many records the
    part is about the share, of few it may be far from it.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _check_parts(data: Data, share: float) -> None:
    if data.held_out and not data.dialogues:
        raise InputError(
            f"{share:g} holds out all of {len(data.held_out)} usable records; lower it, or set it "
            "to 0",
            field="data.held_out",
        )


def check_turns(dialogue: Dialogue, algorithm: str) -> None:
    """Supervised records have all replies, others leave turns, or one question, to the policy.

    Raises:
      InputError: the method cannot learn from this record.
    """
    supervised, asks = algorithm == "sft", algorithm == "avatar"

    def refuse(message: str, field: str = "turns") -> NoReturn:
        raise InputError(message, file=dialogue.file, record=dialogue.id, field=field)

    if supervised and dialogue.open_turns:
        refuse(f"turn {dialogue.first_open} has no reply to learn from; sft needs all of them")
    if not supervised and not dialogue.open_turns:
        refuse("every turn has a reply: nothing is left to decide")
    if asks and (dialogue.question is None or len(dialogue.open_turns) != 1):
        refuse("avatar learns from questions with an answer, one open turn each", "question")
    if not (asks or supervised) and dialogue.question is not None:
        refuse(f"{algorithm} scores streaming dialogues, this is a question; use avatar")
