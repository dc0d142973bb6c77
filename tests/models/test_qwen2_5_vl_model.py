"""What must hold of the whole model, without a reference implementation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_model import IMAGE, frames, full_pass, images, join, make_tiny, pad, piece

from turnwise_jax.kernels import attention
from turnwise_jax.models import io
from turnwise_jax.models.media import MediaInput
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen2_5_vl import Config

LENGTH = 16


@pytest.fixture(scope="module")
def batch(tiny):
    """Three rows with 2, 0 and 1 images."""
    rows = [[2, (0, 4), 1, (1, 4)], [9], [(2, 4), 3]]
    pieces = [piece(tiny.config, row, seed=b)[0] for b, row in enumerate(rows)]
    return images(tiny.config, frames(3)), pad(pieces, LENGTH)


def turns_of(config):
    """Three dialogues of three turns, each turn with its own number of new frames.

    The last one is a video turn, a text turn and a second video turn at another frame rate.
    """
    plan = [
        [[3, (0, 4), (1, 4)], [1], [(2, 4), 2]],
        [[6], [(3, 4), (4, 4), 1], [2]],
        [[(5, 4, 2, 2.0), 1], [4], [1, (7, 4, 2, 0.5)]],
    ]
    rows = []
    for b, turns in enumerate(plan):
        start, pieces = 0, []
        for k, parts in enumerate(turns):
            one, start = piece(config, parts, start=start, seed=10 * b + k)
            pieces.append(one)
        rows.append(pieces)
    return images(config, frames(9)), rows


def decode_turns(model_parts, vision, rows, *, capacity, chunk, fresh):
    """Hidden states of every dialogue, computed turn by turn from a cache."""
    graphdef, params, _ = model_parts

    @jax.jit
    def step(params, vision, cache, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        media = model.encode_media(MediaInput(vision))
        rest = {"media": media, "media_index": index, "valid": valid}
        return model(tokens, positions, cache=cache, **rest)

    @jax.jit
    def first(params, vision, tokens, positions, index, valid):
        model = nnx.merge(graphdef, params)
        media = model.encode_media(MediaInput(vision))
        rest = {"media": media, "media_index": index, "valid": valid}
        cache = model.init_cache(len(rows), capacity)
        return model(tokens, positions, cache=cache, fresh=fresh, **rest)

    cache, found = None, [[] for _ in rows]
    for k in range(len(rows[0])):
        turn = [row[k] for row in rows]
        arrays = pad(turn, chunk)
        if cache is None:
            hidden, cache = first(params, vision, *arrays)
        else:
            hidden, cache = step(params, vision, cache, *arrays)
        for b, one in enumerate(turn):
            found[b].append(np.asarray(hidden[b, : len(one.tokens)], np.float32))
    lengths = [sum(len(one.tokens) for one in row) for row in rows]
    np.testing.assert_array_equal(cache.length, lengths)
    return [np.concatenate(row) for row in found], lengths


@pytest.mark.parametrize("fresh", [True, False])
def test_turns_of_new_frames_from_the_cache_equal_one_pass(tiny, run, fresh):
    vision, rows = turns_of(tiny.config)
    whole = run(tiny.params, vision, *pad([join(row) for row in rows], 32))
    lengths = [sum(len(one.tokens) for one in row) for row in rows]
    # The fullest row ends at the last slot, so the padding of its last turn runs past the end.
    found, _ = decode_turns(tiny, vision, rows, capacity=max(lengths), chunk=16, fresh=fresh)
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(found[b], whole[b, :n], atol=1e-4, rtol=0)


def test_cache_in_bfloat16_stays_within_the_stated_bound(tiny, run):
    """Cached against uncached: 0.5 % of the hidden states' mean size; either to float32: 2.5 %."""
    vision, rows = turns_of(tiny.config)
    arrays = pad([join(row) for row in rows], 32)
    half = tiny._replace(graphdef=io.build(tiny.config, dtype="bfloat16")[0])
    exact = np.asarray(run(tiny.params, vision, *arrays))
    whole = np.asarray(full_pass(half.graphdef)(tiny.params, vision, *arrays), np.float32)
    found, lengths = decode_turns(half, vision, rows, capacity=32, chunk=16, fresh=True)
    for b, n in enumerate(lengths):
        scale = np.abs(exact[b, :n]).mean()
        assert np.abs(found[b] - whole[b, :n]).mean() < 0.005 * scale
        assert np.abs(found[b] - exact[b, :n]).mean() < 0.025 * scale
        assert np.abs(whole[b, :n] - exact[b, :n]).mean() < 0.025 * scale


