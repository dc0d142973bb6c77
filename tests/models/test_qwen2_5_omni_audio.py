"""The audio tower on its own: padding, neighbours, lengths, and its parts in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import erf
from tiny_qwen2_5_omni import BINS, FRAMES, TOKENS, encoder, make_tiny, sounds

from turnwise_jax.errors import InputError
from turnwise_jax.models.params import named
from turnwise_jax.models.qwen2_5_omni import media_input

LENGTHS = [16, 1, 2, 3, 4, 5, 6, 7, 9, 13, 15]


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def encode(tiny):
    """Features ``[C, A, D]`` of an audio input, always of twelve slices."""
    run = encoder(tiny.graphdef)

    def features(media):
        return np.asarray(run(tiny.params, media).features).reshape(12, TOKENS, -1)

    return features


@pytest.fixture(scope="module")
def slices():
    return [sounds(1, seed=n, length=n)[0] for n in LENGTHS]


def tokens(frames):
    """Tokens of a slice: halved, rounded up, by a convolution; halved, rounded down, by pooling."""
    return math.ceil(frames / 2) // 2


def tower(params, sound):
    """One slice of exactly its own length, in float64, written as sums over places."""
    p = {"/".join(path): np.asarray(v, np.float64) for path, v in named(params).items()}

    def gelu(x):
        return x * (1 + erf(x / 2**0.5)) / 2

    def norm(x, name, i=None):
        scale, bias = (p[f"audio/{name}/{n}"] for n in ("scale", "bias"))
        scale, bias = (scale, bias) if i is None else (scale[i], bias[i])
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * (
            scale
        ) + bias

    def conv(x, name, stride):
        kernel = p[f"audio/{name}/taps/kernel"].reshape(x.shape[1], 3, -1)
        out = []
        for t in range(0, len(x), stride):
            near = [k for k in range(3) if 0 <= t + k - 1 < len(x)]
            out.append(sum(x[t + k - 1] @ kernel[:, k] for k in near))
        return gelu(np.array(out) + p[f"audio/{name}/taps/bias"])

    def linear(x, name, i):
        bias = p.get(f"audio/blocks/{name}/bias")
        return x @ p[f"audio/blocks/{name}/kernel"][i] + (0 if bias is None else bias[i])

    x = conv(conv(sound.T.astype(np.float64), "conv1", 1), "conv2", 2)
    rates = 10000.0 ** (-np.arange(32) / 31)
    angle = np.arange(len(x))[:, None] * rates
    x = x + np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    for i in range(2):
        y = norm(x, "blocks/norm1", i)
        q, k, v = (linear(y, name, i).reshape(len(x), 2, 32) for name in "qkv")
        score = np.einsum("qhc,khc->hqk", q, k) / 32**0.5
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khc->qhc", weight, v).reshape(len(x), -1), "out", i)
        x = x + linear(gelu(linear(norm(x, "blocks/norm2", i), "fc1", i)), "fc2", i)
    pairs = x[: len(x) // 2 * 2].reshape(-1, 2, 64).mean(axis=1)
    return norm(pairs, "norm") @ p["audio/proj/kernel"] + p["audio/proj/bias"]


def test_every_length_equals_the_tower_written_out(tiny, encode, slices):
    """Short slices, odd ones too, in a padded batch: as if each stood alone, unpadded."""
    found = encode(media_input([], slices, tiny.config, num_sounds=12))
    for own, sound in zip(found, slices, strict=False):
        expected = tower(tiny.params, sound)
        assert len(expected) == tokens(sound.shape[1])
        np.testing.assert_allclose(own[: len(expected)], expected, atol=2e-5, rtol=0)


def test_what_lies_behind_a_slice_changes_nothing(tiny, encode, slices):
    """Not even noise in the padding reaches a token; a slice's last frame does."""
    media = media_input([], slices, tiny.config, num_sounds=12)
    base = encode(media)
    noise = np.random.default_rng(0).normal(size=media.audio.mel.shape).astype(np.float32)
    inside = np.arange(FRAMES)[None] < media.audio.frames[:, None] + 1  # the convolution's reach
    noisy = np.where(inside[..., None], media.audio.mel, noise)
    found = encode(media._replace(audio=media.audio._replace(mel=noisy)))
    for c, n in enumerate(LENGTHS):
        np.testing.assert_array_equal(found[c, : tokens(n)], base[c, : tokens(n)])
    last = media.audio.mel.copy()
    last[0, FRAMES - 1] += 1
    heard = encode(media._replace(audio=media.audio._replace(mel=last)))
    assert np.abs(heard[0] - base[0]).max(axis=-1).min() > 1e-4
    np.testing.assert_array_equal(heard[1:], base[1:])


def test_slices_do_not_see_each_other(tiny, encode, slices):
    base = encode(media_input([], slices, tiny.config, num_sounds=12))
    order = np.random.default_rng(0).permutation(len(slices))
    moved = encode(media_input([], [slices[i] for i in order], tiny.config, num_sounds=12))
    for place, i in enumerate(order):
        own = tokens(LENGTHS[i])
        np.testing.assert_allclose(moved[place, :own], base[i, :own], atol=1e-6)
    assert np.isfinite(base).all()  # an empty slice too


@pytest.mark.parametrize(
    ("given", "count", "message"),
    [
        (sounds(2), 1, "2 audio slices, the batch holds 1"),
        (sounds(1, length=FRAMES + 1), None, r"expected float32 \(12, 1 to 16\)"),
        ([np.zeros((BINS, 0), np.float32)], None, "is float32"),
        ([np.zeros((BINS + 1, 4), np.float32)], None, r"\(13, 4\)"),
        ([np.zeros((BINS, 4))], None, "is float64"),
        ([np.zeros(4, np.float32)], None, r"\(4,\)"),
    ],
)
def test_sound_of_another_shape_is_refused(tiny, given, count, message):
    with pytest.raises(InputError, match=message):
        media_input([], given, tiny.config, num_sounds=count)
