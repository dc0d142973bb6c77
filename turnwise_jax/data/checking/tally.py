"""Counts and distributions of a whole set, gathered dialogue by dialogue."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from turnwise_jax.data.checking.dialogues import (
    begin,
    deciding_turns,
    decisions_inside,
    gaps,
)
from turnwise_jax.data.records import Dialogue, Question, is_silent


def _numbers() -> array:
    return array("d")


@dataclass
class Tally:
    """What a set holds. Lengths and times are seconds, texts are counted in characters.

    ``records`` counts all, ``read`` those that follow the format. ``decisions``: deciding turns in
    each window. ``given_at``, ``said_at``: times of all given turns and of those with a reply, from
    the start of their dialogue; ``deciding_at``, ``due_at``: of deciding turns and of those in a
    window.
    """

    records: int = 0
    read: int = 0
    streaming: int = 0
    turns: int = 0
    open_turns: int = 0
    frames: int = 0
    replies: int = 0
    silences: int = 0
    window_seconds: array = field(default_factory=_numbers)
    decisions: array = field(default_factory=_numbers)
    gap_seconds: array = field(default_factory=_numbers)
    due_times: int = 0
    dialogue_seconds: array = field(default_factory=_numbers)
    turns_each: array = field(default_factory=_numbers)
    user_text: array = field(default_factory=_numbers)
    reply_text: array = field(default_factory=_numbers)
    answer_text: array = field(default_factory=_numbers)
    given_at: array = field(default_factory=_numbers)
    said_at: array = field(default_factory=_numbers)
    deciding_at: array = field(default_factory=_numbers)
    due_at: array = field(default_factory=_numbers)
    subsets: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    options: Counter[int] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)

    @property
    def questions(self) -> int:
        """Records with one question and its answer."""
        return self.kinds.total()

    @property
    def given_turns(self) -> int:
        return self.replies + self.silences

    def add(self, dialogue: Dialogue) -> None:
        """Counts one dialogue."""
        self.read += 1
        self.turns += len(dialogue.turns)
        self.turns_each.append(len(dialogue.turns))
        self.open_turns += len(dialogue.open_turns)
        self.frames += sum(len(turn.frames) for turn in dialogue.turns)
        self.user_text.extend(len(turn.text) for turn in dialogue.turns if turn.text)
        if dialogue.target is not None:
            self.subsets[dialogue.target.subset] += 1
            self.due_times += len(dialogue.target.times)
        if dialogue.question is not None:
            self._add_question(dialogue, dialogue.question)
        else:
            self.streaming += 1
            self._add_stream(dialogue)
        self._add_replies(dialogue)
        self._add_windows(dialogue)

    def _add_question(self, dialogue: Dialogue, question: Question) -> None:
        self.kinds[question.kind] += 1
        self.categories[question.category] += 1
        self.answer_text.append(len(question.answer))
        if question.options:
            self.options[len(question.options)] += 1
            self.letters[question.answer] += 1
        turn = dialogue.turns[-1]
        times = [frame.second for frame in turn.frames if frame.second is not None]
        if times:  # spread evenly over the clip: its start mirrors its end
            self.dialogue_seconds.append(2 * turn.time - times[0] - times[-1])
        elif turn.audio is not None:
            self.dialogue_seconds.append(turn.audio.end - turn.audio.start)

    def _add_stream(self, dialogue: Dialogue) -> None:
        start = begin(dialogue)
        if dialogue.turns:
            self.dialogue_seconds.append(dialogue.turns[-1].time - start)
        for turn in dialogue.turns:
            if turn.reply is not None:
                self.given_at.append(turn.time - start)
                if not is_silent(turn.reply):
                    self.said_at.append(turn.time - start)
        for turn in deciding_turns(dialogue):
            self.deciding_at.append(turn.time - start)
            if any(decisions_inside(window, [turn]) for window in dialogue.windows):
                self.due_at.append(turn.time - start)

    def _add_replies(self, dialogue: Dialogue) -> None:
        for turn in dialogue.turns:
            if turn.reply is None:
                continue
            if is_silent(turn.reply):
                self.silences += 1
            else:
                self.replies += 1
                self.reply_text.append(len(turn.reply))

    def _add_windows(self, dialogue: Dialogue) -> None:
        turns = deciding_turns(dialogue)
        self.gap_seconds.extend(gaps(dialogue.windows))
        for window in dialogue.windows:
            self.window_seconds.append(window.end - window.start)
            self.decisions.append(decisions_inside(window, turns))
            self.answer_text.append(len(window.answer))
