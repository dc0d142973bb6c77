"""What rollouts said as the rewards read it, and what given replies are classed as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnwise_jax.algorithms.sft import class_weights
from turnwise_jax.data.records import Dialogue
from turnwise_jax.data.reply_styles import normalised, style_of
from turnwise_jax.data.tokens import Vocab
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.plan import TurnForm
from turnwise_jax.rewards.trajectory import ReplyWindow, Trajectory
from turnwise_jax.train.sharing import Said


def trajectories_of(
    said: Said, style: str = "plain", count_tokens: Callable[[str], int] = len
) -> list[Trajectory]:
    """What the judge reads, N = B x G in (b, g) order.

    Args:
      style: in which the replies are written, of ``data.reply_styles``.
      count_tokens: tokens of a think block.
    """
    out = []
    for b, (dialogue, group) in enumerate(zip(said.dialogues, said.text, strict=True)):
        windows = tuple(ReplyWindow(w.start, w.end, w.question, w.answer) for w in dialogue.windows)
        times = tuple(turn.time for turn in dialogue.open_turns)
        for g, replies in enumerate(group):
            name = f"{dialogue.id}/{g}"
            raw = tuple(replies[: len(times)])
            shown = tuple(normalised(text, style) for text in raw)
            forms = turn_forms(raw, said.truncated[b, g], style, count_tokens)
            kept = () if style == "plain" else raw
            out.append(Trajectory(name, times, shown, windows, dialogue.history, forms, kept))
    return out


def turn_forms(
    raw: Sequence[str],
    truncated_K: np.ndarray,
    style: str,
    count_tokens: Callable[[str], int],
) -> tuple[TurnForm, ...]:
    """How each turn was written; one that was cut at the length limit lacks its end."""
    forms = []
    for text, cut in zip(raw, truncated_K[: len(raw)].tolist(), strict=True):
        read = style_of(style).read(text)
        tokens = None if read.thought is None else count_tokens(read.thought)
        forms.append(TurnForm(read.well_formed and not cut, tokens))
    return tuple(forms)


class TurnClasses:
    """Silence and speech among given replies, and what their decisions weigh in the loss of
    ``algorithms.sft``; all weights are 0, which is not read, where its classes are not balanced."""

    def __init__(self, settings: Any, style: str, vocab: Vocab):
        """
        Args:
          settings: of ``algorithms.sft``.
          style: of the replies.

        Raises:
          InputError: the token that decides is the same for both classes.
        """
        self._settings, self._style = settings, style_of(style)
        self._balanced = settings.balance != "none"
        silence, speech = (vocab.encode(text) for text in self._style.openings)
        at = settings.decision_token
        if self._balanced and speech and silence[at : at + 1] == speech[at : at + 1]:
            raise InputError(
                f"token {at} of {self._style.openings[0]!r} and of {self._style.openings[1]!r} is "
                "the same for this tokenizer; name the first that differs",
                field="algorithm.decision_token",
            )

    def counts(self, dialogues: Sequence[Dialogue]) -> list[int]:
        """Turns of silence and of speech."""
        if not self._balanced:
            return [0, 0]
        classes = [spoken for dialogue in dialogues for spoken in self._spoken(dialogue)]
        return [classes.count(False), classes.count(True)]

    def weights(
        self, dialogues: Sequence[Dialogue], counts: Sequence[int], shape: tuple[int, int]
    ) -> np.ndarray:
        """f32 ``[N, K]``: the weight of each turn's class.

        Args:
          dialogues: at most N.
          counts: of the whole batch.
        """
        out = np.zeros(shape, np.float32)
        if self._balanced:
            per_class = class_weights(counts, self._settings.beta)
            for n, dialogue in enumerate(dialogues):
                own = per_class[np.asarray(self._spoken(dialogue), int)]
                out[n, : len(own)] = own
        return out

    def _spoken(self, dialogue: Dialogue) -> list[bool]:
        replies = [turn.reply or "" for turn in dialogue.turns]
        return [self._style.read(reply).visible is not None for reply in replies]
