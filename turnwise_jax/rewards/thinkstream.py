"""ThinkStream's reward: format, timing, correctness and efficiency (arXiv 2603.12938).

johncaged/ThinkStream: thinkstream/trainer/grpo.py, defaults of trainer/scope.py, line by line:

* format: share of well-formed turns.
* The reply that counts is the first whose text is a bare literal: a letter A to E, also as "(A)" or
  "A.", yes or no in any case, one digit.
* timing, with d the turns between it and the truth: 1 for d <= slack, then linear down to 0 at
  slack + window, else 0; without such a reply 0. Slack is the whole turns in 3 s, window 5 turns.
* correctness: 1 if its literal is the truth's, else 0.
* efficiency: a factor of the mean tokens of the think blocks, tags included (1 from 20 - 5 on,
  below it steps of 5: 0, 1/4, 1/2), times a factor of the number of replies (1 for one, 0 for none
  or more than 10, else 3/4, 1/2, 1/4 in steps of three).
* reward: 0.2 format + 0.2 timing + 0.4 correctness + 0.2 efficiency.

The code knows one question with one literal answer at one time. What dialogues with reply windows
need beyond it is decided here, and changes nothing for such a record:

* The truth is a window's answer, due at the first turn at or after the window's start. Windows that
  start after the last turn are skipped.
* Of several windows each has the turns to which its start is the nearest (ties: the earlier one),
  and the rules above hold within them; timing, correctness and the number factor are means over
  windows. Without a window silence is right: each of the three is 1 if nothing is said, timing
  and correctness 0 otherwise, and n replies count as n + 1.
* A truth that is no literal, for which the code gives 0, is answered by the window's first reply,
  and correctness is its judged quality over the top score. A failed judgement leaves that window
  out of the mean; a rollout without any has no reward (NaN).
* A turn that was cut at the length limit is not well formed, as its end is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.rewards.asking import fill
from turnwise_jax.rewards.judges.protocol import Judge, Request
from turnwise_jax.rewards.plan import Plan, ReplyWindow, Trajectory
from turnwise_jax.rewards.trajectory import Scores, unjudged

PREFIX_SCORES = False
TOP_SCORE = 4.0  # of the five-level judge

_LITERAL = re.compile(r"\(([A-E])\)|([A-E])\.?|([0-9])")


class Settings(NamedTuple):
    """Weights of the four terms, and the code's constants."""

    format: float = 0.2
    timing: float = 0.2
    correctness: float = 0.4
    efficiency: float = 0.2
    slack: float = 3.0  # seconds
    window: int = 5  # turns
    think_tokens: int = 20  # 0: no factor for thinking
    think_step: int = 5  # tokens
    max_replies: int = 10
    reply_step: int = 3


class Terms(NamedTuple):
    """Float32 [N] each: the weighted sum, and the terms, 0 to 1."""

    reward: np.ndarray
    format: np.ndarray
    timing: np.ndarray
    correctness: np.ndarray
    efficiency: np.ndarray


class Part(NamedTuple):
    """One window, the turn at which its answer is due, and the replies of its turns."""

    window: ReplyWindow
    due: int
    replies: dict[int, str]

    @property
    def used(self) -> tuple[int, str] | None:
        """(turn, text) of the reply that counts."""
        truth = literal(self.window.answer)
        for turn, text in self.replies.items():
            if truth is None or literal(text) is not None:
                return turn, text
        return None


def score(
    trajs: Sequence[Trajectory],
    judge: Judge,
    settings: Settings,
    *,
    num_turns: int | None = None,
    num_windows: int | None = None,
) -> Scores:
    """The four terms and the reward of N trajectories; no literal is put to the judge."""
    turns, windows = unjudged(trajs, num_turns=num_turns, num_windows=num_windows)
    shares = [parts(trajectory) for trajectory in trajs]
    correct = [_correctness(own) for own in shares]
    stats = fill(correct, judge)
    rows = [
        _terms(trajectory, own, plan.values, settings)
        for trajectory, own, plan in zip(trajs, shares, correct, strict=True)
    ]
    columns = np.asarray(rows, np.float64).reshape(len(rows), 4).T
    weights = settings.format, settings.timing, settings.correctness, settings.efficiency
    reward = sum(weight * term for weight, term in zip(weights, columns, strict=True) if weight)
    terms = Terms(*(np.asarray(c, np.float32) for c in (reward + np.zeros(len(rows)), *columns)))
    return Scores(turns, windows, terms, stats)


