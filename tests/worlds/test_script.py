"""Events, windows, answers and the teacher: what must hold for any world, without any video."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from turnwise_jax.data.records import SILENCE
from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.rule import WORLD_WORDS, key_points, repeats
from turnwise_jax.worlds.script import REPORTED, corpus, sample_events
from turnwise_jax.worlds.settings import COLOURS, QUESTIONS, SHAPES, WORLDS, World
from turnwise_jax.worlds.streamworld import clips, rl_record

OTHERS = {
    "slow": World(frames_per_turn=1, frame_interval=2.0, window=(4.0, 8.0), fps=4),
    "two questions": World(two_questions=1.0, wordings=2, colours=8, shapes=5),
    "no history": World(history_turns=0, two_questions=0.5),
}


def dialogues_of(world: World, count: int = 60, split: str = "train", seed: int = 0):
    return [d for clip in clips(world, split, count, seed) for d in clip.dialogues]


def test_the_rule_judge_knows_the_words_of_all_answers():
    said = [s for s in corpus() if s.startswith(("A ", "The "))]
    assert len(said) == 4 * len(COLOURS) * len(SHAPES)
    points = {point.removeprefix(">") for s in said for point in key_points(s)}
    assert points == WORLD_WORDS


@pytest.fixture(params=[*WORLDS, *OTHERS])
def world(request) -> World:
    return {**WORLDS, **OTHERS}[request.param]


def test_windows_are_ordered_disjoint_inside_the_video_and_hold_a_decision(world):
    for dialogue in dialogues_of(world):
        times = [turn.time for turn in dialogue.turns]
        assert times == list(world.decision_times)
        assert dialogue.windows
        for window in dialogue.windows:
            assert 0 <= window.start <= window.event_end <= window.end <= world.seconds
            assert any(window.start <= time <= window.end for time in times)
        for before, after in pairwise(dialogue.windows):
            assert before.end < after.start


def test_rl_records_give_the_history_and_leave_the_target_open(world):
    for dialogue in dialogues_of(world):
        record = rl_record(world, dialogue)
        assert record.first_open == world.history_turns
        assert len(record.open_turns) == world.target_turns
        assert record.turns[: world.history_turns] == dialogue.turns[: world.history_turns]
        said = [t.reply for t in record.turns[: world.history_turns] if t.reply != SILENCE]
        assert list(record.history) == said
        assert record.windows
        decisions = [turn.time for turn in record.open_turns]
        for window in record.windows:
            assert any(window.start <= time <= window.end for time in decisions)


def test_no_event_coincides_with_a_frame(world):
    rng = np.random.default_rng(0)
    for _ in range(50):
        for event in sample_events(world, rng):
            phase = event.time % world.frame_interval / world.frame_interval
            assert 0.2 < phase < 0.8


def test_events_follow_from_the_state_of_the_picture(world):
    rng = np.random.default_rng(1)
    for _ in range(50):
        state = None
        for event in sample_events(world, rng):
            assert event.before == state
            state = event.after
            kind = {
                (True, False): "appear",
                (False, True): "leave",
            }.get((event.before is None, event.after is None))
            if kind is None:
                same_shape = event.before[1] == event.after[1]
                assert event.before[0] != event.after[0]
                kind = "colour" if same_shape else "swap"
            assert event.kind == kind


def test_only_what_was_asked_is_reported(world):
    verbs = {"appear": {"appears"}, "colour": {"turns"}, "leave": {"leaves"}}
    verbs["all"] = set.union(*verbs.values())
    kinds = {text: kind for kind, texts in QUESTIONS.items() for text in texts}
    for dialogue in dialogues_of(world):
        for window in dialogue.windows:
            allowed = verbs[kinds[window.question]] | {"here"}
            assert allowed & set(window.answer.rstrip(".").split()), window


def test_every_reported_kind_of_event_opens_a_window():
    world = World(two_questions=0.0)
    for clip in clips(world, "train", 40, 0):
        for dialogue in clip.dialogues:
            kind = dialogue.id.rsplit("-", 1)[1]
            wanted = [event.time for event in clip.events if event.kind in REPORTED[kind]]
            assert [window.start for window in dialogue.windows] == wanted


def test_a_second_question_ends_the_first_and_gets_a_summary():
    world = World(two_questions=1.0)
    summaries = 0
    for dialogue in dialogues_of(world):
        asked = [turn for turn in dialogue.turns if turn.text]
        if len(asked) == 1:
            continue
        first, second = asked
        for window in dialogue.windows:
            assert window.question == (first.text if window.start < second.time else second.text)
            if window.question == first.text:
                assert window.end < second.time
        opening = [window for window in dialogue.windows if window.start == second.time]
        if second.text in QUESTIONS["leave"]:
            assert not opening
        for window in opening:
            assert window.answer.endswith("is here.")
            assert second.reply == window.answer
            summaries += 1
    assert summaries > 10


def test_follow_up_events_ask_for_new_replies_that_do_not_repeat_earlier_ones():
    """By the rule judge, saying every right answer once is never a repetition."""
    several = 0
    dialogues = dialogues_of(World(), 150)
    for dialogue in dialogues:
        right = [window.answer for window in dialogue.windows]
        several += len(rl_record(World(), dialogue).windows) >= 2
        for k, answer in enumerate(right):
            assert not repeats(answer, " ".join(right[:k])), (dialogue.id, right)
    assert several / len(dialogues) > 0.5


def test_the_teacher_answers_at_the_end_of_the_window_and_is_else_silent():
    for dialogue in dialogues_of(World()):
        due = {}
        for window in dialogue.windows:
            inside = [t.time for t in dialogue.turns if window.start <= t.time <= window.end]
            at_once = window.answer.endswith("is here.")
            due[inside[0] if at_once else inside[-1]] = window.answer
        assert {t.time: t.reply for t in dialogue.turns if t.reply != SILENCE} == due


def test_the_teacher_misses_repeats_and_is_early_as_often_as_the_world_says():
    world = World(miss=0.3, repeat=0.5, late=0.0, two_questions=0.0)
    answered = repeated = windows = early = 0
    for dialogue in dialogues_of(world, 300):
        replies = [turn.reply for turn in dialogue.turns]
        for window in dialogue.windows:
            windows += 1
            spoken = [k for k, reply in enumerate(replies) if reply == window.answer]
            answered += bool(spoken)
            repeated += len(spoken) == 2
            inside = [t.time for t in dialogue.turns if window.start <= t.time <= window.end]
            early += bool(spoken) and dialogue.turns[spoken[0]].time < inside[-1]
    assert answered / windows == pytest.approx(0.7, abs=0.04)
    assert repeated / answered == pytest.approx(0.5, abs=0.08)
    assert early / answered > 0.3


def test_answers_can_be_guessed_neither_from_the_text_nor_from_the_clock():
    """Colours and shapes are balanced, no sentence is common, no decision time is favoured."""
    world = World(two_questions=0.0)
    sentences, openings, colours, shapes = Counter(), Counter(), Counter(), Counter()
    for dialogue in dialogues_of(world, 600):
        kind = dialogue.id.rsplit("-", 1)[1]
        for window in rl_record(world, dialogue).windows:
            sentences[kind, window.answer] += 1
            openings[next(t for t in world.decision_times if t >= window.start)] += 1
            words = set(window.answer.rstrip(".").split())
            colours.update(words & set(COLOURS))
            shapes.update(words & set(SHAPES))
    per_kind = Counter()
    for (kind, _), count in sentences.items():
        per_kind[kind] += count
    assert max(n / per_kind[kind] for (kind, _), n in sentences.items()) < 0.12
    for counter, expected in ((colours, world.colours), (shapes, world.shapes)):
        total = sum(counter.values())
        assert len(counter) == expected
        assert all(abs(n / total - 1 / expected) < 0.25 / expected for n in counter.values())
    assert max(openings.values()) / sum(openings.values()) < 0.25


def test_splits_and_seeds_share_no_video():
    world = World()
    scripts = [
        clip.events
        for split, seed in (("train", 0), ("test", 0), ("train", 1))
        for clip in clips(world, split, 60, seed)
    ]
    assert len(set(scripts)) == len(scripts)


def test_a_clip_does_not_depend_on_how_many_are_made():
    few, many = list(clips(World(), "test", 3, 0)), list(clips(World(), "test", 9, 0))
    assert [(c.name, c.events, c.dialogues) for c in many[:3]] == [
        (c.name, c.events, c.dialogues) for c in few
    ]


def test_corpus_holds_every_text_of_the_dialogues(world):
    known = set(corpus(world)) | {""}
    for dialogue in dialogues_of(world):
        for turn in dialogue.turns:
            assert {turn.text, turn.reply} <= known
        assert {window.answer for window in dialogue.windows} <= known
        assert dialogue.system in known


def test_sentences_differ_in_what_the_judge_reads():
    points = [key_points(text) for text in corpus() if text.endswith(".")]
    assert len(set(points)) == len(points)


def test_more_calm_means_fewer_events():
    def events(world):
        return sum(len(clip.events) for clip in clips(world, "train", 40, 0))

    assert events(World(calm=(4.0, 8.0))) < 0.75 * events(World())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("colours", 1),
        ("colours", 9),
        ("shapes", 6),
        ("colours", 4.0),
        ("wordings", 3),
        ("questions", ("appear", "why")),
        ("questions", ()),
        ("dialogues_per_video", 5),
        ("history_turns", -1),
        ("target_turns", 0),
        ("frame_interval", 0.1),
        ("window", (1.0, 4.0)),
        ("window", (6.0, 4.0)),
        ("window", "long"),
        ("calm", (0.0, 1.0, 2.0)),
        ("calm", ("a", "b")),
        ("miss", 1.5),
        ("leave", 0.9),
        ("size", 113),
        ("fps", 1),
        ("object_size", (0.1, 0.5)),
        ("noise", -1.0),
        ("noise", True),
    ],
)
def test_impossible_settings_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"field '{field}'"):
        World.from_dict({field: value})


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(InputError, match="field 'colors': unknown"):
        World.from_dict({"colors": 4})


def test_settings_survive_json():
    assert World.from_dict({"window": [5, 8], "speed": 0}) == World(window=(5, 8), speed=0)
