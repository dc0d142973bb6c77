"""Recorded log-probabilities against one teacher-forced pass over the finished dialogues."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rollout_checks import score, shapes_for
from tiny import load_policy, make_example

from turnwise_jax.rollout.rows import row_size, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import StreamEngine


def as_rows(rollouts):
    length, actions = row_size(rollouts)
    return train_rows(rollouts, length=length, actions=actions)


@pytest.mark.parametrize("kind", ["T=1.2, top-k 10", "T=0.6", "greedy"])
def test_ratio_is_one_at_any_temperature(policy, examples, shapes, engine, greedy_engine, kind):
    """Faults 15, 16, 17: ragged dialogues, turns ended by marker and by length, images, video."""
    if kind == "T=0.6":
        engine = StreamEngine(policy, Sampling(temperature=0.6), shapes)
    elif kind == "greedy":
        engine = greedy_engine
    made = engine.rollout(policy.params, examples, group_size=3, seed=3)
    rows = as_rows(made)
    temperature = engine.sampling.logprob_temperature
    logp = score(policy, policy.params, rows, made.prompts.media, temperature)
    ratio = np.exp(logp - rows.sampler_logp)
    assert made.truncated.any()
    assert (made.length[:, 0][made.turn_mask] < shapes.new_tokens).any()
    assert np.abs(ratio - 1).max() < 2e-5
    other = score(policy, policy.params, rows, made.prompts.media, 0.9)
    assert np.abs(np.exp(other - rows.sampler_logp) - 1).max() > 0.01


def test_bfloat16_decoding_stays_near_a_full_bfloat16_pass(directory, examples, shapes):
    """Fault 17: bfloat16 keeps 8 bits; both passes are equally far from float32, not further."""
    policy = load_policy(directory, dtype="bfloat16")
    engine = StreamEngine(policy, Sampling(temperature=1.2, top_k=10), shapes)
    made = engine.rollout(policy.params, examples, group_size=3, seed=3)
    rows, vision = as_rows(made), made.prompts.media
    mask = rows.action_mask
    full = score(policy, policy.params, rows, vision, 1.2)
    exact = score(load_policy(directory), policy.params, rows, vision, 1.2)
    rounding = np.abs(full - exact)[mask]
    gap = np.abs(full - rows.sampler_logp)[mask]
    assert gap.mean() < 0.02
    assert gap.max() < 0.15
    assert gap.mean() < 1.5 * rounding.mean()


def test_positions_are_carried_over_turns(policy, examples, rollouts):
    """Fault 25: image, text, image and video, text, video; equal to positions of the whole row."""
    rows = as_rows(rollouts)
    for b, example in enumerate(examples):
        for g in range(3):
            n = b * 3 + g
            whole = policy.template.training_row(
                example.dialogue, example.grids, replies_of(rollouts, b, g)
            )
            expected, _ = policy.family.positions(whole.tokens, whole.media, policy.config)
            np.testing.assert_array_equal(rows.positions[n, :, : len(whole.tokens)], expected)
    # A text-only count of the same rows would be noticed: it changes the log-probs.
    plain = np.broadcast_to(np.arange(rows.tokens.shape[1]), rows.positions.shape)
    flat = rows._replace(positions=plain.astype(np.int32))
    vision = rollouts.prompts.media
    assert np.abs(score(policy, policy.params, flat, vision, 1.2) - rows.sampler_logp).max() > 1e-2


def replies_of(rollouts, b, g):
    """(ids, truncated) of each turn of one rollout."""
    return [
        (rollouts.tokens[b, g, k, : rollouts.length[b, g, k]], bool(rollouts.truncated[b, g, k]))
        for k in range(int(rollouts.turn_mask[b].sum()))
    ]


def test_one_pixel_changes_every_later_logprob_and_no_earlier_one(engine, policy, examples):
    """Fault 29, in training rows and in sampling."""
    example = examples[0]
    given = 1  # frame 0 belongs to the history, frame 1 + k to open turn k
    made = engine.rollout(policy.params, [example], group_size=3, seed=5)
    rows = as_rows(made)
    before = score(policy, policy.params, rows, made.prompts.media, 1.2)
    for turn in range(3):
        patches = [values.copy() for values in example.patches]
        patches[given + turn][0, 5, 0] ^= 255
        changed = dataclasses.replace(example, patches=tuple(patches))
        prompts = engine.prepare([changed])
        after = score(policy, policy.params, rows, prompts.media, 1.2)
        differs = before != after
        assert not differs[rows.turn_id < turn].any()
        assert differs[rows.action_mask & (rows.turn_id >= turn)].all()
        again = engine.rollout(policy.params, prompts, group_size=3, seed=5)
        np.testing.assert_array_equal(again.logp[:, :, :turn], made.logp[:, :, :turn])
        assert (again.logp[0, :, turn, 0] != made.logp[0, :, turn, 0]).all()


def test_text_alone_needs_no_vision(policy):
    example = make_example("words", 2, per_turn=0)
    (bucket,) = shapes_for(policy, [example])
    assert bucket.slices == 0
    engine = StreamEngine(policy, Sampling(), bucket)
    made = engine.rollout(policy.params, [example], group_size=2, seed=0)
    assert made.prompts.media is None
    rows = as_rows(made)
    assert (rows.media_index == -1).all()
    blank = engine.policy.family.media_input([], [], policy.config)
    logp = score(policy, policy.params, rows, blank, 1.0)
    np.testing.assert_allclose(logp, rows.sampler_logp, atol=1e-5)


def test_padding_changes_nothing(policy, examples, shapes, engine):
    """Wider padding of every kind gives the same rollouts (fault 10's kind, on the sampler)."""
    wide = shapes._replace(
        batch=shapes.batch + 2,
        context=shapes.context + 37,
        turn=shapes.turn + 5,
        turns=shapes.turns + 1,
        branch=shapes.branch + 64,
        slices=shapes.slices + 3,
    )
    narrow = engine.rollout(policy.params, examples, group_size=3, seed=9)
    padded = StreamEngine(policy, engine.sampling, wide).rollout(
        policy.params, examples, group_size=3, seed=9
    )
    np.testing.assert_array_equal(padded.tokens[:, :, : shapes.turns], narrow.tokens)
    np.testing.assert_allclose(padded.logp[:, :, : shapes.turns], narrow.logp, atol=2e-5)
    assert padded.text[0][0][:3] == narrow.text[0][0][:3]
    assert padded.turn_mask.shape == (len(examples), shapes.turns + 1)
