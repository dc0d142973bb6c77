"""Which decisions of a made dialogue answer, and where dialogues are cut."""

from __future__ import annotations

import numpy as np
import pytest
from made_files import entry, said, spans

from turnwise_jax.data.checking.dialogues import dialogue_problems
from turnwise_jax.data.clip import Question
from turnwise_jax.data.making.cutting import CutSpec, plan_replies, rl_dialogues, sft_dialogues
from turnwise_jax.data.making.entries import clock_seconds


def test_replies_may_come_at_the_first_decision_instead():
    own = entry(spans((2, 13), (20, 20), (21, 23)), 30)
    end = plan_replies(own, CutSpec())
    start = plan_replies(own, CutSpec(reply_at="start"))
    assert end.replies == (None, None, "answer 0", None, "answer 1", None, None)
    assert start.replies == ("answer 0", None, None, None, "answer 1", None, None)
    assert end.missed == start.missed == 1


def test_two_answers_at_one_decision_are_given_together():
    plan = plan_replies(entry(spans((1, 5), (2, 6)), 12), CutSpec())
    assert plan.replies == ("answer 0 answer 1", None, None)


def test_decisions_count_at_both_ends_whatever_the_rounding():
    spec = CutSpec(interval=0.1, turn_frames=3, segment=0.3)
    plan = plan_replies(entry(spans((0.3, 0.3), (0.6, 0.9), (0.91, 1.1)), 1.2), spec)
    assert plan.replies == ("answer 0", None, "answer 1", None)
    assert plan.missed == 1


def test_history_and_frames_are_bounded():
    own = entry(
        spans((3, 5), (50, 53), (80, 85)), 100, (Question("Q?"), Question("And now?", 30.0))
    )
    for spec, first in (
        (CutSpec(), 4.0),
        (CutSpec(max_frames=20), 64.0),
        (CutSpec(history_turns=2), 76.0),
        (CutSpec(history_turns=0), 84.0),
    ):
        last = rl_dialogues(own, plan_replies(own, spec), spec, video="v.mp4")[-1]
        assert last.id == "e@80-100"
        assert last.turns[0].time == first
        assert last.turns[0].text == ("Q?" if first < 30 else "And now?")
        assert [turn.time for turn in last.open_turns] == [84.0, 88.0, 92.0, 96.0, 100.0]
        assert last.history == ("answer 0", "answer 1")
        assert sum(len(turn.frames) for turn in last.turns) <= spec.max_frames
    spec = CutSpec(max_frames=20)
    stretches = sft_dialogues(own, plan_replies(own, spec), spec, video="v.mp4")
    assert [d.id for d in stretches] == ["e@0-40", "e@40-80", "e@80-100"]
    assert [d.turns[0].text for d in stretches] == ["Q?", "And now?", "And now?"]
    assert [said(d) for d in stretches] == [
        {4.0: "answer 0"},
        {52.0: "answer 1"},
        {84.0: "answer 2"},
    ]
    assert [d.history for d in stretches] == [(), ("answer 0",), ("answer 0", "answer 1")]


def test_stretches_that_ask_for_nothing_are_kept_only_if_asked():
    own = entry(spans((3, 5)), 60)
    for keep, count in ((False, 1), (True, 3)):
        spec = CutSpec(keep_silent=keep)
        plan = plan_replies(own, spec)
        assert len(rl_dialogues(own, plan, spec, video="v.mp4")) == count
        assert len(sft_dialogues(own, plan, spec, video="v.mp4")) == 1
    silent = entry([], 60)
    plan = plan_replies(silent, CutSpec())
    assert sft_dialogues(silent, plan, CutSpec(), video="v.mp4") == []
    assert len(sft_dialogues(silent, plan, CutSpec(keep_silent=True), video="v.mp4")) == 1


@pytest.mark.parametrize("seed", range(20))
def test_every_answer_is_taught_once_and_asked_for_until_it_was_given(seed):
    """Whatever the windows and the settings, against what the records themselves say."""
    rng = np.random.default_rng(seed)
    spec = CutSpec(
        interval=float(rng.choice([0.5, 1.0, 2.0])),
        turn_frames=int(rng.integers(1, 4)),
        max_frames=int(rng.integers(24, 60)),
        history_turns=int(rng.integers(-1, 5)),
        reply_at=str(rng.choice(["end", "start"])),
    )
    spec = spec._replace(segment=spec.turn_seconds * int(rng.integers(1, 7)))
    starts = np.sort(rng.uniform(0, 110, 9)).round(2)
    ends = (starts + rng.exponential(9.0, 9)).round(2)
    own = entry(spans(*zip(starts.tolist(), ends.tolist(), strict=True)), 120.0)
    plan = plan_replies(own, spec)
    supervised = sft_dialogues(own, plan, spec, video="v.mp4")
    taught = " ".join(text for d in supervised for text in said(d).values())
    decisions = np.arange(1, int(120 / spec.turn_seconds) + 1) * spec.turn_seconds
    for window in own.windows:
        inside = decisions[(decisions >= window.start) & (decisions <= window.end)]
        assert taught.split().count(window.answer.split()[1]) == (1 if len(inside) else 0)
        if not len(inside):
            continue
        due = inside[-1] if spec.reply_at == "end" else inside[0]
        for dialogue in rl_dialogues(own, plan, spec, video="v.mp4"):
            times = [turn.time for turn in dialogue.open_turns]
            begin = times[0] - spec.turn_seconds
            here = [w for w in dialogue.windows if w.answer == window.answer]
            wanted = any(times[0] <= t <= times[-1] for t in inside) and due >= times[0]
            assert [(w.start, w.end) for w in here] == (
                [(max(window.start, begin), window.end)] if wanted else []
            )
    odd = {"stray_reply", "unanswered_window", "no_decision", "no_window", "future_frame"}
    for dialogue in [*supervised, *rl_dialogues(own, plan, spec, video="v.mp4")]:
        assert not odd & {problem.kind for problem in dialogue_problems(dialogue)}
        assert sum(len(turn.frames) for turn in dialogue.turns) <= spec.max_frames
        earlier = {t: r for t, r in zip(decisions, plan.replies, strict=True) if r}
        given = {t: earlier.get(t) for t in (x.time for x in dialogue.turns[: dialogue.first_open])}
        assert said(dialogue) == {t: r for t, r in given.items() if r}


def test_clock_times():
    times = {"0:18": 18.0, "1:02:30": 3750.0, "00:00:01,500": 1.5, "59:59.25": 3599.25}
    assert {text: clock_seconds(text) for text in times} == times
    assert [clock_seconds(t) for t in ("", "12", "0:60", "1:60:00", "a:10", "1:2:3:4")] == [
        None
    ] * 6
