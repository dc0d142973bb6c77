"""Records: silence, open turns, and what a dialogue may not be."""

from __future__ import annotations

import dataclasses

import pytest

from turnwise_jax.data.records import Dialogue, Frame, Turn, is_silent, media_groups
from turnwise_jax.errors import InputError


def turn(reply=None, frames=(), video=False) -> Turn:
    return Turn(tuple(frames), "", 1.0, reply, video)


@pytest.mark.parametrize("text", ["NO REPLY", "  NO REPLY\n", "\tNO REPLY "])
def test_silence_is_the_exact_words_between_blanks(text):
    assert is_silent(text)


@pytest.mark.parametrize("text", ["", "NO REPLY.", "no reply", "NO  REPLY", "NO", "NO REPLY NO"])
def test_anything_else_is_a_reply(text):
    assert not is_silent(text)


def test_open_turns_follow_the_given_ones():
    dialogue = Dialogue("a", (turn("x"), turn("NO REPLY"), turn(), turn()))
    assert dialogue.first_open == 2
    assert dialogue.open_turns == dialogue.turns[2:]
    assert Dialogue("a", (turn("x"),)).first_open == 1
    assert Dialogue("a", (turn("x"),)).open_turns == ()


def test_an_empty_reply_is_given_not_open():
    assert Dialogue("a", (turn(""), turn())).first_open == 1


def test_reopening_gives_every_turn_to_the_policy():
    dialogue = Dialogue("a", (turn("x"), turn()), system="s", history=("x",))
    again = dialogue.reopened()
    assert again.first_open == 0
    assert [t.reply for t in again.turns] == [None, None]
    assert (again.system, again.history) == ("s", ())


def test_a_reply_after_an_open_turn_is_refused():
    with pytest.raises(InputError, match=r"f.parquet: record 'a': field 'turns\[1\].reply'"):
        Dialogue("a", (turn(), turn("x")), file="f.parquet")


def test_the_file_does_not_matter_for_equality():
    one = Dialogue("a", (turn(),), file="x")
    assert one == dataclasses.replace(one, file="y")


def test_media_groups_are_images_one_by_one_and_videos_whole():
    a, b, c = Frame("a"), Frame("b"), Frame("c", 1.0)
    turns = (turn(frames=(a, b)), turn(), turn(frames=(c, c), video=True), turn(video=True))
    assert media_groups(Dialogue("d", turns)) == [
        (0, (a,), False),
        (0, (b,), False),
        (2, (c, c), True),
    ]
