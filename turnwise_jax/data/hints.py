"""Hints: the same question with its hint in the system text, under an id of its own.

A hinted prompt counts as another prompt (its rewards are kept apart), so its id differs: the plain
one with ``HINTED`` behind it. Hints are for training only; nothing in evaluation adds them.
"""

from __future__ import annotations

from dataclasses import replace

from turnwise_jax.data.records import Dialogue
from turnwise_jax.errors import InputError

HINTED = "+hint"


def hinted(dialogue: Dialogue) -> Dialogue:
    """The dialogue with ``Hint: ...`` at the end of its system text; unchanged if it has it.

    A dialogue without system text gets one that is the hint alone.

    Raises:
      InputError: the dialogue's question has no hint.
    """
    if is_hinted(dialogue.id):
        return dialogue
    hint = dialogue.question.hint.strip() if dialogue.question else ""
    if not hint:
        raise InputError(
            "has no hint to show; fill this field, for example with `turnwise hints`",
            file=dialogue.file,
            record=dialogue.id,
            field="hint",
        )
    system = f"{dialogue.system or ''}\n\nHint: {hint}".lstrip()
    return replace(dialogue, id=dialogue.id + HINTED, system=system)


def is_hinted(id: str) -> bool:
    """Whether an id is that of a hinted dialogue."""
    return id.endswith(HINTED)


def plain_id(id: str) -> str:
    """The id of the dialogue without its hint."""
    return id.removesuffix(HINTED)
