"""Positions by hand, and the carry from piece to piece. (transformers agrees: tests/parity.)"""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import IMAGE, VIDEO, Span

from turnwise_jax.errors import InputError
from turnwise_jax.models.media import FeatureRows, media_index
from turnwise_jax.models.qwen2_5_vl import positions
from turnwise_jax.models.rope import grid_table, multi_axis_table, rotate, section_axes


def image(start, h, w, slice=0):
    return Span(start, (1, h, w), "image", None, slice)


def video(start, t, h, w, seconds, slice=0):
    return Span(start, (t, h, w), "video", seconds, slice)


def test_image_between_text(tiny):
    tokens = [1, 2, *[IMAGE] * 6, 3, 4]
    found, after = positions(tokens, [image(2, 4, 6)], tiny.config)
    expected = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int32
    assert after == 7


@pytest.mark.parametrize(
    ("seconds", "times"),
    [
        (2.0, [0, 4, 8]),  # 1 fps, two frames a grid row, two positions a second
        (0.5, [0, 1, 2]),  # 4 fps
        (0.4, [0, 0, 1]),  # 0.8 positions a row, rounded down
        (None, [0, 2, 4]),
    ],
)
def test_frame_rate_spaces_the_rows_of_a_video(tiny, seconds, times):
    tokens = [1, *[VIDEO] * 12, 5]
    found, after = positions(tokens, [video(1, 3, 4, 4, seconds)], tiny.config)
    np.testing.assert_array_equal(found[0, 1:13], 1 + np.repeat(times, 4))
    np.testing.assert_array_equal(found[1, 1:13], 1 + np.tile([0, 0, 1, 1], 3))
    np.testing.assert_array_equal(found[2, 1:13], 1 + np.tile([0, 1, 0, 1], 3))
    np.testing.assert_array_equal(found[:, 13], [3, 3, 3])
    assert after == 4


def test_pieces_carried_one_by_one_equal_the_joined_sequence(tiny):
    pieces = [
        ([1, 2, *[IMAGE] * 4, 3], [image(2, 4, 4)]),
        ([7, 8], []),
        ([*[VIDEO] * 8, 9], [video(0, 2, 4, 4, 2.0)]),
        ([], []),
        ([5, *[IMAGE] * 2, *[IMAGE] * 6], [image(1, 2, 4), image(3, 6, 4)]),
    ]
    tokens, spans, parts, start = [], [], [], 0
    for ids, own in pieces:
        found, after = positions(ids, own, tiny.config)
        parts.append(found + start)
        start += after
        spans += [s._replace(start=s.start + len(tokens)) for s in own]
        tokens += ids
    joined, after = positions(tokens, spans, tiny.config)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), joined)
    assert after == start


@pytest.mark.parametrize(
    ("tokens", "spans", "message"),
    [
        ([IMAGE] * 4, [image(1, 4, 4)], "leave the piece"),
        ([IMAGE] * 6, [image(0, 4, 4), image(2, 4, 4)], "overlap"),
        ([IMAGE] * 3 + [1], [image(0, 4, 4)], "not all the image placeholder"),
        ([IMAGE] * 4, [video(0, 1, 4, 4, 1.0)], "not all the video placeholder"),
    ],
)
def test_spans_that_do_not_match_the_tokens_are_refused(tiny, tokens, spans, message):
    with pytest.raises(InputError, match=message):
        positions(tokens, spans, tiny.config)


def test_media_index_points_at_the_slices_rows():
    spans = [image(1, 4, 4, slice=2), video(6, 2, 2, 4, 1.0, slice=3)]
    found = media_index(11, spans, 2, FeatureRows(20, 6), first_slice=10)
    expected = [-1, 72, 73, 74, 75, -1, 78, 79, 84, 85, -1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("span", "message"),
    [(image(0, 4, 8), "8 tokens, the batch holds 6"), (image(8, 4, 4), "run past the 11 tokens")],
)
def test_media_index_refuses_what_does_not_fit(span, message):
    with pytest.raises(InputError, match=message):
        media_index(11, [span], 2, FeatureRows(20, 6))


def test_rotation_depends_on_relative_positions_of_the_right_axis():
    """A product of rotated vectors depends on distances only, each section on its own axis."""
    rng = np.random.default_rng(0)
    axes = section_axes((2, 3, 3))
    np.testing.assert_array_equal(axes, [0, 0, 1, 1, 1, 2, 2, 2])
    vectors = rng.normal(size=(1, 2, 1, 16)).astype(np.float32)

    def product(first, second):
        places = np.array([first, second]).T[None]
        turned = np.asarray(rotate(vectors, multi_axis_table(places, axes, 100.0)))
        return float((turned[0, 0, 0] * turned[0, 1, 0]).sum())

    base = product([3, 1, 4], [5, 9, 2])
    assert product([13, 21, 34], [15, 29, 32]) == pytest.approx(base, abs=1e-4)
    for axis in range(3):
        moved = [5, 9, 2]
        moved[axis] += 1
        assert abs(product([3, 1, 4], moved) - base) > 1e-3
    frequency = 100.0 ** (-np.arange(8) / 8)
    angle = frequency * (np.array([5, 9, 2]) - np.array([3, 1, 4]))[axes]
    a, b = vectors[0, :, 0].astype(np.float64)
    turn = np.exp(1j * angle)
    complex_a, complex_b = a[:8] + 1j * a[8:], b[:8] + 1j * b[8:]
    assert base == pytest.approx((complex_a.conj() * complex_b * turn).real.sum(), abs=1e-4)


def test_grid_rotation_uses_rows_then_columns():
    cos, sin = grid_table(np.array([[3, 5]]), 16)
    frequency = 10000.0 ** (-np.arange(4) / 4)
    angle = np.concatenate([3 * frequency, 5 * frequency])
    np.testing.assert_allclose(cos[0], np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(sin[0], np.sin(angle), atol=1e-6)
