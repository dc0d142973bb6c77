"""Image files of all sorts become the RGB pixels that a viewer shows."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from turnwise_jax.data.video import image_size, read_image
from turnwise_jax.errors import InputError

RGB = np.random.default_rng(0).integers(0, 256, (6, 9, 3)).astype(np.uint8)
GREY = RGB[..., 0]
ORIENTATION = 0x0112


def test_a_colour_file_comes_back_as_it_is(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), RGB)


def test_greys_become_three_equal_channels(tmp_path):
    want = np.repeat(GREY[..., None], 3, axis=-1)
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(GREY.astype(np.uint16) * 256 + 99).save(tmp_path / "deep.png")
    Image.fromarray(GREY > 127).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_image(tmp_path / "grey.png"), want)
    np.testing.assert_array_equal(read_image(tmp_path / "deep.png"), want)
    np.testing.assert_array_equal(read_image(tmp_path / "bits.png"), np.where(want > 127, 255, 0))


def test_transparency_is_dropped(tmp_path):
    alpha = np.arange(54, dtype=np.uint8).reshape(6, 9, 1)
    Image.fromarray(np.concatenate([RGB, alpha], axis=-1)).save(tmp_path / "a.png")
    Image.fromarray(np.concatenate([GREY[..., None], alpha], axis=-1)).save(tmp_path / "la.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), RGB)
    np.testing.assert_array_equal(read_image(tmp_path / "la.png")[..., 1], GREY)


@pytest.mark.parametrize("transparent", [None, 0, bytes(range(0, 250, 25))])
def test_palettes_are_looked_up(tmp_path, transparent):
    indices = np.random.default_rng(1).integers(0, 10, (6, 9)).astype(np.uint8)
    colours = np.random.default_rng(2).integers(0, 256, (256, 3)).astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette(colours.tobytes())
    extra = {} if transparent is None else {"transparency": transparent}
    image.save(tmp_path / "p.png", **extra)
    np.testing.assert_array_equal(read_image(tmp_path / "p.png"), colours[indices])


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What a viewer shows for the stored pixels, from the definition of the EXIF values."""
    return {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: np.rot90(pixels, -1),
        7: pixels[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(pixels, 1),
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(RGB).save(tmp_path / "a.png", exif=exif)
    want = turned(RGB, orientation)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), want)
    assert image_size(tmp_path / "a.png") == want.shape[:2]


def test_an_animation_gives_its_first_picture(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (read_image(tmp_path / "a.gif") == (255, 0, 0)).all()


def test_a_jpeg_decodes_the_same_every_time(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "a.jpg")
    np.testing.assert_array_equal(read_image(tmp_path / "a.jpg"), read_image(tmp_path / "a.jpg"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "the file is empty"),
        (b"hello", "not readable as an image"),
        ("cut", "not readable as an image"),
    ],
)
def test_a_file_that_is_no_image_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "a.jpg"
    if content == "cut":
        large = np.random.default_rng(0).integers(0, 256, (200, 200, 3)).astype(np.uint8)
        Image.fromarray(large).save(path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"hello"])
def test_no_size_without_an_image(tmp_path, content):
    if content is not None:
        (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(InputError, match=r"a.jpg: (no such file|the file is empty|not readable)"):
        image_size(tmp_path / "a.jpg")
