"""Rewards and prefix scores of random dialogues against brute force on their texts."""

from __future__ import annotations

import hashlib
import math
from functools import partial

import numpy as np
import pytest
from test_score_trajectories import all_prefix_scores, rewards, rewards_of

from turnwise_jax.rewards import REWARDS
from turnwise_jax.rewards.judges import Request
from turnwise_jax.rewards.plan import Settings
from turnwise_jax.rewards.trajectory import (
    SILENCE,
    ReplyWindow,
    Trajectory,
    is_silent,
    score_trajectories,
)

LONG = "the same fifty characters at the beginning of it all: "
POOL = (SILENCE, SILENCE, "", "red", "a red one", "blue", " blue", LONG + "1", LONG + "2")


class HashJudge:
    """A judge whose answers look random, are fixed by the request, and fail now and then."""

    def ask(self, requests):
        return [self.answer(request) for request in requests]

    @staticmethod
    def answer(request) -> float | None:
        byte = hashlib.sha256(repr(tuple(request)).encode()).digest()[0]
        if byte % 7 == 0:
            return None
        return float(byte % 5) if request.kind == "quality" else float(byte % 2)


def random_trajectory(rng: np.random.Generator, n: int) -> Trajectory:
    turns = int(rng.integers(1, 10))
    times = tuple(float(t) for t in np.cumsum(rng.integers(1, 4, turns)))
    windows = []
    for w in range(int(rng.integers(0, 4))):
        start = float(rng.integers(0, 20))
        windows.append(ReplyWindow(start, start + float(rng.integers(1, 9)), f"q{w}?", f"a{w}"))
    pick = partial(rng.choice, POOL)
    return Trajectory(
        id=f"random {n}",
        times=times,
        replies=tuple(str(pick()) for _ in range(turns)),
        windows=tuple(windows),
        history=tuple(str(pick()) for _ in range(int(rng.integers(0, 3)))),
    )


def brute_force_reward(trajectory: Trajectory) -> float:
    """Eq. 1 read off facts 1.1 and 2, in float64, one reply and one window at a time."""
    said = [(t, r.strip()) for t, r in zip(trajectory.times, trajectory.replies, strict=True)]
    open_windows = [w for w in trajectory.windows if w.start <= trajectory.times[-1]]
    p = [brute_force_window(w, said) for w in open_windows]

    repeated = judged = 0
    listed = [r.strip() for r in trajectory.history if r.strip() != "NO REPLY"]
    for _, reply in said:
        if reply == "NO REPLY":
            continue
        if reply in listed:
            answer = 1.0
        else:
            request = Request("repetition", previous=" ".join(listed), reply=reply)
            answer = HashJudge.answer(request)
            listed.append(reply)
        if answer is not None:
            judged += 1
            repeated += answer

    outside = [r for t, r in said if not any(w.start <= t <= w.end for w in open_windows)]
    prefixed = 0
    earlier = [r.strip() for r in trajectory.history]
    for _, reply in said:
        prefixed += any(len(commonprefix(reply, other)) >= 50 for other in earlier)
        earlier.append(reply)
    return (
        3 * (sum(p) / len(p) if p else 0.0)
        - 2 * (repeated / judged if judged else 0.0)
        - 0.5 * (sum(r != "NO REPLY" for r in outside) / len(outside) if outside else 0.0)
        - 2 * prefixed / len(said)
    )


def brute_force_window(window: ReplyWindow, said) -> float:
    points, texts = [], set()
    for time, reply in said:
        if not window.start <= time <= window.end or reply == "NO REPLY" or reply in texts:
            continue
        texts.add(reply)
        score = HashJudge.answer(Request("quality", window.question, window.answer, reply=reply))
        if score is not None:
            points.append((0.5 * (time - window.start), score))
    area, height, at = 0.0, 0.5, 0.0
    for x, y in points:
        area, height, at = area + height * (x - at), y, x
    length = window.end - window.start
    return (area + height * (length - at)) / (4 * length)


def commonprefix(one: str, other: str) -> str:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return one[:same]


def test_rewards_and_prefix_scores_equal_brute_force_on_the_text():
    rng = np.random.default_rng(11)
    trajs = [random_trajectory(rng, n) for n in range(200)]
    turns, windows, stats = score_trajectories(trajs, HashJudge())
    terms = rewards(turns, windows)
    np.testing.assert_allclose(terms.reward, [brute_force_reward(t) for t in trajs], atol=1e-5)
    scores_NK = np.asarray(all_prefix_scores(turns, windows))
    for trajectory, scores_K in zip(trajs, scores_NK, strict=True):
        for kept in range(len(trajectory.times) + 1):
            silent = (SILENCE,) * (len(trajectory.times) - kept)
            prefix = trajectory._replace(replies=trajectory.replies[:kept] + silent)
            assert scores_K[kept] == pytest.approx(brute_force_reward(prefix), abs=1e-5)
    assert stats.quality.failed > 0
    assert stats.repetition.failed > 0


def test_padding_and_company_change_nothing():
    rng = np.random.default_rng(5)
    trajs = [random_trajectory(rng, n) for n in range(4)]
    alone = [float(rewards_of([t], HashJudge()).reward[0]) for t in trajs]
    padded = rewards_of(trajs, HashJudge(), num_turns=20, num_windows=9).reward
    np.testing.assert_allclose(padded, alone, atol=1e-6)


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_plans_whole_turns_and_asks_only_about_replies(name):
    rng = np.random.default_rng(3)
    for n in range(20):
        trajectory = random_trajectory(rng, n)
        plan = REWARDS[name](trajectory, Settings())
        assert plan.values.dtype == np.float32
        assert plan.values.shape[0] == len(trajectory.times)
        for index, request in plan.asks:
            assert math.isnan(plan.values[index])
            assert request.reply == trajectory.replies[index[0]].strip()
            assert not is_silent(request.reply)