def test_single_tokens_from_the_cache_equal_one_pass(tiny, run):
    vision = images(tiny.config, frames(1))
    one, _ = piece(tiny.config, [2, (0, 4), 3])
    whole = run(tiny.params, vision, *pad([one], len(one.tokens)))
    model = nnx.merge(tiny.graphdef, tiny.params)
    media = model.encode_media(MediaInput(vision))
    cache = model.init_cache(1, len(one.tokens))
    tokens, positions, index, _ = pad([one], len(one.tokens))
    step = nnx.jit(lambda m, *args, **kwargs: m(*args, **kwargs))
    for t in range(len(one.tokens)):
        now = slice(t, t + 1)
        hidden, cache = step(
            model,
            tokens[:, now],
            positions[:, :, now],
            media=media,
            media_index=index[:, now],
            cache=cache,
        )
        np.testing.assert_allclose(hidden[0, 0], whole[0, t], atol=1e-4, rtol=0)


def test_a_row_does_not_depend_on_its_neighbours(tiny, run, batch):
    vision, (tokens, *rest) = batch
    valid = rest[-1]
    before = run(tiny.params, vision, tokens, *rest)
    changed = tokens.copy()
    changed[1:] = (tokens[1:] + 7) % IMAGE
    after = run(tiny.params, vision, changed, *rest)
    np.testing.assert_array_equal(after[0][valid[0]], before[0][valid[0]])
    assert np.abs(after[1] - before[1])[valid[1]].max() > 1e-2


def test_the_future_does_not_change_the_past(tiny, run, batch):
    vision, (tokens, *rest) = batch
    before = run(tiny.params, vision, tokens, *rest)
    changed = tokens.copy()
    changed[1, 5] += 1
    after = run(tiny.params, vision, changed, *rest)
    np.testing.assert_array_equal(after[1, :5], before[1, :5])
    assert np.abs(after[1, 5:9] - before[1, 5:9]).max(axis=-1).min() > 1e-4


def test_images_follow_their_rows(tiny, run, batch):
    """Rows with 2, 0 and 1 images keep their results when permuted and repeated as in a group."""
    vision, arrays = batch
    base = run(tiny.params, vision, *arrays)
    order = np.array([2, 0, 1, 1, 0, 2])
    moved = run(tiny.params, vision, *(array[order] for array in arrays))
    valid = arrays[-1]
    for new, old in enumerate(order):
        np.testing.assert_allclose(moved[new][valid[old]], base[old][valid[old]], atol=1e-5, rtol=0)


