"""A stretch of video as turns: frames end their intervals, texts go where they are heard."""

from __future__ import annotations

import pytest

from turnwise_jax.data.clip import Question, stream_turns
from turnwise_jax.errors import InputError

PLAN = {"frame_interval": 2.0, "frames_per_turn": 2, "start": 1.0, "end": 12.5}


def times_of(**changes):
    return [
        (turn.time, [frame.time for frame in turn.frames])
        for turn in stream_turns("v.mp4", [], **{**PLAN, **changes})
    ]


def test_whole_turns_only_unless_the_rest_is_asked_for():
    whole = [(5.0, [3.0, 5.0]), (9.0, [7.0, 9.0])]
    assert times_of() == whole
    assert times_of(rest=True) == [*whole, (11.0, [11.0])]
    assert times_of(rest=True, end=12.999) == [*whole, (11.0, [11.0])]
    assert times_of(end=13.0) == [*whole, (13.0, [11.0, 13.0])]
    assert times_of(end=3.0, rest=True) == [(3.0, [3.0])]


def test_texts_belong_to_the_first_turn_that_ends_after_them():
    said = [Question("b", 5.0), Question("c", 10.9), Question("a", 1.0), Question("a2", 4.99)]
    turns = stream_turns("v.mp4", said, **PLAN, rest=True)
    assert [turn.text for turn in turns] == ["a\na2", "b", "c"]


@pytest.mark.parametrize("time", [0.5, 11.0, 12.0])
def test_what_no_turn_hears_is_refused(time):
    with pytest.raises(InputError, match=f"said at {time:g} s, outside of 1 s to 11 s"):
        stream_turns("v.mp4", [Question("?", time)], **PLAN, rest=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end": 4.9}, "holds no turn of 4 s"),
        ({"end": 2.9, "rest": True}, "holds no frame of 2 s"),
        ({"start": -1.0}, "holds no turn"),
        ({"frame_interval": 0.0}, "above 0"),
        ({"frames_per_turn": 0}, "above 0"),
    ],
)
def test_impossible_ranges_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        times_of(**changes)


def test_sounds_follow_one_another():
    turns = stream_turns("v.mp4", [], **PLAN, sound=True, rest=True)
    assert [(turn.audio.start, turn.audio.end) for turn in turns] == [
        (1.0, 5.0), (5.0, 9.0), (9.0, 11.0),
    ]  # fmt: skip
