"""What is odd about one dialogue, as far as the record itself tells. No file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from turnwise_jax.data.checking.problems import Problem
from turnwise_jax.data.records import SILENCE, Dialogue, Turn, Window, is_silent

PREFIX_CHARACTERS = 50  # of eq. 1's shared-prefix penalty
_CLOSE = 1e-6  # s


def dialogue_problems(dialogue: Dialogue) -> Iterator[Problem]:
    """Everything odd, in the order of the record's parts."""
    yield from _frames(dialogue)
    yield from _replies(dialogue)
    yield from _windows(dialogue)
    yield from _decisions(dialogue)
    yield from _answered(dialogue)
    yield from _prefixes(dialogue)


def deciding_turns(dialogue: Dialogue) -> tuple[Turn, ...]:
    """The turns whose timing is learnt or measured: the open ones, or all if all are given."""
    return dialogue.open_turns or dialogue.turns


def decisions_inside(window: Window, turns: Sequence[Turn]) -> int:
    """How many of the turns decide in the window, both ends included."""
    return sum(_inside(window, turn) for turn in turns)


def in_order(windows: Sequence[Window]) -> list[Window]:
    """By start, then by end."""
    return sorted(windows, key=lambda window: (window.start, window.end))


def gaps(windows: Sequence[Window]) -> list[float]:
    """Seconds from each window's end to the next one's start; below 0 where they overlap."""
    return [after.start - before.end for before, after in pairwise(in_order(windows))]


def begin(dialogue: Dialogue) -> float:
    """When a streaming dialogue starts, seconds of its video, by the distance of its turns."""
    turns = dialogue.turns
    return max(0.0, 2 * turns[0].time - turns[1].time) if len(turns) > 1 else 0.0


def _inside(window: Window, turn: Turn) -> bool:
    return window.start - _CLOSE <= turn.time <= window.end + _CLOSE


def _frames(dialogue: Dialogue) -> Iterator[Problem]:
    if dialogue.question is not None:
        return
    for number, turn in enumerate(dialogue.turns):
        for place, frame in enumerate(turn.frames):
            if frame.second is not None and frame.second > turn.time + 1e-3:
                field = f"turns[{number}].frames[{place}]"
                message = f"shows {frame.second:g} s, the turn decides at {turn.time:g} s"
                yield Problem(dialogue.id, "future_frame", field, message)


def _replies(dialogue: Dialogue) -> Iterator[Problem]:
    for number, turn in enumerate(dialogue.turns):
        field = f"turns[{number}].reply"
        if turn.reply is None or is_silent(turn.reply):
            continue
        letters = "".join(c for c in turn.reply.upper() if c.isalpha())
        if not turn.reply.strip():
            yield Problem(dialogue.id, "empty_reply", field, f"silence is spelt {SILENCE!r}")
        elif letters == SILENCE.replace(" ", ""):
            message = f"{turn.reply!r} is none; silence is spelt {SILENCE!r}"
            yield Problem(dialogue.id, "near_silence", field, message)


def _windows(dialogue: Dialogue) -> Iterator[Problem]:
    for number, window in enumerate(dialogue.windows):
        if window.end <= window.start:
            message = f"starts and ends at {window.start:g} s"
            yield Problem(dialogue.id, "empty_window", f"windows[{number}]", message)
        if not window.answer.strip():
            message = f"{window.start:g} s to {window.end:g} s has no answer to compare with"
            yield Problem(dialogue.id, "no_answer", f"windows[{number}].answer", message)
    for before, after in pairwise(in_order(dialogue.windows)):
        if after.start < before.end - _CLOSE:
            message = f"{_span(before)} and {_span(after)}"
            yield Problem(dialogue.id, "overlapping_windows", "windows", message)


def _decisions(dialogue: Dialogue) -> Iterator[Problem]:
    turns = deciding_turns(dialogue)
    due = dialogue.windows or (dialogue.target is not None and dialogue.target.times)
    if dialogue.open_turns and dialogue.question is None and not due:
        yield Problem(dialogue.id, "no_window", "windows", "has none")
    empty = [window for window in dialogue.windows if not decisions_inside(window, turns)]
    for window in empty:
        message = f"{_span(window)}; decisions from {turns[0].time:g} to {turns[-1].time:g} s"
        yield Problem(dialogue.id, "no_decision", "windows", message)
    if dialogue.windows and len(empty) == len(dialogue.windows):
        message = f"none of {len(empty)}"
        yield Problem(dialogue.id, "no_decision_at_all", "windows", message)


def _answered(dialogue: Dialogue) -> Iterator[Problem]:
    """Given replies against windows, in dialogues that are given as a whole."""
    if dialogue.open_turns or not dialogue.windows:
        return
    said = [turn for turn in dialogue.turns if turn.reply is not None and not is_silent(turn.reply)]
    for turn in said:
        if not any(_inside(window, turn) for window in dialogue.windows):
            message = f"at {turn.time:g} s: {turn.reply!r}"
            yield Problem(dialogue.id, "stray_reply", "turns", message)
    for window in dialogue.windows:
        if decisions_inside(window, dialogue.turns) and not decisions_inside(window, said):
            message = f"{_span(window)}: {window.answer!r}"
            yield Problem(dialogue.id, "unanswered_window", "windows", message)


def _prefixes(dialogue: Dialogue) -> Iterator[Problem]:
    """Right answers that eq. 1 would charge for starting like an earlier one."""
    seen: set[str] = set()
    for window in in_order(dialogue.windows):
        start = window.answer.strip()[:PREFIX_CHARACTERS]
        if len(start) == PREFIX_CHARACTERS and start in seen:
            message = f"{_span(window)} starts like an earlier one: {start!r}"
            yield Problem(dialogue.id, "shared_prefix", "windows", message)
        seen.add(start)


def _span(window: Window) -> str:
    return f"{window.start:g} s to {window.end:g} s"