def test_slices_may_stand_anywhere_in_the_batch(tiny, run, batch):
    vision, (tokens, positions, index, valid) = batch
    base = run(tiny.params, vision, tokens, positions, index, valid)
    order = np.array([2, 0, 1])
    moved = images(tiny.config, [frames(3)[s] for s in order], num_slices=5)
    place = np.argsort(order)
    shifted = np.where(index >= 0, place[index // 4] * 4 + index % 4, -1)
    again = run(tiny.params, moved, tokens, positions, shifted, valid)
    np.testing.assert_allclose(again[valid], base[valid], atol=1e-5, rtol=0)


def test_one_pixel_changes_every_later_state_of_its_row(tiny, run, batch):
    vision, arrays = batch
    slices = frames(3)
    slices[0][0][3, 100] ^= 255
    changed = run(tiny.params, images(tiny.config, slices), *arrays)
    difference = np.abs(changed - run(tiny.params, vision, *arrays)).max(axis=-1)
    index, valid = arrays[2], arrays[3]
    start = int(np.argmax(index[0] >= 0))
    assert (difference[0, :start] == 0).all()
    assert (difference[0, start:][valid[0, start:]] > 1e-6).all()
    assert (difference[1:][valid[1:]] == 0).all()


def test_padding_is_positional_not_a_token_value(tiny, run):
    """The padding's id may be a real token, and any id may pad."""
    vision = images(tiny.config, frames(1))
    first, _ = piece(tiny.config, [3, (0, 4), 2])
    first.tokens[[0, -1]] = 0
    alone = run(tiny.params, vision, *pad([first], len(first.tokens)))[0]
    for fill in (0, IMAGE, 55):
        padded = run(tiny.params, vision, *pad([first], LENGTH, fill=fill))[0]
        np.testing.assert_allclose(padded[: len(first.tokens)], alone, atol=1e-5, rtol=0)
    other = first._replace(tokens=np.where(first.tokens == 0, 1, first.tokens))
    changed = run(tiny.params, vision, *pad([other], LENGTH))[0]
    assert np.abs(changed[0] - alone[0]).max() > 1e-2


def test_left_padding_equals_right_padding(tiny, run, batch):
    vision, arrays = batch
    base = run(tiny.params, vision, *arrays)
    valid = arrays[-1]
    shift = LENGTH - valid.sum(axis=1)
    rolled = [
        np.stack([np.roll(row, n, -1) for row, n in zip(a, shift, strict=True)]) for a in arrays
    ]
    left = run(tiny.params, vision, *rolled)
    for b, n in enumerate(shift):
        np.testing.assert_allclose(left[b, n:], base[b, : LENGTH - n], atol=1e-5, rtol=0)
    assert np.isfinite(left).all()


def gradient_of(graphdef):
    """Gradient of a smooth function of the valid hidden states; media features are given."""

    @jax.jit
    def gradient(params, media, tokens, positions, index, valid):
        def loss(params):
            model = nnx.merge(graphdef, params)
            hidden, _ = model(tokens, positions, media=media, media_index=index, valid=valid)
            return jnp.sum(jnp.where(valid[..., None], jnp.sin(hidden), 0.0), dtype=jnp.float32)

        return jax.grad(loss)(params)

    return gradient


@pytest.fixture(scope="module")
def gradient(tiny):
    return gradient_of(tiny.graphdef)


@pytest.fixture(scope="module")
def media(tiny, batch):
    encode = jax.jit(
        lambda params, vision: nnx.merge(tiny.graphdef, params).encode_media(MediaInput(vision))
    )
    return encode(tiny.params, batch[0])


def test_padding_keeps_gradients_finite_and_equal(tiny, gradient, media, batch):
    _, arrays = batch
    short = gradient(tiny.params, media, *arrays)
    wide = gradient(tiny.params, media, *(pad_columns(array, 24) for array in arrays))
    for a, b in zip(jax.tree.leaves(short), jax.tree.leaves(wide), strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, atol=1e-4 * float(np.abs(a).max() + 1e-3), rtol=0)


def pad_columns(array, length):
    width = [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])]
    return np.pad(array, width)


def test_parameters_are_arguments(tiny, run, batch):
    """Two steps with other parameters through one compiled function give other results."""
    vision, arrays = batch
    compiled = run._cache_size()
    smaller = jax.tree.map(lambda x: 0.9 * x, tiny.params)
    outputs = [
        np.asarray(run(params, vision, *arrays)) for params in (tiny.params, smaller, tiny.params)
    ]
    assert run._cache_size() - compiled <= 1
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    np.testing.assert_array_equal(outputs[0], outputs[2])
    merged = nnx.split(nnx.merge(tiny.graphdef, tiny.params))[1]
    assert jax.tree.structure(merged) == jax.tree.structure(tiny.params)


