"""Qwen3-VL's vision tower: layout, interpolated positions, and features at several depths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_qwen3_vl import PATCH, encoder, frames, make_tiny, tiny_config

from turnwise_jax.errors import InputError
from turnwise_jax.models import io
from turnwise_jax.models.media import MediaInput
from turnwise_jax.models.params import named, replaced
from turnwise_jax.models.qwen3_vl import Slots, media_input, slots_for


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def encode(tiny):
    return encoder(tiny.graphdef)


def patch_at(row, column, width):
    """Number of a patch in merge-grouped raster order."""
    token = row // 2 * (width // 2) + column // 2
    return 4 * token + row % 2 * 2 + column % 2


def test_room_is_the_largest_slice():
    assert slots_for([(4, 4), (2, 10), (6, 4)], tiny_config()) == Slots(24, 6)
    assert slots_for([], tiny_config()) == Slots(4, 1)


def test_patches_keep_their_order_and_know_their_place(tiny):
    values, grid = frames(1, grid=(4, 6))[0]
    vision = media_input([(values, grid)], [], tiny.config, slots=Slots(32, 8), num_slices=2).vision
    np.testing.assert_array_equal(vision.valid.sum(axis=1), [24, 0])
    for row, column in np.ndindex(grid):
        patch = patch_at(row, column, grid[1])
        np.testing.assert_array_equal(vision.hw[0, patch], [row, column])
        np.testing.assert_array_equal(vision.patches[0, patch], values[patch])


@pytest.mark.parametrize("grid", [(2, 2), (4, 6), (6, 6), (2, 16), (14, 4)])
def test_positions_are_interpolated_with_aligned_corners(tiny, grid):
    """Against straight lines through the table's rows, then its columns, in float64."""
    side = tiny.config.vision.position_side
    table = np.random.default_rng(0).normal(size=(side, side, 3))
    at = [np.linspace(0, side - 1, n) for n in grid]
    rows = np.stack(
        [[np.interp(at[0], np.arange(side), table[:, j, c]) for c in range(3)] for j in range(side)]
    )
    expected = np.stack(
        [
            [np.interp(at[1], np.arange(side), rows[:, c, i]) for c in range(3)]
            for i in range(grid[0])
        ]
    )
    vision = media_input(frames(1, grid=grid), [], tiny.config).vision
    found = (table.reshape(-1, 3)[vision.corners[0]] * vision.weights[0][..., None]).sum(axis=1)
    for row, column in np.ndindex(grid):
        patch = patch_at(row, column, grid[1])
        np.testing.assert_allclose(found[patch], expected[row, :, column], atol=2e-6)
    corner = patch_at(grid[0] - 1, grid[1] - 1, grid[1])
    np.testing.assert_allclose(found[corner], table[-1, -1], atol=2e-6)


