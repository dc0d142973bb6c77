"""What must hold of the whole Qwen2.5-Omni thinker, without a reference implementation."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from tiny_model import IMAGE, join, pad
from tiny_qwen2_5_omni import Heard, Seen, encoder, frames, full_pass, make_tiny, piece, sounds

from turnwise_jax.errors import InputError
from turnwise_jax.models import io, sharding
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen2_5_omni import media_input, weights
from turnwise_jax.models.safetensors import SINGLE

SLICES, SOUNDS, LENGTH = 8, 8, 48


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def run(tiny):
    return full_pass(tiny.graphdef)


@pytest.fixture(scope="module")
def media(tiny):
    return media_input(frames(SLICES), sounds(SOUNDS), tiny.config)


@pytest.fixture(scope="module")
def dialogues(tiny):
    """Dialogues of three turns: pictures and sound, neither, videos with and without sound."""
    plan = [
        [[3, Seen(0), Heard(0, 6), 1], [1, Heard(2, 3)], [Seen(1), 2]],
        [[6], [2], [3]],
        [[(Seen(2, 3, 0.5), Heard(3, 7)), 1], [4], [1, Seen(5, 2, 1.0), Heard(5, 2), 3]],
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
        rest = {"media": model.encode_media(media), "media_index": index, "valid": valid}
        return model(tokens, positions, cache=cache, **rest)

    cache = nnx.merge(tiny.graphdef, tiny.params).init_cache(3, max(lengths))
    found = [[] for _ in dialogues]
    for k in range(3):
        turn = [row[k] for row in dialogues]
        hidden, cache = step(tiny.params, media, cache, *pad(turn, 28))
        for b, one in enumerate(turn):
            found[b].append(np.asarray(hidden[b, : len(one.tokens)]))
    np.testing.assert_array_equal(cache.length, lengths)
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(np.concatenate(found[b]), whole[b, :n], atol=1e-4, rtol=0)


def test_muting_is_heard_from_the_sound_on_and_in_no_other_row(tiny, run, media, arrays):
    """Each of a dialogue's sounds; silence is what an empty microphone gives, not a mask."""
    _, _, index, valid = arrays
    base = run(tiny.params, media, *arrays)
    for number, row in ((0, 0), (2, 0), (3, 2), (5, 2)):
        mel = media.audio.mel.copy()
        mel[number] = 0
        muted = media._replace(audio=media.audio._replace(mel=mel))
        moved = np.abs(run(tiny.params, muted, *arrays) - base).max(axis=-1)
        first = int(np.argmax(index[row] >= SLICES * 4 + number * 4))
        assert (moved[row, :first] == 0).all()
        assert moved[row, first] > 1e-2
        assert (moved[row, first:][valid[row, first:]] > 1e-6).all()
        assert (np.delete(moved, row, axis=0) == 0).all()


def test_a_row_depends_on_nothing_but_itself(tiny, run, media, arrays):
    tokens, positions, index, valid = arrays
    base = run(tiny.params, media, *arrays)
    other = np.where(valid, tokens, 55)
    other[1] = (tokens[1] + 7) % IMAGE
    found = run(tiny.params, media, other, positions, index, valid)
    for b in (0, 2):
        np.testing.assert_array_equal(found[b][valid[b]], base[b][valid[b]])
    assert np.abs(found[1] - base[1])[valid[1]].max() > 1e-2
    order = np.array([2, 0, 1])
    moved = run(tiny.params, media, *(array[order] for array in arrays))
    np.testing.assert_allclose(moved[valid[order]], base[order][valid[order]], atol=1e-5, rtol=0)


def test_either_kind_may_be_missing(tiny, media):
    """Vision rows come first; a batch without one kind has the other's features alone."""
    encode = encoder(tiny.graphdef)
    both = encode(tiny.params, media).features
    seen = media_input(frames(SLICES), [], tiny.config)
    heard = media_input([], sounds(SOUNDS), tiny.config, num_slices=0)
    assert seen.audio is None
    assert heard.vision is None
    np.testing.assert_allclose(encode(tiny.params, seen).features, both[: SLICES * 4], atol=1e-5)
    np.testing.assert_allclose(encode(tiny.params, heard).features, both[SLICES * 4 :], atol=1e-5)
    empty = media_input([], [], tiny.config, num_slices=2, num_sounds=3)
    assert np.isfinite(encode(tiny.params, empty).features).all()


def test_a_sharded_pass_equals_the_plain_one(tiny, run):
    """Slices, sounds and rows over four devices, heads over two."""
    kinds = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=kinds)
    rows = [piece(tiny.config, [2, Seen(b), Heard(b, 4), 3], slices=8, seed=b)[0] for b in range(8)]
    batch = (media_input(frames(8), sounds(8), tiny.config), *pad(rows, 17))
    plain = run(tiny.params, *batch)
    params = jax.device_put(tiny.params, sharding.param_shardings(tiny.params, mesh, tiny.config))
    split = jax.device_put(batch, jax.sharding.NamedSharding(mesh, sharding.BATCH))
    np.testing.assert_allclose(run(params, *split), plain, atol=1e-5, rtol=0)


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
    assert content["thinker.audio_tower.conv2.weight"].shape == (64, 64, 3)
    assert content["thinker.visual.blocks.1.attn.k.weight"].shape == (64, 64)
    assert (weights.HEAD in content) != tied


def test_a_thinker_alone_is_read_and_what_is_missing_is_named(tmp_path):
    """Both spellings of a thinker's own directory; the talker's tensors are nobody's."""
    tiny = make_tiny()
    io.save(tmp_path, tiny.graphdef, tiny.params)
    content = safetensors.numpy.load_file(tmp_path / SINGLE)
    raw = json.loads((tmp_path / "config.json").read_text())

    def load(rename, **more):
        own = tmp_path / "own"
        own.mkdir(exist_ok=True)
        stored = {rename(name): value for name, value in content.items()} | more
        safetensors.numpy.save_file(stored, own / SINGLE)
        (own / "config.json").write_text(json.dumps(raw["thinker_config"]))
        return io.load(own)

    def bare(name):
        return name.removeprefix("thinker.")

    def modern(name):
        name = bare(name).replace("model.", "model.language_model.")
        towers = name.startswith(("visual.", "audio_tower."))
        return f"model.{name}" if towers else name

    for rename in (bare, modern):
        _, params, config = load(rename, **{"talker.thinker_to_talker_proj.bias": np.zeros(3)})
        assert config == tiny.config
        for path, leaf in named(params).items():
            np.testing.assert_array_equal(leaf, named(tiny.params)[path])
    with pytest.raises(InputError, match="unexpected tensor") as info:
        load(bare, **{"audio_tower.extra": np.zeros(3, np.float32)})
    assert info.value.field == "audio_tower.extra"
    del content["thinker.audio_tower.ln_post.bias"]
    with pytest.raises(InputError, match="missing") as info:
        load(bare)
    assert info.value.field == "thinker.audio_tower.ln_post.bias"
