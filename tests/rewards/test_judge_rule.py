"""The rule judge: its table by hand, and the ways in which a text may and may not vary."""

from __future__ import annotations

import pytest

from turnwise_jax.errors import InputError
from turnwise_jax.rewards.judges.protocol import Request
from turnwise_jax.rewards.judges.rule import RuleJudge, key_points, quality, repeats

APPEARS = "A red circle appears on the left."


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        (APPEARS, 4),
        ("a red circle appears on the left", 4),
        ("ON THE LEFT, a circle appears; it is RED!", 4),
        ("Red circles appear left.", 4),
        ("A big red circle appears on the left.", 3),
        ("A big shiny red circle appears on the left.", 3),
        ("A red circle appears.", 2),
        ("A red circle appears on the right.", 2),
        ("A circle.", 1),
        ("A blue square appears on the left.", 0),
        ("A blue square leaves.", 0),
        ("", 0),
        ("is the", 0),
        ("A red blue green circle square triangle appears turns leaves on the left right.", 0),
    ],
)
def test_scores_of_a_reply_with_four_key_points(reply, score):
    assert quality(reply, APPEARS) == score


def test_what_something_turns_into_is_not_what_it_was():
    truth = "The blue square turns green."
    assert quality("the blue square turns green", truth) == 4
    assert quality("Turns green: the square, blue", truth) == 4
    assert quality("the blue square turned to green", truth) < 4
    assert quality("the green square turns blue", truth) == 0
    assert quality("The square turns green.", truth) == 2
    assert quality("The square turns red.", truth) == 1


def test_wrong_words_cost_more_than_missing_ones():
    assert quality("A circle leaves.", "The red circle leaves.") == 2
    assert quality("The blue circle leaves.", "The red circle leaves.") == 1
    assert quality("The blue circle appears.", "The red circle leaves.") == 0


def test_an_empty_reference_is_answered_by_nothing():
    assert quality("A red circle.", "") == 0


@pytest.mark.parametrize(
    ("reply", "previous", "old"),
    [
        (APPEARS, APPEARS, True),
        ("left: a circle, red, appears", APPEARS, True),
        ("A red circle.", APPEARS, True),
        ("A red circle leaves.", APPEARS, False),
        ("A red circle leaves.", "A red circle appears. The blue square leaves.", False),
        ("A red circle. The square leaves!", "A red circle appears. The blue square leaves.", True),
        ("A red circle. The ring leaves!", "A red circle appears. The blue square leaves.", False),
        (APPEARS, "", False),
        ("", "", True),
        ("It is.", APPEARS, True),
    ],
)
def test_repetition_is_all_key_points_of_each_statement_in_one_earlier_one(reply, previous, old):
    assert repeats(reply, previous) is old


def test_key_points_are_content_words():
    assert key_points("The Circles, there, leave: NOW") == {"circle", "leave"}
    assert key_points("No glass is here") == {"no", "glass", "here"}


def test_both_scales_agree_on_what_is_good():
    replies = [APPEARS, "A big " + APPEARS[2:], "A red circle.", "A circle.", "A blue square."]
    requests = [Request("quality", "?", APPEARS, reply=reply) for reply in replies]
    assert RuleJudge().ask(requests) == [4.0, 3.0, 2.0, 1.0, 0.0]
    assert RuleJudge(levels=3).ask(requests) == [2.0, 2.0, 1.0, 0.0, 0.0]
    with pytest.raises(InputError):
        RuleJudge(levels=4)


def test_requests_of_both_kinds_are_answered_in_order_and_reported():
    heard = []
    requests = [
        Request("repetition", previous=APPEARS, reply="a red circle"),
        Request("quality", "?", APPEARS, reply=APPEARS),
        Request("repetition", reply=APPEARS),
    ]
    answers = RuleJudge().ask(requests, lambda index, answer: heard.append((index, answer)))
    assert answers == [1.0, 4.0, 0.0]
    assert heard == list(enumerate(answers))
