"""Training rows: token in, token out; every sampled token trained, nothing else; right places."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest
from rollout_checks import shapes_for
from tiny import make_example

from turnwise_jax.errors import InputError
from turnwise_jax.rollout.decode import Chunk
from turnwise_jax.rollout.prompts import PromptBatch
from turnwise_jax.rollout.rows import TrainRows, row_size, sft_rows, train_rows
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.rollout.stream import Rollouts


@pytest.fixture(scope="module")
def rows(rollouts):
    length, actions = row_size(rollouts)
    return train_rows(rollouts, length=length + 9, actions=actions + 4)


def replies(rollouts, b, g):
    return [
        (rollouts.tokens[b, g, k, : rollouts.length[b, g, k]], bool(rollouts.truncated[b, g, k]))
        for k in range(int(rollouts.turn_mask[b].sum()))
    ]


def test_rows_equal_the_chat_template_on_the_sampled_ids(rows, rollouts, examples, policy):
    """Faults 19, 20, 21: turns that end by marker and by length, both joined and masked right."""
    for b, example in enumerate(examples):
        for g in range(3):
            n = b * 3 + g
            whole = policy.template.training_row(
                example.dialogue, example.grids, replies(rollouts, b, g)
            )
            count = len(whole.tokens)
            np.testing.assert_array_equal(rows.tokens[n, :count], whole.tokens)
            np.testing.assert_array_equal(rows.valid[n], np.arange(rows.valid.shape[1]) < count)
            targets = np.flatnonzero(whole.loss_mask)
            mask = rows.action_mask[n]
            np.testing.assert_array_equal(rows.action_pos[n][mask] + 1, targets)
            np.testing.assert_array_equal(rows.action_target[n][mask], whole.tokens[targets])
            np.testing.assert_array_equal(rows.turn_id[n][mask], whole.turn_id[targets])


def test_every_sampled_token_is_an_action_with_its_logprob(rows, rollouts):
    sampled = np.arange(rollouts.tokens.shape[-1]) < rollouts.length[..., None]
    np.testing.assert_array_equal(rows.action_mask.sum(axis=1), rollouts.length.sum(-1).reshape(-1))
    np.testing.assert_array_equal(rows.action_target[rows.action_mask], rollouts.tokens[sampled])
    np.testing.assert_array_equal(rows.sampler_logp[rows.action_mask], rollouts.logp[sampled])
    for name in ("action_pos", "action_target", "turn_id", "sampler_logp"):
        assert (getattr(rows, name)[~rows.action_mask] == 0).all()


def test_ids_survive_although_their_text_would_be_tokenised_otherwise(rows, rollouts, policy):
    """Fault 19."""
    first = rollouts.tokens[0, 0, 0, : rollouts.length[0, 0, 0]]
    assert policy.vocab.encode(policy.vocab.decode(first)) != first.tolist()
    start = rollouts.prompts.context.length[0]
    np.testing.assert_array_equal(rows.tokens[0, start : start + len(first)], first)


def test_an_inserted_marker_is_in_the_row_but_not_trained(rows, rollouts, policy):
    """Fault 21."""
    b, g, k = (int(index[0]) for index in np.nonzero(rollouts.truncated))
    n = b * 3 + g
    last = rows.action_pos[n][rows.action_mask[n] & (rows.turn_id[n] == k)][-1] + 1
    assert rows.tokens[n, last] != policy.vocab.im_end
    assert rows.tokens[n, last + 1] == policy.vocab.im_end
    assert last not in rows.action_pos[n][rows.action_mask[n]]


def test_media_index_points_at_the_right_frames(rows, rollouts, examples, policy):
    """Fault 27: 'every placeholder reads its own slice', whatever stands before it in the batch."""
    vision, per_slice = rollouts.prompts.media.vision, rollouts.prompts.shapes.slots.tokens
    pads = (policy.vocab.image_pad, policy.vocab.video_pad)
    first = 0
    for b, example in enumerate(examples):
        counts = [h * w // 4 for _, (h, w) in example.slices]
        expected = [
            (first + s) * per_slice + j for s, count in enumerate(counts) for j in range(count)
        ]
        for g in range(3):
            n = b * 3 + g
            at = np.isin(rows.tokens[n], pads) & rows.valid[n]
            np.testing.assert_array_equal(rows.media_index[n][at], expected)
            assert (rows.media_index[n][~at] == -1).all()
        for s, (values, _) in enumerate(example.slices):
            assert vision.patches[first + s][vision.valid[first + s]].sum() == values.sum()
        first += len(counts)


def test_rows_without_room_are_refused(rollouts):
    length, actions = row_size(rollouts)
    with pytest.raises(InputError, match="rows need"):
        train_rows(rollouts, length=length - 1, actions=actions)
    with pytest.raises(InputError, match="rows need"):
        train_rows(rollouts, length=length, actions=actions - 1)


def test_the_cache_has_room_for_the_longest_row(rollouts, shapes):
    """The bound that trainers size their rows by."""
    assert row_size(rollouts)[0] <= shapes.context + shapes.branch
    assert row_size(rollouts, shared=True)[0] <= shapes.branch


def supervised():
    return [
        make_example("x", 2, seed=1, replies=True),
        make_example("y", 3, seed=2, per_turn=(1, 2, 0, 1), replies=True),
        make_example("z", 1, given=0, seed=3, size=(56, 84), replies=True),
    ]


def row_shapes(policy, examples, **options):
    return RowShapes.for_dialogues(
        [example.dialogue for example in examples],
        [example.grids for example in examples],
        policy,
        **options,
    )


def test_supervised_rows_train_all_given_replies_and_their_markers(policy):
    examples = supervised()
    media, rows, shapes = sft_rows(examples, policy, row_shapes(policy, examples, batch_size=4))
    assert rows.tokens.shape == (4, shapes.length)
    assert not rows.valid[3].any()
    assert not rows.action_mask[3].any()
    assert (rows.sampler_logp == 0).all()
    first = 0
    for n, example in enumerate(examples):
        given = [policy.vocab.encode(turn.reply) for turn in example.dialogue.turns]
        expected = [token for reply in given for token in [*reply, policy.vocab.im_end]]
        mask = rows.action_mask[n]
        assert rows.action_target[n][mask].tolist() == expected
        np.testing.assert_array_equal(
            rows.tokens[n][rows.action_pos[n][mask] + 1], rows.action_target[n][mask]
        )
        turns = [k for k, reply in enumerate(given) for _ in range(len(reply) + 1)]
        assert rows.turn_id[n][mask].tolist() == turns
        read = rows.media_index[n][rows.media_index[n] >= 0] // shapes.slots.tokens
        assert sorted(set(read.tolist())) == list(range(first, first + len(example.slices)))
        first += len(example.slices)
    assert media.vision.patches.shape[0] == shapes.slices


def test_supervised_and_sampled_rows_of_the_same_ids_agree(policy, rollouts, examples, rows):
    """One scheme for both: a rollout's row equals a supervised one of the same dialogue (5.8)."""
    example = make_example("same", 2, given=0, seed=8, replies=True)
    _, given, _ = sft_rows([example], policy, row_shapes(policy, [example], batch_size=1))
    opened = example.__class__(example.dialogue.reopened(), example.patches, example.grids)
    (bucket,) = shapes_for(policy, [opened])
    ids = [
        [*policy.vocab.encode(turn.reply), policy.vocab.im_end] for turn in example.dialogue.turns
    ]
    from turnwise_jax.rollout.prompts import prompt_batch

    made = fake_rollouts(prompt_batch([opened], policy, [bucket]), ids, policy.vocab.im_end)
    sampled = train_rows(made, length=given.tokens.shape[1], actions=given.action_pos.shape[1])
    jax.tree.map(np.testing.assert_array_equal, sampled, given)


