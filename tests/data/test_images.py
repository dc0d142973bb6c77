"""Frame preprocessing against transformers' Pillow image processor."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import Qwen2VLImageProcessorPil

from turnwise_jax.data.images import FrameSpec, frame_grid, normalise, patchify, smart_resize
from turnwise_jax.errors import InputError

SMALL = FrameSpec(max_pixels=28 * 28 * 16)
SPECS = {
    "small": SMALL,
    "grow": FrameSpec(min_pixels=28 * 28 * 40, max_pixels=28 * 28 * 64),
    "qwen3": FrameSpec(patch_size=16, min_pixels=32 * 32 * 4, max_pixels=32 * 32 * 20),
    "tiny": FrameSpec(patch_size=4, min_pixels=64, max_pixels=64 * 24),
    "three": FrameSpec(6, 3, temporal_patch_size=3, min_pixels=18 * 18, max_pixels=18 * 18 * 12),
    "own": FrameSpec(
        max_pixels=28 * 28 * 9, image_mean=(0.5, 0.4, 0.3), image_std=(0.5, 0.25, 1.0), resample=2
    ),
}
ODD_SIZES = [
    (1, 1), (1, 200), (200, 1), (7, 13), (13, 7), (27, 29), (28, 28), (41, 43), (42, 42),
    (55, 57), (64, 48), (97, 101), (14, 2800), (2800, 14), (119, 333), (240, 320), (101, 479),
]  # fmt: skip


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise over a gradient: every rounding of the filter shows."""
    rng = np.random.default_rng(seed + 1000 * height + width)
    ramp = np.linspace(0, 160, height * width).reshape(height, width, 1)
    return (ramp + rng.integers(0, 96, (height, width, 3))).astype(np.uint8)


HWC = {"return_tensors": "np", "input_data_format": "channels_last"}


def reference(spec: FrameSpec, **changes) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        patch_size=spec.patch_size,
        merge_size=spec.merge_size,
        temporal_patch_size=spec.temporal_patch_size,
        size={"shortest_edge": spec.min_pixels, "longest_edge": spec.max_pixels},
        image_mean=list(spec.image_mean),
        image_std=list(spec.image_std),
        resample=spec.resample,
        **changes,
    )


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("size", ODD_SIZES, ids=str)
def test_patches_equal_the_reference(name, size):
    spec = SPECS[name]
    image = picture(*size)
    ours = patchify(image[None], spec)
    raw = reference(spec, do_rescale=False, do_normalize=False)(image, **HWC)
    assert ours.grid == tuple(raw["image_grid_thw"][0])
    assert ours.values.dtype == np.uint8
    np.testing.assert_array_equal(ours.values[0], raw["pixel_values"])
    full = reference(spec)(image, **HWC)["pixel_values"]
    got = normalise(ours.values, spec)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[0], full, rtol=0, atol=1e-6)


def test_the_resize_rule_equals_the_reference_on_a_thousand_sizes():
    rng = np.random.default_rng(0)
    processor = reference(FrameSpec())
    for height, width in rng.integers(1, 4000, (1000, 2)):
        if max(height, width) / min(height, width) > 200:
            continue
        h, w = smart_resize(int(height), int(width), FrameSpec())
        assert h % 28 == 0
        assert w % 28 == 0
        assert h // 14 * (w // 14) == processor.get_number_of_image_patches(height, width)


@pytest.mark.parametrize("size", [(1, 201), (4000, 19)])
def test_too_long_and_thin_is_refused_as_in_the_reference(size):
    with pytest.raises(InputError, match=f"{size[1]}x{size[0]} pixels is too long and thin"):
        smart_resize(*size, FrameSpec())
    with pytest.raises(ValueError, match="aspect ratio"):
        reference(FrameSpec()).get_number_of_image_patches(*size)


def test_several_images_are_slices_of_their_own():
    frames = np.stack([picture(50, 70, seed) for seed in range(3)])
    together = patchify(frames, SMALL)
    assert together.grid == (1, 4, 4)
    for slice_, frame in zip(together.values, frames, strict=True):
        np.testing.assert_array_equal(slice_, patchify(frame[None], SMALL).values[0])


