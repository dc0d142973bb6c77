"""The vision tower's layout and attention, against a loop over patches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_model import VOCAB, frames, images, make_tiny

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import MediaInput
from turnwise_jax.models.patches import normalise
from turnwise_jax.models.qwen2_5_vl import Config, Slots, slots_for, vision_input


@pytest.fixture(scope="module")
def encode(tiny):
    return encoder(tiny.graphdef)


def encoder(graphdef):
    @jax.jit
    def run(params, vision):
        return nnx.merge(graphdef, params).encode_media(MediaInput(vision)).features

    return run


def published(window: int = 112) -> Config:
    """Patch and window sizes of the published models."""
    return Config.tiny(VOCAB, vision_window_size=window)


@pytest.mark.parametrize(
    ("grid", "window", "expected"),
    [
        ((4, 4), 56, Slots(1, 16, 4)),
        ((4, 4), 112, Slots(1, 16, 4)),  # smaller than a window: no more slots than patches
        ((16, 16), 112, Slots(4, 64, 64)),
        ((16, 8), 112, Slots(2, 64, 32)),
        ((10, 6), 112, Slots(2, 48, 15)),  # 5 x 3 tokens in windows of 4 x 4: 12 and 3
    ],
)
def test_slices_of_one_size_cost_only_window_rounding(grid, window, expected):
    assert slots_for([grid] * 3, published(window)) == expected


def test_every_patch_has_one_slot_and_its_window(tiny):
    """A 10 x 6 grid in windows of 2 x 2 tokens: checked patch by patch."""
    (values, grid), config = frames(1, grid=(10, 6))[0], tiny.config
    vision = vision_input([(values, grid)], config, num_slices=2)
    merge, window = 2, config.vision.window
    found = {}
    for nw, p in zip(*np.nonzero(vision.valid[0]), strict=True):
        row, column = vision.hw[0, nw, p]
        found[row, column] = nw
        token = (row // merge) * (grid[1] // merge) + column // merge
        patch = token * merge**2 + (row % merge) * merge + column % merge
        np.testing.assert_array_equal(vision.patches[0, nw, p], values[patch])
        slot = nw * vision.valid.shape[2] + p
        assert vision.tokens[0, token] == slot // merge**2
    assert len(found) == 60
    columns = -(-grid[1] // (merge * window))
    for (row, column), nw in found.items():
        assert nw == (row // (merge * window)) * columns + column // (merge * window)
    assert not vision.valid[1].any()


def test_features_do_not_depend_on_room_or_neighbours(tiny, encode):
    config = tiny.config
    mixed = [frames(1, grid=g, seed=g[0])[0] for g in ((4, 4), (10, 6), (2, 14), (6, 6))]
    sizes = [h * w // 4 for _, (h, w) in mixed]
    vision = vision_input(mixed, config, num_slices=6)
    together = encode(tiny.params, vision).reshape(6, vision.tokens.shape[1], -1)
    assert np.isfinite(together).all()
    for s, (one, count) in enumerate(zip(mixed, sizes, strict=True)):
        alone = encode(tiny.params, vision_input([one], config))
        np.testing.assert_allclose(together[s, :count], alone, atol=2e-5, rtol=0)


def test_fixed_room_gives_one_shape(tiny, encode):
    config = tiny.config
    room = slots_for([(4, 4), (6, 8)], config)
    shapes = set()
    for grid in ((4, 4), (6, 8), (6, 4)):
        vision = vision_input(frames(2, grid=grid), config, slots=room, num_slices=3)
        shapes.add(tuple(x.shape for x in vision))
    assert len(shapes) == 1
    assert vision.tokens.shape[1] == 12


def test_windows_see_only_themselves_until_full_attention(tiny):
    """With no full-attention block a patch moves its own window's tokens; with one, all of them."""
    slices = frames(1, grid=(8, 8))
    changed = [(slices[0][0].copy(), (8, 8))]
    changed[0][0][0] ^= 255
    for full, reach in (((), 4), ((1,), 16)):
        tiny = make_tiny(vision_fullatt_block_indexes=full)
        encode = encoder(tiny.graphdef)
        before, after = (encode(tiny.params, images(tiny.config, s)) for s in (slices, changed))
        moved = np.abs(after - before).max(axis=-1) > 1e-6
        assert moved.sum() == reach
        # Merged tokens (0, 0), (0, 1), (1, 0), (1, 1) of a 4 x 4 token grid form the first window.
        assert moved[[0, 1, 4, 5]].all()


def test_window_pattern_decides_each_layer():
    deep = {"vision_depth": 4}
    features = []
    for full in ((1,), (2,), (1, 3)):
        tiny = make_tiny(vision_fullatt_block_indexes=full, **deep)
        vision = images(tiny.config, frames(1, grid=(8, 8)))
        features.append(np.asarray(encoder(tiny.graphdef)(tiny.params, vision)))
    assert np.abs(features[0] - features[1]).max() > 1e-5
    assert np.abs(features[0] - features[2]).max() > 1e-5


def test_pixels_are_normalised_with_the_configured_statistics(tiny):
    """Another mean and deviation, with pixels moved to match, give the same features."""
    config = tiny.config
    slices = frames(2)
    grey = [(np.full_like(values, 128), grid) for values, grid in slices]
    mean, std = (128 / 255,) * 3, (0.5, 0.5, 0.5)
    neutral = make_tiny(image_mean=mean, image_std=std)
    assert neutral.config.image_mean == mean
    patch = nnx.merge(neutral.graphdef, neutral.params).vision.patch
    values = normalise(images(neutral.config, grey).patches, neutral.config, "float32")
    np.testing.assert_allclose(values, 0.0, atol=1e-6)
    assert patch(values).shape[-1] == config.vision.hidden_size
    rgb = np.zeros((16, 3, 392), np.uint8)
    rgb[:, 0], rgb[:, 2] = 255, 51
    patches = images(config, [(rgb.reshape(16, 1176), (4, 4))]).patches
    values = normalise(patches, config, "float32")
    expected = [
        (v - m) / s
        for v, m, s in zip((1, 0, 0.2), config.image_mean, config.image_std, strict=True)
    ]
    np.testing.assert_allclose(
        np.asarray(values).reshape(16, 3, 392)[:, :, 0],
        np.tile(expected, (16, 1)),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (4, 3)}, "not a whole number of 2 x 2 tokens"),
        ({"grid": (0, 4)}, "not a whole number of 2 x 2 tokens"),
        ({"values": np.zeros((16, 1175), np.uint8)}, "expected uint8"),
        ({"values": np.zeros((16, 1176), np.float32)}, "expected uint8"),
        ({"slots": Slots(1, 8, 4)}, "does not fit"),
        ({"num_slices": 0}, "the batch holds 0"),
    ],
)
def test_slices_that_do_not_fit_are_refused(tiny, change, message):
    values, grid = frames(1)[0]
    slices = [(change.get("values", values), change.get("grid", grid))]
    rest = {name: change[name] for name in ("slots", "num_slices") if name in change}
    with pytest.raises(InputError, match=message):
        vision_input(slices, tiny.config, **rest)


def test_a_batch_without_slices_is_one_empty_slice(tiny, encode):
    vision = vision_input([], tiny.config)
    assert vision.patches.shape == (1, 1, 4, 1176)
    assert not vision.valid.any()
    assert np.isfinite(encode(tiny.params, vision)).all()


def test_the_tower_computes_in_the_configured_dtype():
    half = make_tiny(dtype="bfloat16")
    vision = images(half.config, frames(1))
    assert encoder(half.graphdef)(half.params, vision).dtype == jnp.bfloat16