def fake_rollouts(prompts: PromptBatch, ids: list[list[int]], marker: int) -> Rollouts:
    """One prompt, one rollout that said ``ids``."""
    count, most = len(ids), max(map(len, ids))
    tokens = np.zeros((1, 1, count, most), np.int32)
    for k, reply in enumerate(ids):
        tokens[0, 0, k, : len(reply)] = reply
    return Rollouts(
        prompts=prompts,
        ids=prompts.ids,
        tokens=tokens,
        length=np.array([[[len(reply) for reply in ids]]], np.int32),
        logp=np.zeros(tokens.shape, np.float32),
        truncated=np.zeros((1, 1, count), bool),
        text=[[[""] * count]],
        turn_mask=prompts.turn_mask,
        time=prompts.time,
        marker=marker,
    )


def test_supervised_buckets(policy):
    short = [make_example(f"s{i}", 1, given=0, seed=i, replies=True) for i in range(2)]
    long = [make_example("long", 9, given=0, seed=5, replies=True)]
    buckets = row_shapes(policy, short + long, batch_size=2, buckets=2)
    assert len(buckets) == 2
    assert sft_rows(short, policy, buckets)[2] == buckets[0]
    assert sft_rows([short[0], *long], policy, buckets)[2] == buckets[1]
    with pytest.raises(InputError, match="record 'long': field 'length': needs"):
        sft_rows(long, policy, buckets[:1])


def test_thirty_two_rows_of_ten_thousand_tokens_take_well_under_a_second():
    b, g, k, context, turn, most = 8, 4, 8, 9000, 64, 60
    rng = np.random.default_rng(0)

    def chunk(width, *lead):
        return Chunk(
            tokens=rng.integers(0, 99, (*lead, width), np.int32),
            media_index=np.full((*lead, width), -1, np.int32),
            positions=np.zeros((*lead, 3, width), np.int32),
            length=np.full(lead, width, np.int32),
            span=np.full(lead, width, np.int32),
        )

    prompts = PromptBatch(
        ids=tuple("abcdefgh"),
        shapes=None,
        media=None,
        context=chunk(context, b),
        turns=chunk(turn, k, b),
        turn_mask=np.ones((b, k), bool),
        time=np.zeros((b, k), np.float32),
        seed=np.zeros(b, np.uint32),
    )
    rollouts = Rollouts(
        prompts=prompts,
        ids=prompts.ids,
        tokens=rng.integers(0, 99, (b, g, k, most), np.int32),
        length=rng.integers(1, most, (b, g, k), np.int32),
        logp=np.zeros((b, g, k, most), np.float32),
        truncated=np.zeros((b, g, k), bool),
        text=[],
        turn_mask=prompts.turn_mask,
        time=prompts.time,
        marker=98,
    )
    began = time.perf_counter()
    rows = train_rows(rollouts, length=10_240, actions=512)
    assert time.perf_counter() - began < 1.0
    assert isinstance(rows, TrainRows)
    assert rows.action_mask.sum() == rollouts.length.sum()