def video_patches_by_index(frames: np.ndarray, spec: FrameSpec) -> np.ndarray:
    """The reference's video patch order, one patch at a time, from resized frames."""
    p, m, d = spec.patch_size, spec.merge_size, spec.temporal_patch_size
    frames = list(frames) + [frames[-1]] * (-len(frames) % d)
    rows, columns = frames[0].shape[0] // p, frames[0].shape[1] // p
    out = []
    for t in range(0, len(frames), d):
        for top in range(0, rows, m):
            for left in range(0, columns, m):
                for y in range(top, top + m):
                    for x in range(left, left + m):
                        cube = [f[y * p : y * p + p, x * p : x * p + p] for f in frames[t : t + d]]
                        out.append(np.stack(cube).transpose(3, 0, 1, 2).ravel())
    return np.stack(out).reshape(len(frames) // d, rows * columns, -1)


@pytest.mark.parametrize("name", ["small", "three"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_video_slices_hold_consecutive_frames_and_repeat_the_last(name, count):
    spec = SPECS[name]
    side = spec.factor
    frames = np.stack([picture(2 * side, 3 * side, seed) for seed in range(count)])
    got = patchify(frames, spec, video=True)
    depth = spec.temporal_patch_size
    assert got.grid == (-(-count // depth), 2 * spec.merge_size, 3 * spec.merge_size)
    np.testing.assert_array_equal(got.values, video_patches_by_index(frames, spec))


def test_a_video_of_one_repeated_frame_equals_the_image():
    frame = picture(60, 90)
    video = patchify(np.stack([frame] * 2), SMALL, video=True)
    np.testing.assert_array_equal(video.values, patchify(frame[None], SMALL).values)


@pytest.mark.parametrize(("frames", "video"), [(1, False), (1, True), (5, True)])
def test_the_grid_is_known_from_the_size(frames, video):
    clip = np.stack([picture(75, 131, seed) for seed in range(frames)])
    expected = patchify(clip, SMALL, video=video).grid
    assert frame_grid(75, 131, SMALL, frames=frames, video=video) == expected


def test_wrong_pixels_are_a_programming_error():
    with pytest.raises(TypeError, match="float32"):
        patchify(np.zeros((1, 8, 8, 3), np.float32), SMALL)


@pytest.mark.parametrize("name", SPECS)
def test_a_saved_spec_loads_here_and_in_transformers(name, tmp_path):
    spec = SPECS[name]
    spec.save(tmp_path)
    assert FrameSpec.from_pretrained(tmp_path) == spec
    image = picture(77, 103)
    values = Qwen2VLImageProcessorPil.from_pretrained(tmp_path)(image, **HWC)
    got = normalise(patchify(image[None], spec).values[0], spec)
    np.testing.assert_allclose(got, values["pixel_values"], rtol=0, atol=1e-6)


def test_all_three_forms_of_the_processor_file_are_read(tmp_path):
    size = {"shortest_edge": 3136, "longest_edge": 12544}
    forms = {
        "old": ("preprocessor_config.json", {"min_pixels": 3136, "max_pixels": 12544}),
        "new": ("preprocessor_config.json", {"size": size}),
        "nested": ("processor_config.json", {"image_processor": {"size": size}}),
    }
    for name, (file, content) in forms.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(json.dumps(content))
        assert FrameSpec.from_pretrained(tmp_path / name) == FrameSpec(max_pixels=12544)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no preprocessor_config.json"),
        ("{", "not readable as JSON"),
        ("[]", "no image processor settings"),
        ('{"do_resize": false}', "field 'do_resize': only true"),
        ('{"rescale_factor": 1.0}', "field 'rescale_factor': only 1/255"),
        ('{"patch_size": 0}', "field 'patch_size': must be a whole number"),
        ('{"min_pixels": 100, "max_pixels": 50}', "field 'min_pixels': 100 exceeds max_pixels 50"),
        ('{"image_mean": [0.5]}', "field 'image_mean': must be three"),
        ('{"image_std": [0, 1, 1]}', "field 'image_std': must be positive"),
        ('{"resample": 9}', "field 'resample': no such Pillow filter"),
    ],
)
def test_a_processor_file_that_cannot_be_used_is_one_clear_line(content, message, tmp_path):
    if content is not None:
        (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        FrameSpec.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
