"""Qwen3-VL's positions by hand, and the carry from piece to piece. (transformers: tests/parity.)"""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import IMAGE, VIDEO, Span
from tiny_qwen3_vl import tiny_config

from turnwise_jax.errors import InputError
from turnwise_jax.models.qwen3_vl import PUBLISHED, Config, positions
from turnwise_jax.models.rope import interleaved_axes


@pytest.fixture(scope="module")
def config():
    return tiny_config()


def run(start, h, w, kind="image", rows=1):
    return Span(start, (rows, h, w), kind, None, 0)


def test_every_row_of_a_video_stands_behind_its_own_time(config):
    """Two timestamped rows: text moves on by the grid's longer side, never by the frame rate."""
    tokens = [1, 2, *[VIDEO] * 6, 3, 4, *[VIDEO] * 6, 5]
    spans = [run(2, 4, 6, "video"), run(10, 4, 6, "video")]
    found, after = positions(tokens, spans, config)
    expected = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 7, 7, 7, 7, 7, 10],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 7, 7, 8, 8, 8, 10],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 9, 10],
    ]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int32
    assert after == 11


def test_pieces_carried_one_by_one_equal_the_joined_sequence(config):
    pieces = [
        ([1, 2, *[IMAGE] * 4, 3], [run(2, 4, 4)]),
        ([7, 8], []),
        ([5, *[VIDEO] * 8, 9, *[VIDEO] * 8], [run(1, 4, 8, "video"), run(10, 4, 8, "video")]),
        ([], []),
        ([*[IMAGE] * 6, 5], [run(0, 6, 4)]),
    ]
    tokens, spans, parts, start = [], [], [], 0
    for ids, own in pieces:
        found, after = positions(ids, own, config)
        parts.append(found + start)
        start += after
        spans += [s._replace(start=s.start + len(tokens)) for s in own]
        tokens += ids
    joined, after = positions(tokens, spans, config)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), joined)
    assert after == start


@pytest.mark.parametrize(
    ("tokens", "spans", "message"),
    [
        ([VIDEO] * 8, [run(0, 4, 4, "video", rows=2)], "2 temporal rows, each row is its own run"),
        ([IMAGE] * 4, [run(1, 4, 4)], "leave the piece"),
        ([IMAGE] * 6, [run(0, 4, 4), run(2, 4, 4)], "overlap"),
        ([IMAGE] * 4, [run(0, 4, 4, "video")], "not all the video placeholder"),
        ([9], [run(0, 1, 1, "audio")], "are audio, which the model cannot take"),
    ],
)
def test_spans_that_do_not_match_are_refused(config, tokens, spans, message):
    with pytest.raises(InputError, match=message):
        positions(tokens, spans, config)


def test_axes_alternate_over_the_frequencies():
    np.testing.assert_array_equal(interleaved_axes((4, 2, 2)), [0, 1, 2, 0, 1, 2, 0, 0])
    published = Config.from_hf(PUBLISHED["4b"]).text.rope_axes
    np.testing.assert_array_equal(published, [0, 1, 2] * 20 + [0] * 4)