def test_features_do_not_depend_on_room_or_neighbours(tiny, encode):
    config = tiny.config
    mixed = [frames(1, grid=g, seed=g[0])[0] for g in ((4, 4), (10, 6), (2, 14))]
    sizes = [h * w // 4 for _, (h, w) in mixed]
    room = slots_for([(10, 6)], config)
    together = encode(tiny.params, media_input(mixed, [], config, slots=room, num_slices=4))
    assert np.isfinite(together.features).all()
    for s, (one, count) in enumerate(zip(mixed, sizes, strict=True)):
        alone = encode(tiny.params, media_input([one], [], config))
        for ours, own in (
            (together.features[None], alone.features[None]),
            (together.deep, alone.deep),
        ):
            ours = ours.reshape(len(ours), 4, room.tokens, -1)[:, s, :count]
            np.testing.assert_allclose(ours, own, atol=2e-5, rtol=0)


def test_a_block_reaches_only_the_taps_behind_it(tiny, encode):
    """Taps are behind blocks 0 and 2: a change of block b leaves the taps before it alone."""
    media = media_input(frames(2), [], tiny.config)
    before = encode(tiny.params, media)
    assert before.deep.shape == (2, 8, tiny.config.text.hidden_size)
    for block, moved in ((0, [True, True]), (1, [False, True]), (2, [False, True])):
        leaves = dict(named(tiny.params))
        path = ("vision", "blocks", "proj", "bias")
        leaves[path] = leaves[path].copy()
        leaves[path][block, 0] += 1
        after = encode(replaced(tiny.params, leaves), media)
        changed = np.abs(after.deep - before.deep).max(axis=(1, 2)) > 1e-3
        np.testing.assert_array_equal(changed, moved)
        assert np.abs(after.features - before.features).max() > 1e-3


def test_pixels_are_normalised_with_the_configured_statistics():
    """Middle grey is zero, so only the patch bias and the learned position are left."""
    tiny = make_tiny(image_mean=(128 / 255,) * 3)
    model = nnx.merge(tiny.graphdef, tiny.params)
    grey = [(np.full((4, PATCH), 128, np.uint8), (2, 2))]
    media = media_input(grey, [], tiny.config)
    blocks = model.vision(media.vision, every_layer=True).blocks
    side, patch = tiny.config.vision.position_side, model.vision.patch
    table = model.vision.positions.embedding[...]
    corners = jnp.asarray([0, side - 1, side * (side - 1), side**2 - 1])
    np.testing.assert_allclose(blocks[0, 0], patch.bias[...][None] + table[corners], atol=1e-5)


def test_every_parameter_has_a_gradient_with_and_without_rematerialisation(tiny):
    media = media_input(frames(2, grid=(4, 6)), [], tiny.config)
    found = []
    for remat in ("none", "full"):
        graphdef, _ = io.build(tiny.config, remat=remat)

        def loss(params, graphdef=graphdef):
            encoded = nnx.merge(graphdef, params).encode_media(media)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in encoded)

        found.append(named(jax.jit(jax.grad(loss))(tiny.params)["vision"]))
    for path, leaf in found[0].items():
        assert np.abs(leaf).max() > 0, path
        np.testing.assert_allclose(
            found[1][path], leaf, atol=1e-5 * float(np.abs(leaf).max() + 1), rtol=0
        )


def test_program_size_does_not_grow_with_depth():
    def size(depth):
        config = tiny_config(vision_depth=depth, vision_deepstack_visual_indexes=(0, 1))
        graphdef, params = io.build(config)
        media = media_input(frames(1), [], config)
        return len(encoder(graphdef).lower(params, media).as_text().splitlines())

    assert size(8) == size(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (4, 3)}, "not a whole number of 2 x 2 tokens"),
        ({"values": np.zeros((16, 1176), np.uint8)}, "expected uint8"),
        ({"values": np.zeros((16, PATCH), np.float32)}, "expected uint8"),
        ({"slots": Slots(8, 2)}, "a 4 x 4 grid does not fit in 8 patches"),
        ({"num_slices": 0}, "the batch holds 0"),
        ({"sounds": [np.zeros((128, 200), np.float32)]}, "qwen3_vl has no audio tower"),
        ({"num_sounds": 2}, "qwen3_vl has no audio tower"),
    ],
)
def test_media_that_do_not_fit_are_refused(tiny, change, message):
    values, grid = frames(1)[0]
    slices = [(change.get("values", values), change.get("grid", grid))]
    rest = {k: change[k] for k in ("slots", "num_slices", "num_sounds") if k in change}
    with pytest.raises(InputError, match=message):
        media_input(slices, change.get("sounds", []), tiny.config, **rest)


def test_a_batch_without_slices(tiny, encode):
    assert media_input([], [], tiny.config, num_slices=0) == MediaInput()
    empty = media_input([], [], tiny.config)
    assert not empty.vision.valid.any()
    assert np.isfinite(encode(tiny.params, empty).features).all()


def test_the_tower_computes_in_the_configured_dtype():
    half = make_tiny(dtype="bfloat16")
    media = media_input(frames(1), [], half.config)
    encoded = jax.eval_shape(encoder(half.graphdef), half.params, media)
    assert encoded.features.dtype == encoded.deep.dtype == jnp.bfloat16
