"""Features kept on the host: what the towers gave, wherever a dialogue stands; bounded memory."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from rollout_checks import make_examples, shapes_for
from tiny import load_policy, make_checkpoint, make_example

from turnwise_jax.data.hints import HINTED
from turnwise_jax.models.media import Media
from turnwise_jax.rollout.features import Encoder, SliceFeatures, slices_of
from turnwise_jax.rollout.prompts import media_batch, prompt_batch
from turnwise_jax.rollout.shapes import shared
from turnwise_jax.train.mesh import Layout, make_mesh
from turnwise_jax.train.metrics import count_compiles

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen2_5_omni")
ROOM = 2**24


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """(policy, examples with and without frames and sounds) of a model family."""
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, family=request.param)
    policy = load_policy(directory)
    return policy, make_examples(policy)


def one_device(policy, room: int = ROOM, mesh=(1, 1, 1)) -> Encoder:
    fields = ConfigDict(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))
    return Encoder(policy, Layout.of(make_mesh(fields)), room=room)


def encoded(encoder, policy, examples, shapes) -> Media:
    """The features of a batch, which are to be kept."""
    media = encoder(policy.params, media_batch(examples, policy, shapes)[0])
    encoder.kept.note(examples, shapes, media)
    return media


def looked_at(policy, examples, shapes, media: Media, kept=None) -> list[np.ndarray]:
    """Per example ``[n, tokens, D]``: what its tokens look at in a batch, in order."""
    batch = prompt_batch(examples, policy, [shapes], kept)
    rows = np.asarray(media.features)[None]
    if media.deep is not None:
        rows = np.concatenate([rows, np.asarray(media.deep)])
    out = []
    for b in range(len(examples)):
        parts = [batch.context.media_index[b], *batch.turns.media_index[:, b]]
        index = np.concatenate(parts)
        out.append(rows[:, index[index >= 0]])
    return out


def test_a_batch_from_memory_is_the_batch_that_was_encoded(family):
    policy, examples = family
    (shapes,) = shapes_for(policy, examples, batch_size=4)
    encoder = one_device(policy)
    first = encoded(encoder, policy, examples, shapes)
    assert encoder.kept.batch(examples, shapes) is None  # it is noted, and fetched when asked for
    assert encoder.kept.holds(examples, shapes)
    laid_out, _ = media_batch(examples, policy, shapes, encoder.kept)
    assert isinstance(laid_out, SliceFeatures)
    again = encoder(None, laid_out)  # without a parameter
    assert again.features.dtype == first.features.dtype
    assert again.features.shape == first.features.shape
    assert (again.deep is None) == (first.deep is None)
    pair = (looked_at(policy, examples, shapes, media) for media in (first, again))
    for ours, theirs in zip(*pair, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert sum(x.size for x in looked_at(policy, examples, shapes, again)) > 0


def test_another_order_and_bucket_give_the_same_features(family):
    """Where a dialogue stands matters to the rounding of the towers and to nothing else."""
    policy, examples = family
    (small,) = shapes_for(policy, examples, batch_size=3)
    (large,) = shapes_for(policy, examples, batch_size=6)
    assert large.slices > small.slices
    encoder = one_device(policy)
    encoded(encoder, policy, examples[:2], small)
    encoded(encoder, policy, examples[2:], small)
    turned = examples[::-1]
    assert encoder.kept.holds(turned, large)
    media = encoder(policy.params, media_batch(turned, policy, large, encoder.kept)[0])
    expected = encoder(policy.params, media_batch(turned, policy, large)[0])
    pair = (looked_at(policy, turned, large, each) for each in (media, expected))
    for ours, theirs in zip(*pair, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_bucket_without_room_for_sounds_and_one_with(family):
    """What was kept in the one is laid out in the other."""
    policy, (images, _, words) = family
    bare = dataclasses.replace(images, dialogue=silent(images.dialogue), sounds=())
    (with_sound,) = shapes_for(policy, [images, words])
    (without,) = shapes_for(policy, [bare, words])
    encoder = one_device(policy)
    encoded(encoder, policy, [bare, words], without)
    assert encoder.kept.holds([words, bare], with_sound)
    media = encoder(policy.params, media_batch([words, bare], policy, with_sound, encoder.kept)[0])
    expected = encoder(policy.params, media_batch([words, bare], policy, with_sound)[0])
    assert media.features.shape == expected.features.shape
    pair = (looked_at(policy, [words, bare], with_sound, each) for each in (media, expected))
    for ours, theirs in zip(*pair, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def silent(dialogue):
    turns = tuple(dataclasses.replace(turn, audio=None) for turn in dialogue.turns)
    return dataclasses.replace(dialogue, turns=turns)


def test_memory_is_bounded_and_the_first_stay(policy):
    examples = [make_example(f"e{n}", 2, seed=n, per_turn=1 + n) for n in range(4)]
    (shapes,) = shapes_for(policy, examples, batch_size=2)
    each = shapes.slots.tokens * policy.config.text.hidden_size * 4  # of a slice: one frame
    slices = [len(example.slices) for example in examples]
    assert slices == [3, 6, 9, 12]
    encoder = one_device(policy, room=each * (3 + 9 + 5))
    kept = encoder.kept
    for pair in (examples[:2], examples[2:], examples[:2]):
        encoded(encoder, policy, pair, shapes)
        assert kept.nbytes <= kept.room
    held = [kept.holds([example], shapes) for example in examples]
    assert held == [True, True, False, False]
    assert kept.nbytes == each * (3 + 6)
    assert sum(f.vision.nbytes for f in kept._kept.values()) == kept.nbytes
    assert all(f.vision.base is None for f in kept._kept.values())  # no view of a whole batch
    encoded(encoder, policy, [make_example("small", 1, given=0)], shapes)
    assert kept.holds([make_example("small", 1, given=0)], shapes)  # there is room for more
    assert not kept.holds([examples[0], examples[3]], shapes)
    assert kept.batch([examples[0], examples[3]], shapes) is None


def test_nothing_is_kept_without_memory_or_features(policy, examples, shapes):
    encoder = one_device(policy, room=0)
    encoded(encoder, policy, examples, shapes)
    assert not encoder.kept.holds(examples, shapes)
    encoder = one_device(policy)
    encoder.kept.note(examples, shapes, media_batch(examples, policy, shapes)[0])  # pixels
    assert not encoder.kept.holds(examples, shapes)
    assert not encoder.kept.holds([], shapes)
    assert encoder(policy.params, None) is None


def test_a_name_and_what_it_shows_are_the_key(policy):
    """Two dialogues of one name that show other frames; one with its hint, which shows the same."""

    def named(example, name):
        return dataclasses.replace(example, dialogue=dataclasses.replace(example.dialogue, id=name))

    one, other = make_example("a", 2, seed=1), make_example("b", 2, seed=2)
    told = named(one, f"a{HINTED}")
    (shapes,) = shapes_for(policy, [one, other])
    encoder = one_device(policy)
    encoded(encoder, policy, [one, told], shapes)
    assert encoder.kept.nbytes == 3 * shapes.slots.tokens * policy.config.text.hidden_size * 4
    assert encoder.kept.holds([told], shapes)
    assert not encoder.kept.holds([named(other, "a")], shapes)
    assert not encoder.kept.holds([named(one, "c")], shapes)


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)])
def test_on_a_mesh_features_are_whole_on_every_device(policy, mesh):
    examples = [make_example(f"e{n}", 2, seed=n) for n in range(4)]
    parts = mesh[0] * mesh[1]
    (shapes,) = shared(shapes_for(policy, examples), parts, 0, 1)
    encoder = one_device(policy, mesh=mesh)
    params = jax.device_put(policy.params, encoder._placement.whole)
    with count_compiles() as compiles:
        encoder.warm_up(params, media_batch([], policy, shapes)[0], shapes)
        compiles.restart()
        expected = encoder(params, media_batch(examples, policy, shapes)[0])
        encoder.kept.note(examples, shapes, expected)
        assert encoder.kept.holds(examples, shapes)
        media = encoder(params, media_batch(examples, policy, shapes, encoder.kept)[0])
        assert compiles.names == []
    assert media.features.sharding.is_fully_replicated
    pair = (looked_at(policy, examples, shapes, each) for each in (media, expected))
    for ours, theirs in zip(*pair, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_process_keeps_its_own_share(family):
    """The rows of two processes' slices: all vision first, then all sound."""
    policy, examples = family
    (room,) = shapes_for(policy, examples)
    encoder = one_device(policy)
    media = encoder(policy.params, media_batch(examples, policy, room)[0])
    whole = slices_of(media, room)
    doubled = [
        None if part is None else np.concatenate([part, part[::-1]])
        for part in slices_of(media, room)
    ]
    both = encoder(None, SliceFeatures(*doubled))
    for part, step in ((0, 1), (1, -1)):
        (own,) = shared([room], 1, part, 2)
        for ours, theirs in zip(slices_of(both, own), whole, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_array_equal(ours, theirs[::step])
