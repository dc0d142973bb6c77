"""Rows of single answers against those of whole rollouts; and what else is in a batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rollout_checks import shapes_for
from tiny import make_example

from turnwise_jax.data.hints import hinted
from turnwise_jax.data.records import Question
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.answer_rows import Answer, answer_rows, answer_size
from turnwise_jax.rollout.rows import row_size, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.rollout.stream import StreamEngine

ASKED = Question(
    text="What is red?", answer="the square", kind="exact", options=(), category="", sound="",
    hint="Look at the left.",
)  # fmt: skip
FIELDS = (
    "tokens", "positions", "valid", "action_pos", "action_target", "action_mask", "turn_id",
    "sampler_logp",
)  # fmt: skip


def example_of(name: str, seed: int, **options):
    """One open turn about a few frames."""
    example = make_example(name, 1, given=0, seed=seed, **options)
    return dataclasses.replace(
        example, dialogue=dataclasses.replace(example.dialogue, question=ASKED)
    )


@pytest.fixture(scope="module")
def questions():
    return [
        example_of("image", 1),
        example_of("clip", 2, per_turn=4, videos=(0,)),
        example_of("text", 3, per_turn=0),
    ]


@pytest.fixture(scope="module")
def said(policy, questions):
    (bucket,) = shapes_for(policy, questions)
    engine = StreamEngine(policy, Sampling(temperature=1.2, top_k=10), bucket)
    rollouts = engine.rollout(policy.params, questions, group_size=4, seed=5)
    assert 0 < rollouts.truncated.sum() < rollouts.truncated.size
    return rollouts


@pytest.fixture(scope="module")
def rooms(said) -> RowShapes:
    length, actions = row_size(said)
    shapes = said.prompts.shapes
    return RowShapes(14, length + 40, actions, 1, shapes.slices, shapes.slots)


@pytest.fixture(scope="module")
def answers(said, questions) -> list[Answer]:
    """N = B x G in (b, g) order."""
    return [
        Answer(
            questions[b].dialogue,
            said.tokens[b, g, 0, : said.length[b, g, 0]],
            said.logp[b, g, 0, : said.length[b, g, 0]],
            bool(said.truncated[b, g, 0]),
        )
        for b in range(3)
        for g in range(4)
    ]


@pytest.fixture(scope="module")
def media(questions):
    return {example.dialogue.id: example for example in questions}


def assert_row(ours, n: int, theirs, m: int) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(ours, name)[n], getattr(theirs, name)[m], name)


def shown(rows, n: int, given, shapes: RowShapes) -> list[np.ndarray]:
    """The frames that row n looks at, one for each placeholder, in order."""
    index = rows.media_index[n][rows.media_index[n] >= 0]
    return [np.asarray(given.vision.patches)[i // shapes.slots.tokens] for i in index]


def test_fresh_answers_have_the_rows_of_their_rollouts(policy, said, answers, media, rooms):
    expected = train_rows(said, length=rooms.length, actions=rooms.actions)
    given, rows = answer_rows(dict(enumerate(answers)), media, policy, rooms)
    for n in range(12):
        assert_row(rows, n, expected, n)
    np.testing.assert_array_equal(rows.media_index[:12], expected.media_index)
    np.testing.assert_array_equal(given.vision.patches, said.prompts.media.vision.patches)
    for n in (12, 13):
        assert not rows.valid[n].any()
        assert not rows.action_mask[n].any()
        assert (rows.media_index[n] == -1).all()


def test_a_row_does_not_depend_on_what_else_is_in_the_batch(policy, answers, media, rooms):
    """In another order, among others, alone: the same row, and the same frames in it."""
    given, rows = answer_rows(dict(enumerate(answers)), media, policy, rooms)
    chosen = {0: 9, 3: 6, 4: 2, 13: 5}
    other, moved = answer_rows({n: answers[m] for n, m in chosen.items()}, media, policy, rooms)
    for n, m in chosen.items():
        assert_row(moved, n, rows, m)
        np.testing.assert_array_equal(shown(moved, n, other, rooms), shown(rows, m, given, rooms))
    alone, row = answer_rows({0: answers[6]}, media, policy, rooms)
    assert_row(row, 0, rows, 6)
    np.testing.assert_array_equal(shown(row, 0, alone, rooms), shown(rows, 6, given, rooms))
    assert set(np.flatnonzero(moved.valid.any(axis=1))) == set(chosen)


def test_hinted_and_plain_answers_see_the_same_frames(policy, answers, media, rooms):
    plain = answers[5]
    told = plain._replace(dialogue=hinted(plain.dialogue))
    given, rows = answer_rows({0: plain, 1: told}, media, policy, rooms)
    np.testing.assert_array_equal(shown(rows, 0, given, rooms), shown(rows, 1, given, rooms))
    seen = [set(rows.media_index[n]) - {-1} for n in (0, 1)]
    assert seen[0] == seen[1] != set()
    frames = np.asarray(given.vision.patches)
    assert sum(frame.any() for frame in frames) == 2  # four frames, in pairs
    text = [policy.vocab.decode(rows.tokens[n][rows.valid[n]]) for n in (0, 1)]
    assert "Hint: Look at the left." not in text[0]
    assert "Hint: Look at the left." in text[1]
    ours, theirs = (rows.action_target[n][rows.action_mask[n]] for n in (0, 1))
    np.testing.assert_array_equal(ours, theirs)


def test_every_action_is_predicted_from_the_token_before_it(policy, answers, media, rooms):
    _, rows = answer_rows(dict(enumerate(answers)), media, policy, rooms)
    for n, answer in enumerate(answers):
        count = len(answer.tokens)
        places = rows.action_pos[n, :count] + 1
        np.testing.assert_array_equal(rows.tokens[n, places], answer.tokens)
        end = places[-1] + 1
        if answer.truncated:
            assert rows.tokens[n, end] == policy.vocab.im_end
        assert rows.valid[n].sum() == end + answer.truncated


def test_sizes_are_those_of_the_rows(policy, said, answers, media, rooms):
    _, rows = answer_rows(dict(enumerate(answers)), media, policy, rooms)
    contexts = {
        name: policy.template.lengths(example.dialogue, example.grids).context
        for name, example in media.items()
    }
    assert answer_size(answers, contexts) == row_size(said)
    assert answer_size(answers, contexts)[0] == rows.valid.sum(axis=1).max()
    assert answer_size([], contexts) == (0, 0)


@pytest.mark.parametrize("change", [{"length": 20}, {"actions": 1}])
def test_an_answer_without_room_is_refused_by_name(policy, answers, media, rooms, change):
    longest = max(answers[4:8], key=lambda answer: len(answer.tokens))
    with pytest.raises(InputError, match="there is room for") as caught:
        answer_rows({0: longest}, media, policy, rooms._replace(**change))
    assert caught.value.record == "clip"
    assert caught.value.file == "tiny.jsonl"
