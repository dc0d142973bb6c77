"""ThinkStream's reward: worked by hand, and against a second reading of its trainer."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from turnwise_jax.rewards import thinkstream
from turnwise_jax.rewards.judges import RuleJudge
from turnwise_jax.rewards.plan import ReplyWindow, Trajectory, TurnForm
from turnwise_jax.rewards.thinkstream import Settings, literal, reply_factor, score, think_factor

SILENT = "NO REPLY"
TIMES = tuple(float(t) for t in range(1, 13))  # one turn a second


def trajectory(replies: dict[int, str], windows=None, *, times=TIMES, forms=()) -> Trajectory:
    said = tuple(replies.get(k, SILENT) for k in range(len(times)))
    windows = (ReplyWindow(4.0, 9.0, "which?", "B"),) if windows is None else windows
    return Trajectory("t", times, said, windows, forms=forms)


def terms(*trajs, judge=None, settings=Settings()):  # noqa: B008 - an immutable tuple
    return score(trajs, judge or RuleJudge(), settings).terms


THOUGHT = tuple(TurnForm(True, 20) for _ in TIMES)


@pytest.mark.parametrize(
    ("replies", "timing", "correctness", "number"),
    [
        ({}, 0.0, 0.0, 0.0),
        ({3: "B"}, 1.0, 1.0, 1.0),  # due at 4 s, the fourth turn
        ({0: "(B)"}, 1.0, 1.0, 1.0),  # three turns early: within the slack
        ({6: "B."}, 1.0, 1.0, 1.0),
        ({7: "B"}, 0.8, 1.0, 1.0),
        ({10: "B"}, 0.2, 1.0, 1.0),
        ({11: "B"}, 0.0, 1.0, 1.0),
        ({3: "A"}, 1.0, 0.0, 1.0),
        ({3: "It is B", 8: "B"}, 0.6, 1.0, 0.75),  # the first bare literal counts
        ({3: "It is B"}, 0.0, 0.0, 1.0),
        ({k: "B" for k in range(5)}, 1.0, 1.0, 0.5),
        ({k: "B" for k in range(8)}, 1.0, 1.0, 0.25),
        ({k: "B" for k in range(11)}, 1.0, 1.0, 0.0),
    ],
)
def test_one_question_with_a_literal_answer(replies, timing, correctness, number):
    found = terms(trajectory(replies, forms=THOUGHT))
    expected = (1.0, timing, correctness, number)
    assert [float(x[0]) for x in found[1:]] == pytest.approx(expected)
    total = 0.2 + 0.2 * timing + 0.4 * correctness + 0.2 * number
    assert float(found.reward[0]) == pytest.approx(total)


@pytest.mark.parametrize(
    ("text", "value"),
    [("A", "A"), (" (E) ", "E"), ("C.", "C"), ("YES", "yes"), ("No", "no"), ("7", "7"),
     ("F", None), ("a", None), ("10", None), ("yes.", None), ("(A", None), ("", None),
     ("(A).", None), ("A red ring.", None)],
)  # fmt: skip
def test_literals(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    ("lengths", "factor"),
    [([], 0.0), ([4], 0.0), ([5], 0.25), ([9.9], 0.25), ([10], 0.5), ([14], 0.5), ([15], 1.0),
     ([40], 1.0), ([10, 20], 1.0), ([None, 10, None], 0.5)],
)  # fmt: skip
def test_the_factor_of_thinking(lengths, factor):
    forms = tuple(TurnForm(True, length) for length in lengths)
    own = trajectory({}, times=TIMES[: len(lengths)], forms=forms)
    assert think_factor(own, Settings()) == factor
    assert think_factor(own, Settings(think_tokens=0)) == 1.0
    assert think_factor(own, Settings(think_tokens=5)) == 1.0  # one step below it is nothing


def test_the_factor_of_the_number_of_replies():
    """The table of the facts: 1; 2 to 4; 5 to 7; 8 to 10; more, or none."""
    expected = [0.0, 1.0, *[0.75] * 3, *[0.5] * 3, *[0.25] * 3, 0.0, 0.0]
    assert [reply_factor(n, Settings()) for n in range(13)] == pytest.approx(expected)


def test_turns_of_a_second_give_three_of_slack_wherever_the_clip_starts():
    """The mean distance of these times is a rounding error above 1 s."""
    times = tuple(0.1 + k for k in range(1, 17))
    assert (times[-1] - times[0]) / 15 > 1.0
    window = (ReplyWindow(4.0, 9.0, "which?", "B"),)
    found = terms(*(trajectory({k: "B"}, window, times=times) for k in (0, 3, 6, 7)))
    assert found.timing.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.8])


def test_an_open_answer_is_judged_by_the_first_reply():
    window = ReplyWindow(4.0, 9.0, "what?", "A red ring appears.")
    replies = {4: "A red ring appears.", 7: "A blue square appears."}
    found = terms(trajectory(replies, (window,)), trajectory({4: replies[7]}, (window,)))
    assert found.correctness.tolist() == [1.0, 0.0]
    assert found.timing.tolist() == [1.0, 1.0]


def test_several_windows_share_the_turns():
    """Starts at 3 s and 9 s: turns up to 6 s, which is as far from both, belong to the first."""
    windows = (ReplyWindow(3.0, 5.0, "a?", "A"), ReplyWindow(9.0, 11.0, "b?", "B"))
    own = trajectory({5: "B", 6: "B", 8: "A"}, windows, forms=THOUGHT)
    found = terms(own)
    # First: B at 6 s, three turns late, wrong. Second: B at 7 s, right, and one more reply.
    assert float(found.timing[0]) == 1.0
    assert float(found.correctness[0]) == 0.5
    assert float(found.efficiency[0]) == pytest.approx((1.0 + 0.75) / 2)
    assert terms(own._replace(windows=windows[::-1])) == found


def test_where_nothing_is_due_silence_is_right():
    late = ReplyWindow(30.0, 40.0, "which?", "B")
    for windows in ((), (late,)):
        quiet, one, four = (trajectory(r, windows, forms=THOUGHT) for r in ({}, {0: "B"},
                            {k: "B" for k in range(4)}))  # fmt: skip
        found = terms(quiet, one, four)
        assert found.timing.tolist() == found.correctness.tolist() == [1.0, 0.0, 0.0]
        assert found.efficiency.tolist() == [1.0, 0.75, 0.5]


class Failing:
    """Fails on replies that hold a word."""

    def __init__(self, word: str):
        self.word = word

    def ask(self, requests):
        answers = RuleJudge().ask(requests)
        return [None if self.word in r.reply else a for r, a in zip(requests, answers, strict=True)]


def test_a_failed_judgement_is_missing():
    windows = (ReplyWindow(3.0, 5.0, "a?", "A ring."), ReplyWindow(9.0, 11.0, "b?", "A box."))
    half = trajectory({3: "A ring sings.", 9: "A box."}, windows)
    none = trajectory({3: "It sings.", 9: "It sings too."}, windows)
    found = score([half, none, half], Failing("sings"), Settings())
    assert found.stats.quality.failed == 3
    assert found.terms.correctness[0] == found.terms.correctness[2] == 1.0
    assert np.isnan(found.terms.correctness).tolist() == [False, True, False]
    assert np.isnan(found.terms.reward).tolist() == [False, True, False]
    unweighed = score([none], Failing("sings"), Settings(correctness=0.0)).terms
    assert np.isfinite(unweighed.reward).all()


def test_a_policy_that_was_cut_or_left_the_form():
    forms = tuple(TurnForm(k % 4 != 0, None) for k in range(12))
    assert float(terms(trajectory({3: "B"}, forms=forms)).format[0]) == 0.75
    assert float(terms(trajectory({3: "B"})).format[0]) == 1.0
    assert thinkstream.score([Trajectory("none", (), ())], RuleJudge(), Settings()).terms[1] == 0


# ---------------------------------------------------------------- a second reading


class HashJudge:
    """A score that only the request decides; some fail."""

    def ask(self, requests):
        return [self.grade(r.reply, r.answer) for r in requests]

    def grade(self, reply: str, answer: str):
        value = zlib.crc32(f"{reply}|{answer}".encode()) % 6
        return None if value == 5 else float(value)


def reading(own: Trajectory, judge: HashJudge) -> dict[str, float]:
    """The trainer's functions chunk by chunk, and this project's rules for the rest."""
    windows = sorted((w for w in own.windows if w.start <= own.times[-1]), key=lambda w: w.start)
    share: dict[int, list[tuple[int, str]]] = {w: [] for w in range(len(windows))}
    spoken = [(k, text) for k, text in enumerate(own.replies) if text != SILENT]
    for k, text in spoken:
        if windows:
            gaps = [abs(own.times[k] - w.start) for w in windows]
            share[gaps.index(min(gaps))].append((k, text))
    chunk = (own.times[-1] - own.times[0]) / (len(own.times) - 1) if len(own.times) > 1 else 1.0
    slack = int(3.0 / chunk)
    timing, right, number = [], [], []
    for w, window in enumerate(windows):
        bare = window.answer in ("A", "B", "yes", "3")
        usable = [(k, x) for k, x in share[w] if not bare or x in ("A", "B", "yes", "3", "Yes")]
        number.append([0, 1, *[0.75] * 3, *[0.5] * 3, *[0.25] * 3][len(share[w])])
        if not usable:
            timing.append(0.0)
            right.append(0.0)
            continue
        k, text = usable[0]
        due = sum(time < window.start for time in own.times)
        off = max(0, abs(k - due) - slack)
        timing.append(max(0.0, 1 - off / 5))
        if bare:
            right.append(float(text.lower() == window.answer.lower()))
        elif (grade := judge.grade(text, window.answer)) is not None:
            right.append(grade / 4)
    lengths = [f.thought_tokens for f in own.forms if f.thought_tokens is not None]
    mean = sum(lengths) / len(lengths) if lengths else 0
    thinking = 1.0 if mean >= 15 else [0.0, 0.25, 0.5][int(mean / 5)]
    out = {"format": sum(f.well_formed for f in own.forms) / len(own.forms)}
    if windows:
        out["timing"] = sum(timing) / len(timing)
        out["correctness"] = sum(right) / len(right) if right else math.nan
        out["efficiency"] = thinking * sum(number) / len(number)
    else:
        out["timing"] = out["correctness"] = float(not spoken)
        out["efficiency"] = thinking * [1.0, *[0.75] * 3, *[0.5] * 3, *[0.25] * 3][len(spoken)]
    weights = {"format": 0.2, "timing": 0.2, "correctness": 0.4, "efficiency": 0.2}
    out["reward"] = sum(weights[name] * value for name, value in out.items())
    return out


def random_trajectory(rng: np.random.Generator, name: str) -> Trajectory:
    count = int(rng.integers(1, 9))
    times = tuple(float(t) for t in 2.0 + rng.choice([0.5, 1.0, 2.0]) * np.arange(count))
    words = [SILENT, SILENT, "A", "B", "yes", "3", "a red ring", "a blue box"]
    windows = tuple(
        ReplyWindow(float(start), float(start) + 2.0, "q?", str(rng.choice(words[2:])))
        for start in rng.choice(np.arange(1.0, 14.0, 0.75), rng.integers(0, 4), replace=False)
    )
    forms = tuple(
        TurnForm(bool(rng.random() < 0.7), [None, 3, 8, 12, 20][rng.integers(5)]) for _ in times
    )
    return Trajectory(
        name, times, tuple(str(x) for x in rng.choice(words, count)), windows, forms=forms
    )


def test_random_trajectories_against_a_second_reading():
    rng = np.random.default_rng(3)
    trajs = [random_trajectory(rng, f"t{i}") for i in range(400)]
    found = score(trajs, HashJudge(), Settings()).terms
    for n, own in enumerate(trajs):
        for name, value in reading(own, HashJudge()).items():
            assert getattr(found, name)[n] == pytest.approx(value, abs=1e-6, nan_ok=True), (
                own,
                name,
            )
    assert np.isnan(found.reward).any()
    assert len(set(found.timing.tolist())) > 5


def test_nothing_depends_on_what_shares_the_batch():
    rng = np.random.default_rng(4)
    trajs = [random_trajectory(rng, f"t{i}") for i in range(20)]
    whole = score(trajs, HashJudge(), Settings(), num_turns=10, num_windows=5)
    assert whole.turns.mask.shape == (20, 10)
    assert whole.windows.mask.shape == (20, 5)
    for n, own in enumerate(trajs):
        for name, value in terms(own, judge=HashJudge())._asdict().items():
            np.testing.assert_array_equal(value[0], getattr(whole.terms, name)[n])
    replied = [[text != SILENT for text in own.replies] for own in trajs]
    assert whole.turns.replied.sum(1).tolist() == list(map(sum, replied))


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", 0.3), ("timing", 0.3), ("correctness", 0.3), ("efficiency", 0.3), ("slack", 0.0),
     ("window", 2), ("think_tokens", 12), ("think_step", 3), ("max_replies", 3),
     ("reply_step", 2)],
)  # fmt: skip
def test_every_setting_matters(field, value):
    rng = np.random.default_rng(7)
    trajs = [random_trajectory(rng, f"t{i}") for i in range(60)]
    usual = terms(*trajs, judge=HashJudge()).reward
    changed = terms(*trajs, judge=HashJudge(), settings=Settings(**{field: value})).reward
    assert not np.array_equal(usual, changed, equal_nan=True)
