"""Every model family behind the same engine: what is sampled is what the trainer scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_checks import make_examples, score, shapes_for
from tiny import load_policy, make_checkpoint

from turnwise_jax.models.params import named
from turnwise_jax.rollout.rows import row_size, train_rows
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train.collect import as_batch
from turnwise_jax.train.forward import Forward

TEMPERATURE = 1.2
GROUP = 2
OMNI = "qwen2_5_omni"
OTHERS = ["qwen3_vl", OMNI]  # the other tests of this directory use qwen2_5_vl
UNUSED = ("audio", "markers", "embedding")  # in every Omni checkpoint, but not in its thinker


class Sampled(NamedTuple):
    """A policy's directory and itself, the dialogues it saw, its rollouts, and those as rows."""

    directory: Any
    policy: Any
    examples: list
    made: Any
    rows: Any


@pytest.fixture(scope="module", params=OTHERS)
def sampled(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, family=request.param, marker_gain=2.0)
    policy = load_policy(directory)
    examples = make_examples(policy)
    return Sampled(directory, policy, examples, *rolled_out(policy, examples))


def rolled_out(policy, examples):
    """Rollouts and their rows."""
    (shapes,) = shapes_for(policy, examples)
    engine = StreamEngine(policy, Sampling(temperature=TEMPERATURE, top_k=10), shapes)
    made = engine.rollout(policy.params, examples, group_size=GROUP, seed=3)
    length, actions = row_size(made)
    return made, train_rows(made, length=length, actions=actions)


def test_a_full_pass_gives_the_recorded_log_probabilities(sampled):
    _, policy, _, made, rows = sampled
    logp = score(policy, policy.params, rows, made.prompts.media, TEMPERATURE)
    assert made.truncated.any()
    assert (~made.truncated & (made.length > 0)).any()
    assert np.abs(np.exp(logp - rows.sampler_logp) - 1).max() < 2e-5


def test_bfloat16_decoding_stays_near_a_full_bfloat16_pass(sampled):
    """Both passes round to 8 bits, in other orders, and each is as far from float32 as the other.

    Independent errors of one size differ by 1.4 of it; a cache that lost more would show. Logits
    are of order 1, which 8 bits hold to 0.004, and a few layers add to that.
    """
    policy = load_policy(sampled.directory, dtype="bfloat16")
    made, rows = rolled_out(policy, sampled.examples)
    media, mask = made.prompts.media, rows.action_mask
    full = score(policy, policy.params, rows, media, TEMPERATURE)
    exact = score(sampled.policy, policy.params, rows, media, TEMPERATURE)
    rounding = np.abs(full - exact)[mask]
    gap = np.abs(full - rows.sampler_logp)[mask]
    assert 0 < rounding.mean() < 0.02
    assert gap.mean() < 1.5 * rounding.mean()
    assert gap.max() < 2.5 * rounding.max()


def test_positions_carried_over_turns_are_those_of_the_whole_row(sampled):
    _, policy, examples, made, rows = sampled
    for b, example in enumerate(examples):
        replies = [
            (made.tokens[b, 0, k, : made.length[b, 0, k]], bool(made.truncated[b, 0, k]))
            for k in range(int(made.turn_mask[b].sum()))
        ]
        whole = policy.template.training_row(example.dialogue, example.grids, replies)
        expected, _ = policy.family.positions(whole.tokens, whole.media, policy.config)
        np.testing.assert_array_equal(rows.positions[b * GROUP, :, : len(whole.tokens)], expected)
    plain = np.broadcast_to(np.arange(rows.tokens.shape[1]), rows.positions.shape)
    flat = rows._replace(positions=plain.astype(np.int32))
    logp = score(policy, policy.params, flat, made.prompts.media, TEMPERATURE)
    assert np.abs(logp - rows.sampler_logp).max() > 1e-2


def test_the_trainer_scores_the_same_and_every_parameter_learns(sampled):
    _, policy, _, made, rows = sampled
    turns = made.turn_mask.shape[1]
    batch = as_batch(made.prompts.media, rows, np.zeros((len(rows.tokens), turns)))
    forward = Forward(policy.graphdef, TEMPERATURE, chunk=64)

    @jax.jit
    def scored(params, batch):
        def total(params):
            logp = forward.logprobs(params, forward.media(params, batch.media), batch)
            return jnp.sum(logp), logp

        return jax.grad(total, has_aux=True)(params)

    slope, logp = scored(policy.params, batch)
    np.testing.assert_allclose(logp, rows.sampler_logp, atol=2e-5)
    for path, leaf in named(slope).items():
        assert np.isfinite(leaf).all(), path
        assert (np.abs(leaf).max() > 0) == (path != UNUSED), path


def test_one_pixel_reaches_every_later_turn_of_its_dialogue_alone(sampled):
    _, policy, _, made, rows = sampled
    media = made.prompts.media
    before = score(policy, policy.params, rows, media, TEMPERATURE)
    patches = np.array(media.vision.patches)
    tokens = policy.family.slots_for([(4, 6)], policy.config).tokens
    index = rows.media_index[GROUP]  # the first rollout of the dialogue with videos
    last = index[index < len(patches) * tokens].max() // tokens
    flat = patches[last].reshape(-1)
    flat[7] ^= 255
    changed = media._replace(vision=media.vision._replace(patches=patches))
    moved = score(policy, policy.params, rows, changed, TEMPERATURE) != before
    final = (rows.turn_id == 2) & rows.action_mask
    assert moved[GROUP : 2 * GROUP][final[GROUP : 2 * GROUP]].all()
    moved[GROUP : 2 * GROUP] &= ~final[GROUP : 2 * GROUP]
    assert not moved.any()


@pytest.mark.parametrize("sampled", [OMNI], indirect=True)
def test_one_frame_of_sound_reaches_every_later_turn_of_its_dialogue_alone(sampled):
    _, policy, examples, made, rows = sampled
    media = made.prompts.media
    assert [len(example.sound_slices) for example in examples] == [1, 3, 0]
    before = score(policy, policy.params, rows, media, TEMPERATURE)
    mel = np.array(media.audio.mel)
    mel[3, 40] += 1.0  # the sound of the second open turn of the dialogue with videos
    changed = media._replace(audio=media.audio._replace(mel=mel))
    moved = score(policy, policy.params, rows, changed, TEMPERATURE) != before
    later = (rows.turn_id >= 1) & rows.action_mask
    later[:GROUP] = later[2 * GROUP :] = False
    np.testing.assert_array_equal(moved, later)