@pytest.mark.parametrize("name", ["text_num_hidden_layers", "vision_depth"])
def test_program_size_does_not_grow_with_depth(batch, name):
    vision, arrays = batch

    def size(depth):
        # The other part's depth is neither 2 nor 8: equal depths would share helper functions.
        depths = {"text_num_hidden_layers": 4, "vision_depth": 4, name: depth}
        config = Config.tiny(100, image_token_id=IMAGE, **depths)
        graphdef, params = io.build(config)
        text = full_pass(graphdef).lower(params, vision, *arrays).as_text()
        return len(text.splitlines())

    assert size(8) == size(2)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_rematerialisation_changes_no_gradient(tiny, gradient, media, batch, remat):
    graphdef, _ = io.build(tiny.config, remat=remat)
    again = gradient_of(graphdef)(tiny.params, media, *batch[1])
    stored = gradient(tiny.params, media, *batch[1])
    for a, b in zip(jax.tree.leaves(stored), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(np.abs(a).max() + 1), rtol=0)


def test_full_computes_more_products_again_than_dots(tiny, media, batch):
    def products(remat):
        graphdef, _ = io.build(tiny.config, remat=remat)
        text = str(jax.make_jaxpr(gradient_of(graphdef))(tiny.params, media, *batch[1]))
        return text.count("dot_general[")

    assert products("none") < products("dots") < products("full")


def test_the_vision_tower_has_gradients_with_and_without_rematerialisation(tiny):
    vision = images(tiny.config, frames(2, grid=(4, 8)))
    found = []
    for remat in ("none", "dots", "full"):
        graphdef, _ = io.build(tiny.config, remat=remat)

        def loss(params, graphdef=graphdef):
            return jnp.sum(
                jnp.sin(nnx.merge(graphdef, params).encode_media(MediaInput(vision)).features)
            )

        found.append(named(jax.jit(jax.grad(loss))(tiny.params)["vision"]))
    for path, leaf in found[0].items():
        assert np.abs(leaf).max() > 0, path
        for other in found[1:]:
            np.testing.assert_allclose(
                other[path], leaf, atol=1e-5 * float(np.abs(leaf).max() + 1), rtol=0
            )


def test_queries_in_blocks_attend_the_same(tiny, batch, monkeypatch):
    vision, arrays = batch
    whole = full_pass(tiny.graphdef)(tiny.params, vision, *arrays)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 5)
    blocks = full_pass(tiny.graphdef)(tiny.params, vision, *arrays)
    np.testing.assert_allclose(blocks, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_head(tied):
    graphdef, params, _ = make_tiny(tie_word_embeddings=tied)
    model = nnx.merge(graphdef, params)
    assert model.head().shape == (64, 100)
    own = np.array_equal(model.head(), np.asarray(params["text"]["embed"]["embedding"][...]).T)
    assert own == tied
    assert ("head" in params["text"]) != tied


def test_init_is_deterministic_and_well_scaled():
    config = Config.tiny(100)
    first, again, other = (io.init(config, seed) for seed in (3, 3, 4))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(jax.tree.leaves(first)[-1], jax.tree.leaves(other)[-1])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(first))
    tokens = np.arange(40, dtype=np.int32)[None]
    places = np.broadcast_to(np.arange(40, dtype=np.int32), (1, 3, 40))
    model = nnx.merge(io.build(config)[0], first)
    logits = model(tokens, places)[0] @ model.head()
    assert 0.3 < float(jnp.std(logits)) < 3.0


def test_masters_stay_float32_under_bfloat16_compute(tiny, gradient, media, batch):
    graphdef, _ = io.build(tiny.config, dtype="bfloat16")
    exact = gradient(tiny.params, media, *batch[1])
    half = gradient_of(graphdef)(tiny.params, media, *batch[1])
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(half), strict=True):
        assert b.dtype == jnp.float32
        assert np.abs(a - b).mean() <= 0.05 * np.abs(a).mean()
