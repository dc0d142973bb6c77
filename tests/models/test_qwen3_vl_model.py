"""What must hold of the whole Qwen3-VL, without a reference implementation."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from tiny_model import IMAGE, join, pad
from tiny_qwen3_vl import encoder, frames, full_pass, make_tiny, piece

from turnwise_jax.models import io, sharding
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen3_vl import media_input
from turnwise_jax.models.safetensors import SINGLE

SLICES = 9
LENGTH = 40


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def run(tiny):
    return full_pass(tiny.graphdef)


@pytest.fixture(scope="module")
def media(tiny):
    """The features of nine frames."""
    return encoder(tiny.graphdef)(tiny.params, media_input(frames(SLICES), [], tiny.config))


@pytest.fixture(scope="module")
def dialogues(tiny):
    """Three dialogues of three turns: images, none, and videos of two lengths."""
    plan = [
        [[3, (0, 4), (1, 4)], [1], [(2, 4), 2]],
        [[6], [2], [3]],
        [[(3, 4, 2), 1], [4], [1, (5, 2, 3)]],
    ]
    rows = []
    for b, turns in enumerate(plan):
        start, pieces = 0, []
        for k, parts in enumerate(turns):
            one, start = piece(tiny.config, parts, slices=SLICES, start=start, seed=10 * b + k)
            pieces.append(one)
        rows.append(pieces)
    return rows


@pytest.fixture(scope="module")
def arrays(dialogues):
    return pad([join(row) for row in dialogues], LENGTH)


def test_turns_from_the_cache_equal_one_pass(tiny, run, media, dialogues, arrays):
    lengths = [sum(len(one.tokens) for one in row) for row in dialogues]
    whole = run(tiny.params, media, *arrays)

    @jax.jit
    def step(params, media, cache, tokens, positions, index, valid):
        model = nnx.merge(tiny.graphdef, params)
        rest = {"media": media, "media_index": index, "valid": valid}
        return model(tokens, positions, cache=cache, **rest)

    # The fullest row ends at the last slot, so the padding of its last turn runs past the end.
    cache = nnx.merge(tiny.graphdef, tiny.params).init_cache(3, max(lengths))
    found = [[] for _ in dialogues]
    for k in range(3):
        turn = [row[k] for row in dialogues]
        hidden, cache = step(tiny.params, media, cache, *pad(turn, 20))
        for b, one in enumerate(turn):
            found[b].append(np.asarray(hidden[b, : len(one.tokens)]))
    np.testing.assert_array_equal(cache.length, lengths)
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(np.concatenate(found[b]), whole[b, :n], atol=1e-4, rtol=0)


@pytest.mark.parametrize("level", [0, 1])
def test_every_deep_level_reaches_the_states_behind_its_tokens(tiny, run, media, arrays, level):
    """Without one level, states change from the first picture on, and in no row without any."""
    _, _, index, valid = arrays
    dropped = media._replace(deep=media.deep.at[level].set(0))
    before, after = (run(tiny.params, m, *arrays) for m in (media, dropped))
    moved = np.abs(after - before).max(axis=-1)
    for b in (0, 2):
        start = int(np.argmax(index[b] >= 0))
        assert (moved[b, :start] == 0).all()
        assert moved[b, start] > 1e-2
        assert (moved[b, start:][valid[b, start:]] > 1e-6).all()
    assert (moved[1] == 0).all()


def test_a_deep_level_is_added_behind_its_layer_at_its_own_tokens(tiny, arrays):
    """Without the first level, what enters layer 1 lacks exactly its features."""
    tokens, positions, index, valid = arrays
    media = media_input(frames(SLICES), [], tiny.config)

    @jax.jit
    def inputs(params):
        model = nnx.merge(tiny.graphdef, params)
        return model.layer_inputs(tokens, positions, media=media, media_index=index, valid=valid)

    silent = jax.tree.map(np.copy, tiny.params)
    for leaf in jax.tree.leaves(silent["vision"]["deep"]["fc2"]):
        leaf[0] = 0
    with_level, without = inputs(tiny.params), inputs(silent)
    features = np.asarray(with_level["deep"][0])
    assert (without["deep"][0] == 0).all()
    moved = np.asarray(with_level["text"] - without["text"])
    assert (moved[0] == 0).all()
    expected = np.where((index >= 0)[..., None], features[np.maximum(index, 0)], 0)
    np.testing.assert_allclose(moved[1], expected, atol=1e-5)


def test_a_row_depends_on_nothing_but_itself(tiny, run, media, arrays):
    """Neighbours, padding's token and padding's place are all nothing to a row."""
    tokens, positions, index, valid = arrays
    base = run(tiny.params, media, *arrays)
    other = np.where(valid, tokens, 55)
    other[1] = (tokens[1] + 7) % IMAGE
    found = run(tiny.params, media, other, positions, index, valid)
    for b in (0, 2):
        np.testing.assert_array_equal(found[b][valid[b]], base[b][valid[b]])
    assert np.abs(found[1] - base[1])[valid[1]].max() > 1e-2
    shift = LENGTH - valid.sum(axis=1)
    rolled = [
        np.stack([np.roll(row, n, -1) for row, n in zip(a, shift, strict=True)]) for a in arrays
    ]
    left = run(tiny.params, media, *rolled)
    assert np.isfinite(left).all()
    for b, n in enumerate(shift):
        np.testing.assert_allclose(left[b, n:], base[b, : LENGTH - n], atol=1e-5, rtol=0)


def test_pictures_follow_their_rows(tiny, run, media, arrays):
    """Rows permuted, and features moved within the batch, change nothing."""
    tokens, positions, index, valid = arrays
    base = run(tiny.params, media, *arrays)
    order = np.array([2, 0, 1])
    moved = run(tiny.params, media, *(array[order] for array in arrays))
    np.testing.assert_allclose(moved[valid[order]], base[order][valid[order]], atol=1e-5, rtol=0)
    place = np.random.default_rng(0).permutation(SLICES)
    rows = (place[:, None] * 4 + np.arange(4)[None]).reshape(-1)
    back = np.argsort(rows)
    shifted = media._replace(features=media.features[back], deep=media.deep[:, back])
    again = run(
        tiny.params, shifted, tokens, positions, np.where(index >= 0, rows[index], -1), valid
    )
    np.testing.assert_allclose(again[valid], base[valid], atol=1e-5, rtol=0)


def test_query_and_key_norms_are_used(tiny, run, media, arrays):
    """Scaling a projection that is normalised behind it changes nothing; the norm's scale does."""
    base = run(tiny.params, media, *arrays)
    valid = arrays[-1]
    for part in ("q", "k"):
        scaled = jax.tree.map(np.copy, tiny.params)
        layers = scaled["text"]["decoder"]["layers"]
        layers[part]["kernel"][...] = 3 * layers[part]["kernel"][...]
        found = run(scaled, media, *arrays)
        np.testing.assert_allclose(found[valid], base[valid], atol=1e-4, rtol=0)
        layers[f"{part}_norm"]["scale"][...] = 3 * layers[f"{part}_norm"]["scale"][...]
        assert np.abs(run(scaled, media, *arrays) - base)[valid].max() > 1e-2


