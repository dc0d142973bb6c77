"""StreamPro's reward: worked by hand, and against a second reading of its algorithm 1."""

from __future__ import annotations

import itertools
import math
import zlib

import numpy as np
import pytest

from turnwise_jax.rewards.judges import RuleJudge
from turnwise_jax.rewards.plan import ReplyWindow, Trajectory, TurnForm
from turnwise_jax.rewards.streampro import Settings, matched, questions, score

SILENT = "NO REPLY"
TIMES = tuple(float(t) for t in range(1, 21))
RING = ReplyWindow(4.0, 6.0, "what?", "A red ring appears.")
BOX = ReplyWindow(12.0, 14.0, "what?", "A blue box leaves.")


def trajectory(replies: dict[float, str], windows=(RING, BOX), forms=()) -> Trajectory:
    said = tuple(replies.get(time, SILENT) for time in TIMES)
    return Trajectory("t", TIMES, said, windows, forms=forms)


def terms(*trajs, judge=None, settings=Settings()):  # noqa: B008 - an immutable tuple
    return score(trajs, judge or RuleJudge(), settings).terms


def test_a_perfect_trajectory_earns_everything():
    found = terms(trajectory({5.0: RING.answer, 13.0: BOX.answer}))
    assert [float(x[0]) for x in found] == pytest.approx([0.1 + 0.45 * 2 + 0.45, 1.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("replies", "turn_f1"),
    [
        ({}, 0.0),
        ({5.0: RING.answer}, 2 * 2 / 3),  # one of two truths
        ({8.0: RING.answer}, 2 * (1 - 2 / 8 + 1) / 3),  # two seconds late
        ({2.0: RING.answer}, 2 * (1 - 2 / 8 + 1) / 3),  # two seconds early
        ({5.0: "Nothing."}, 2 * 1 / 3),  # in time and wrong: time alone
        # The better of two in reach is matched; the first one counts as said.
        ({5.0: "Nothing.", 6.0: RING.answer}, 2 * 2 / 4),
    ],
)
def test_turn_level_f1(replies, turn_f1):
    only = (RING, ReplyWindow(19.5, 20.0, "what?", "A dog."))  # out of reach of all of these
    assert float(terms(trajectory(replies, only)).turn_f1[0]) == pytest.approx(turn_f1)


def test_a_reply_is_matched_once_and_the_truths_come_in_order():
    """The reply at 9 s is in reach of both; the first truth takes it, though the second would give
    more; eq. 6 with algorithm 1's order."""
    own = trajectory({9.0: BOX.answer})
    found = terms(own)
    asked = questions(own, 8.0)
    asked.accuracy.values[:] = [[0.0, 4.0]]
    assert matched(own, asked, 8.0).score == pytest.approx(1 - 3 / 8)
    assert float(found.turn_f1[0]) == pytest.approx(2 * (1 - 3 / 8) / 3)


def test_a_best_score_of_nothing_matches_nothing():
    own = trajectory({14.0: "Nothing."}, (RING,))  # eight seconds late: no time score
    asked = questions(own, 8.0)
    asked.accuracy.values[:] = 0.0
    assert matched(own, asked, 8.0).times == []


@pytest.mark.parametrize(
    ("replies", "passed"),
    [
        # covered ring, covered box, grounded, sequence, granularity
        ({5.0: RING.answer, 13.0: BOX.answer}, (1, 1, 1, 1, 1)),
        ({}, (0, 0, 1, 0, 0)),
        ({5.0: RING.answer}, (1, 0, 1, 1, 1)),
        ({5.0: RING.answer, 13.0: "A green dog sings."}, (1, 0, 0, 1, 1)),
        ({t: RING.answer for t in (3.0, 4.0, 5.0, 6.0, 7.0)}, (1, 0, 1, 1, 0)),
    ],
)
def test_the_rubric_of_a_record(replies, passed):
    assert float(terms(trajectory(replies)).rubric[0]) == pytest.approx(sum(passed) / 5)


def test_the_order_of_matched_replies_is_a_checkpoint():
    """Windows four seconds apart, answered the wrong way round, each within reach."""
    close = (RING, ReplyWindow(8.0, 9.0, "what?", "A blue box leaves."))
    there = trajectory({5.0: close[0].answer, 8.0: close[1].answer}, close)
    back = trajectory({5.0: close[1].answer, 8.0: close[0].answer}, close)
    assert terms(there, back).rubric.tolist() == pytest.approx([1.0, 0.8])


def test_where_nothing_is_due_silence_is_best():
    late = ReplyWindow(30.0, 40.0, "what?", "A dog.")
    found = terms(*(trajectory(r, w) for w in ((), (late,)) for r in ({}, {5.0: "A cat."})))
    assert found.turn_f1.tolist() == [2.0, 0.0, 2.0, 0.0]
    assert found.rubric.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_format_is_the_share_of_well_formed_turns():
    forms = tuple(TurnForm(k != 0) for k in range(20))
    assert float(terms(trajectory({}, forms=forms)).format[0]) == pytest.approx(0.95)


class Failing:
    """Fails on replies that hold a word, or on requests of one kind."""

    def __init__(self, word: str = "", kind: str = ""):
        self.word, self.kind = word, kind

    def ask(self, requests):
        fails = [r.kind == self.kind or (self.word and self.word in r.reply) for r in requests]
        answers = RuleJudge().ask(requests)
        return [None if failed else a for failed, a in zip(fails, answers, strict=True)]


def test_failed_judgements_are_missing():
    whole = terms(trajectory({5.0: RING.answer, 13.0: BOX.answer}))
    spoilt = trajectory({5.0: RING.answer, 6.0: "It sings.", 13.0: BOX.answer})
    found = score([spoilt], Failing("sings"), Settings())
    assert found.stats.quality.failed == 1 + 1  # two windows are in reach of 6 s
    # Not matched, and not counted as said; whether it is grounded is not known.
    assert float(found.terms.turn_f1[0]) == float(whole.turn_f1[0])
    assert float(found.terms.rubric[0]) == 1.0
    unknown = terms(trajectory({5.0: RING.answer}), judge=Failing(kind="repetition"))
    assert float(unknown.rubric[0]) == 1.0  # sequence and granularity are left
    assert np.isfinite(unknown.reward).all()


def test_a_truth_that_a_failed_judgement_left_alone_is_not_one_that_was_missed():
    """A judge that answers nothing must not teach that a right reply earns what silence does."""
    both = trajectory({5.0: RING.answer, 13.0: BOX.answer})
    half = terms(both, judge=Failing(BOX.answer))
    only = terms(trajectory({5.0: RING.answer}, windows=(RING,)))
    assert float(half.turn_f1[0]) == float(only.turn_f1[0]) == 2.0
    nothing = terms(both, judge=Failing(kind="quality"))
    assert np.isnan(nothing.turn_f1).all()
    assert np.isnan(nothing.reward).all()
    assert float(nothing.rubric[0]) == 1.0  # the order of nothing is not known
    silent = terms(trajectory({}), judge=Failing(kind="quality"))
    assert float(silent.turn_f1[0]) == 0.0  # nobody was asked


# ---------------------------------------------------------------- a second reading


class HashJudge:
    """An answer that only the request decides; some fail."""

    def ask(self, requests):
        return [self.answer(*r[:5]) for r in requests]

    def answer(self, *request: str):
        value = zlib.crc32("|".join(request).encode())
        if value % 7 == 6:
            return None
        return float(value % 5 if request[0] == "quality" else value % 2)


def reading(own: Trajectory, judge: HashJudge) -> dict[str, float]:
    """Algorithm 1 with sets of (time, text), and eq. 5 to 7, from the paper's text."""
    truths = sorted((w for w in own.windows if w.start <= own.times[-1]), key=lambda w: w[:2])
    predictions = [(t, x) for t, x in zip(own.times, own.replies, strict=True) if x != SILENT]
    left, total, order, unknown, alone = list(predictions), 0.0, [], {}, set(range(len(truths)))
    for place, truth in enumerate(truths):
        scores = []
        for t, text in predictions:
            away = (
                0.0
                if truth.start <= t <= truth.end
                else min(abs(t - truth.start), abs(t - truth.end))
            )
            if away > 8:
                continue
            grade = judge.answer("quality", truth.question, truth.answer, "", text)
            if grade is None:
                unknown.setdefault((t, text), set()).add(place)
            elif (t, text) in left:
                scores.append((max(0.0, 1 - away / 8) + grade / 4, (t, text)))
        best = max((s for s, _ in scores), default=0.0)
        if best > 0:
            chosen = next(p for s, p in scores if s == best)
            left.remove(chosen)
            alone.discard(place)
            total += best
            order.append(chosen[0])
    mute = [places for said, places in unknown.items() if said in left]
    lost = {place for places in mute for place in places if place in alone}
    both = len(predictions) - len(mute) + len(truths) - len(lost)
    texts = [x for _, x in predictions]
    checks = []
    for truth in truths:
        asked = judge.answer("repetition", "", "", " ".join(texts), truth.answer)
        checks.append(asked if texts else 0.0)
    answers = " ".join(w.answer for w in own.windows)
    ground = [judge.answer("repetition", "", "", answers, x) if own.windows else 0.0 for x in texts]
    checks.append(0.0 if 0.0 in ground else None if None in ground else 1.0)
    ascending = all(a <= b for a, b in itertools.pairwise(order))
    sequence = float(ascending and (len(order) > 0 or len(truths) + len(texts) == 0))
    checks.append(None if mute and not order else sequence)
    checks.append(float(len(truths) <= 2 * len(texts) and len(texts) <= 2 * len(truths)))
    known = [check for check in checks if check is not None]
    out = {
        "format": sum(f.well_formed for f in own.forms) / len(own.forms),
        "turn_f1": 2.0 * total / both if both else math.nan if mute else 2.0,
        "rubric": sum(known) / len(known) if known else math.nan,
    }
    out["reward"] = 0.1 * out["format"] + 0.45 * out["turn_f1"] + 0.45 * out["rubric"]
    return out


def random_trajectory(rng: np.random.Generator, name: str) -> Trajectory:
    count = int(rng.integers(1, 9))
    times = tuple(float(t) for t in 2.0 + rng.choice([1.0, 2.0, 4.0]) * np.arange(count))
    words = [SILENT, SILENT, *(f"text {i}" for i in range(8))]
    windows = tuple(
        ReplyWindow(float(s), float(s) + float(rng.choice([0.0, 1.0, 5.0])), "q?", f"answer {s}")
        for s in rng.choice(np.arange(1.0, 30.0, 0.75), rng.integers(0, 4), replace=False)
    )
    forms = tuple(TurnForm(bool(rng.random() < 0.7)) for _ in times)
    return Trajectory(
        name, times, tuple(str(x) for x in rng.choice(words, count)), windows, forms=forms
    )


def test_random_trajectories_against_a_second_reading():
    rng = np.random.default_rng(5)
    trajs = [random_trajectory(rng, f"t{i}") for i in range(400)]
    found = score(trajs, HashJudge(), Settings()).terms
    for n, own in enumerate(trajs):
        for name, value in reading(own, HashJudge()).items():
            assert getattr(found, name)[n] == pytest.approx(value, abs=1e-6, nan_ok=True), (
                own,
                name,
            )
    assert len(set(found.turn_f1.round(5).tolist())) > 40
    assert len(set(found.rubric.round(5).tolist())) > 5


def test_nothing_depends_on_what_shares_the_batch():
    rng = np.random.default_rng(6)
    trajs = [random_trajectory(rng, f"t{i}") for i in range(20)]
    whole = score(trajs, HashJudge(), Settings(), num_turns=10, num_windows=5)
    for n, own in enumerate(trajs):
        for name, value in terms(own, judge=HashJudge())._asdict().items():
            np.testing.assert_array_equal(value[0], getattr(whole.terms, name)[n])


@pytest.mark.parametrize(
    ("field", "value"), [("format", 0.3), ("turn_f1", 0.3), ("rubric", 0.3), ("tolerance", 3.0)]
)
def test_every_setting_matters(field, value):
    rng = np.random.default_rng(8)
    trajs = [random_trajectory(rng, f"t{i}") for i in range(40)]
    usual = terms(*trajs, judge=HashJudge()).reward
    changed = terms(*trajs, judge=HashJudge(), settings=Settings(**{field: value})).reward
    assert not np.array_equal(usual, changed, equal_nan=True)