def parts(trajectory: Trajectory) -> list[Part]:
    """Each counted window with its share of the replies."""
    counted = trajectory.counted
    if not counted:
        return []
    times = np.asarray(trajectory.times)
    starts = np.asarray([window.start for window in counted])
    order = np.argsort(starts, kind="stable")  # so that argmin breaks ties for the earlier window
    nearest = order[np.abs(times[:, None] - starts[order][None]).argmin(axis=1)]
    return [
        Part(
            window,
            int(np.argmax(times >= window.start)),
            {k: text for k, text in trajectory.spoken.items() if nearest[k] == w},
        )
        for w, window in enumerate(counted)
    ]


def literal(text: str) -> str | None:
    """The bare literal that a text is, in one form; None if it is none."""
    text = text.strip()
    if text.lower() in ("yes", "no"):
        return text.lower()
    found = _LITERAL.fullmatch(text)
    return next(group for group in found.groups() if group) if found else None


def _correctness(own: Sequence[Part]) -> Plan:
    """Values [W] of a trajectory's counted windows; those without a literal truth are asked for,
    with the judge's score in place of its share."""
    values = np.zeros(len(own), np.float32)
    asks = []
    for w, part in enumerate(own):
        truth, used = literal(part.window.answer), part.used
        if used is None:
            continue
        if truth is not None:
            values[w] = TOP_SCORE * (literal(used[1]) == truth)
            continue
        values[w] = np.nan
        question, answer = part.window.question, part.window.answer
        asks.append(((w,), Request("quality", question, answer, reply=used[1])))
    return Plan(values, tuple(asks))


def _terms(
    trajectory: Trajectory, own: Sequence[Part], scores: np.ndarray, settings: Settings
) -> tuple[float, float, float, float]:
    thinking = think_factor(trajectory, settings)
    well_formed = trajectory.well_formed
    if not own:
        said = len(trajectory.spoken)
        silent = float(not said)
        return well_formed, silent, silent, thinking * reply_factor(said + 1, settings)
    slack = _slack(trajectory.times, settings)
    timing = [timeliness(part, slack, settings.window) for part in own]
    number = [reply_factor(len(part.replies), settings) for part in own]
    known = scores[np.isfinite(scores)]
    correctness = float(known.mean()) / TOP_SCORE if known.size else float("nan")
    return well_formed, float(np.mean(timing)), correctness, thinking * float(np.mean(number))


def _slack(times: Sequence[float], settings: Settings) -> int:
    """Whole turns in the slack, at the mean distance of the turns."""
    distance = (times[-1] - times[0]) / max(len(times) - 1, 1)
    # 3 s are three turns of 1 s also where the mean of float times is a little more
    return int(settings.slack / distance + 1e-6) if distance > 0 else len(times)


def timeliness(part: Part, slack: int, window: int) -> float:
    """1 for the reply that counts within ``slack`` turns of when it is due, then down to 0."""
    if part.used is None:
        return 0.0
    late = abs(part.used[0] - part.due) - slack
    if late <= 0:
        return 1.0
    return 1.0 - late / window if late <= window else 0.0


def think_factor(trajectory: Trajectory, settings: Settings) -> float:
    """The factor of the mean length of the think blocks; turns without one are passed over."""
    wanted = settings.think_tokens - settings.think_step
    lengths = [form.thought_tokens for form in trajectory.forms if form.thought_tokens is not None]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    if settings.think_tokens <= 0 or mean >= wanted:
        return 1.0
    return (mean // settings.think_step) / (wanted // settings.think_step + 1)


def reply_factor(replies: int, settings: Settings) -> float:
    """The factor of the number of replies to one question."""
    if replies == 1:
        return 1.0
    if not 1 < replies <= settings.max_replies:
        return 0.0
    steps = (settings.max_replies - 2) // settings.reply_step + 1
    return 1.0 - ((replies - 2) // settings.reply_step + 1) / (steps + 1)