def test_a_sharded_pass_equals_the_plain_one(tiny):
    """Slices and rows over four devices, heads and deep features over two."""
    kinds = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=kinds)
    rows = [piece(tiny.config, [2, (b, 4), 3], slices=8, seed=b)[0] for b in range(8)]
    batch = (media_input(frames(8), [], tiny.config), *pad(rows, 11))

    @jax.jit
    def whole(params, media, tokens, positions, index, valid):
        model = nnx.merge(tiny.graphdef, params)
        rest = {"media": model.encode_media(media), "media_index": index, "valid": valid}
        return model(tokens, positions, **rest)[0]

    plain = whole(tiny.params, *batch)
    params = jax.device_put(tiny.params, sharding.param_shardings(tiny.params, mesh, tiny.config))
    split = jax.device_put(batch, jax.sharding.NamedSharding(mesh, sharding.BATCH))
    np.testing.assert_allclose(whole(params, *split), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_round_trip(tmp_path, tied):
    tiny = make_tiny(tie_word_embeddings=tied)
    io.save(tmp_path, tiny.graphdef, tiny.params)
    graphdef, params, config = io.load(tmp_path)
    assert (config, graphdef) == (tiny.config, tiny.graphdef)
    for path, leaf in named(params).items():
        np.testing.assert_array_equal(leaf, named(tiny.params)[path], err_msg="/".join(path))
        assert len(sharding.logical_axes(path)) == leaf.ndim
    content = safetensors.numpy.load_file(tmp_path / SINGLE)
    assert ("lm_head.weight" in content) != tied
    assert content["model.visual.deepstack_merger_list.1.norm.weight"].shape == (256,)
    np.testing.assert_array_equal(
        content["model.language_model.layers.1.self_attn.q_norm.weight"],
        named(tiny.params)["text", "decoder", "layers", "q_norm", "scale"][1],
    )
