"""Entries to dialogues: target segments with their past for RL, whole stretches for SFT.

A decision follows every ``turn_frames`` frames. The teacher answers once in each window, at its
last decision (MMDuet2's SFT data) or its first one, and is silent everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from turnwise_jax.data.clip import Question, stream_turns
from turnwise_jax.data.making.entries import Entry
from turnwise_jax.data.records import SILENCE, Dialogue, Turn, Window
from turnwise_jax.errors import InputError

REPLY_AT = ("end", "start")
_CLOSE = 1e-6  # s


class CutSpec(NamedTuple):
    """How a video becomes turns. The defaults are MMDuet2's 2-second recipe.

    ``interval``: seconds between frames. ``turn_frames``: frames before each decision.
    ``segment``: seconds that the policy decides in an RL dialogue, whole turns. ``max_frames``: of
    a dialogue, its past included. ``history_turns``: given turns before the segment at most, -1:
    all that fit. ``reply_at``: the teacher answers at the "end" or the "start" of a window.
    ``sound``: turns play the video's own sound, if it has any. ``keep_silent``: dialogues that ask
    for no answer are kept.
    """

    interval: float = 2.0
    turn_frames: int = 2
    segment: float = 20.0
    max_frames: int = 90
    history_turns: int = -1
    reply_at: str = "end"
    sound: bool = False
    keep_silent: bool = False

    @property
    def turn_seconds(self) -> float:
        return self.interval * self.turn_frames

    @property
    def segment_turns(self) -> int:
        return round(self.segment / self.turn_seconds)

    @property
    def most_turns(self) -> int:
        """Of a dialogue."""
        return self.max_frames // self.turn_frames


class Plan(NamedTuple):
    """What the teacher does in a whole video.

    ``replies``: one text per turn, or None. ``windows``: those with a decision, each with the turn
    of its reply. ``missed``: windows without a decision, which nobody can answer in time.
    """

    replies: tuple[str | None, ...]
    windows: tuple[tuple[Window, int], ...]
    missed: int


def check_spec(spec: CutSpec) -> None:
    """Refuses what cannot be cut.

    Raises:
      InputError: names the field.
    """
    for field, least in (("turn_frames", 1), ("max_frames", 1), ("history_turns", -1)):
        if getattr(spec, field) < least:
            message = f"must be at least {least}, got {getattr(spec, field)}"
            raise InputError(message, field=field)
    for field in ("interval", "segment"):
        value = getattr(spec, field)
        if not 0 < value < math.inf:
            raise InputError(f"must be above 0 and finite, got {value:g}", field=field)
    turns = spec.segment / spec.turn_seconds
    if turns < 1 or abs(turns - round(turns)) > _CLOSE:
        message = f"must be whole turns of {spec.turn_seconds:g} s, got {spec.segment:g} s"
        raise InputError(message, field="segment")
    if spec.most_turns < spec.segment_turns:
        message = f"holds no segment of {spec.segment_turns * spec.turn_frames:g} frames"
        raise InputError(message, field="max_frames")
    if spec.reply_at not in REPLY_AT:
        message = f"must be 'end' or 'start', got {spec.reply_at!r}"
        raise InputError(message, field="reply_at")


def plan_replies(entry: Entry, spec: CutSpec) -> Plan:
    """The teacher's replies at the decisions of the whole video.

    Two answers that fall on one decision are given together, in the order of their windows.
    """
    span = spec.turn_seconds
    count = int(entry.info.duration / spec.interval + _CLOSE) // spec.turn_frames
    said: list[list[str]] = [[] for _ in range(count)]
    windows = []
    for window in entry.windows:
        inside = [
            turn
            for turn in range(count)
            if window.start - _CLOSE <= (turn + 1) * span <= window.end + _CLOSE
        ]
        if inside:
            turn = inside[-1] if spec.reply_at == "end" else inside[0]
            said[turn].append(window.answer)
            windows.append((window, turn))
    replies = tuple(" ".join(texts) or None for texts in said)
    return Plan(replies, tuple(windows), len(entry.windows) - len(windows))


def rl_dialogues(entry: Entry, plan: Plan, spec: CutSpec, *, video: str) -> list[Dialogue]:
    """One dialogue per target segment: its past with the teacher's replies, then open turns.

    A segment's windows are those with a decision in it that the past has not answered; one that
    opened earlier starts with the segment, since the policy cannot answer before.

    Args:
      video: the video's path as the frames name it.
    """
    dialogues = []
    for first in range(0, len(plan.replies), spec.segment_turns):
        stop = min(first + spec.segment_turns, len(plan.replies))
        begin, end = first * spec.turn_seconds, stop * spec.turn_seconds
        windows = [
            replace(window, start=max(window.start, begin))
            for window, turn in plan.windows
            if turn >= first and _decided(window, first, stop, spec)
        ]
        if not windows and not spec.keep_silent:
            continue
        past = spec.most_turns - spec.segment_turns
        if spec.history_turns >= 0:
            past = min(past, spec.history_turns)
        start = max(0, first - past)
        turns = _stretch(entry, plan, spec, start, stop, video)
        given, opened = turns[: first - start], turns[first - start :]
        turns = (*given, *(replace(turn, reply=None) for turn in opened))
        name = f"{entry.id}@{begin:g}-{end:g}"
        dialogues.append(_dialogue(entry, name, turns, windows, plan.replies[:first]))
    return dialogues


def sft_dialogues(entry: Entry, plan: Plan, spec: CutSpec, *, video: str) -> list[Dialogue]:
    """The whole video in stretches of at most ``max_frames`` frames, every turn answered.

    A stretch after the first one opens with the question in force; a window belongs to the stretch
    that answers it. ``video``: as in ``rl_dialogues``.
    """
    dialogues = []
    for first in range(0, len(plan.replies), spec.most_turns):
        stop = min(first + spec.most_turns, len(plan.replies))
        begin, end = first * spec.turn_seconds, stop * spec.turn_seconds
        windows = [
            replace(window, start=max(window.start, begin))
            for window, turn in plan.windows
            if first <= turn < stop
        ]
        if not windows and not spec.keep_silent:
            continue
        whole = stop - first == len(plan.replies)
        name = entry.id if whole else f"{entry.id}@{begin:g}-{end:g}"
        turns = _stretch(entry, plan, spec, first, stop, video)
        dialogues.append(_dialogue(entry, name, turns, windows, plan.replies[:first]))
    return dialogues


def _decided(window: Window, first: int, stop: int, spec: CutSpec) -> bool:
    """Whether one of the turns ``first .. stop - 1`` ends in the window."""
    return any(
        window.start - _CLOSE <= (turn + 1) * spec.turn_seconds <= window.end + _CLOSE
        for turn in range(first, stop)
    )


def _stretch(
    entry: Entry, plan: Plan, spec: CutSpec, first: int, stop: int, video: str
) -> tuple[Turn, ...]:
    """Turns ``first .. stop - 1`` of the video with the teacher's replies."""
    start, end = first * spec.turn_seconds, stop * spec.turn_seconds
    before = [question for question in entry.questions if question.time <= start + _CLOSE]
    within = [q for q in entry.questions if start + _CLOSE < q.time < end - _CLOSE]
    asked = [Question(before[-1].text, start)] if before else []
    turns = stream_turns(
        video,
        [*asked, *within],
        frame_interval=spec.interval,
        frames_per_turn=spec.turn_frames,
        start=start,
        end=end,
        sound=spec.sound and entry.info.has_audio,
    )
    replies = plan.replies[first:stop]
    return tuple(replace(t, reply=r or SILENCE) for t, r in zip(turns, replies, strict=True))


def _dialogue(
    entry: Entry,
    name: str,
    turns: tuple[Turn, ...],
    windows: Sequence[Window],
    past: Sequence[str | None],
) -> Dialogue:
    history = tuple(reply for reply in past if reply is not None)
    return Dialogue(name, turns, tuple(windows), entry.system, history, entry.file)
