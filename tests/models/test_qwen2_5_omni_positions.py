"""TMRoPE: pictures, videos and sound on one clock, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import IMAGE, VIDEO, Span
from tiny_qwen2_5_omni import AUDIO, AUDIO_END, AUDIO_START, VISION_END, VISION_START, tiny_config

from turnwise_jax.errors import InputError
from turnwise_jax.models.qwen2_5_omni import positions


@pytest.fixture(scope="module")
def config():
    """Eight positions a second."""
    return tiny_config()


def grid(start, rows, h, w, seconds=None, **rest):
    return Span(start, (rows, h, w), "image" if seconds is None else "video", seconds, 0, **rest)


def sound(start, tokens, **rest):
    return Span(start, (tokens, 1, 1), "audio", None, 0, **rest)


def test_a_video_moves_by_its_seconds_and_text_follows_its_largest_position(config):
    """Rows 0.3 s apart: 0, 2.4 and 4.8 positions, rounded down."""
    tokens = [1, VISION_START, *[VIDEO] * 6, VISION_END, 2]
    found, after = positions(tokens, [grid(2, 3, 2, 4, 0.3)], config)
    expected = [
        [0, 1, 2, 2, 4, 4, 6, 6, 7, 8],
        [0, 1, 2, 2, 2, 2, 2, 2, 7, 8],
        [0, 1, 2, 3, 2, 3, 2, 3, 7, 8],
    ]
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, after) == (np.int32, 9)


def test_sound_counts_like_text_and_an_image_stands_still(config):
    tokens = [AUDIO_START, *[AUDIO] * 3, AUDIO_END, *[IMAGE] * 6, 1]
    found, after = positions(tokens, [sound(1, 3), grid(5, 1, 4, 6)], config)
    expected = [
        [0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 8],
        [0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 8],
        [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8],
    ]
    np.testing.assert_array_equal(found, expected)
    assert after == 9


def test_a_video_and_its_sound_share_a_clock_and_their_markers_a_position(config):
    """Row, four tokens of sound, row half a second on, the last token of sound."""
    tokens = [
        VISION_START,
        AUDIO_START,
        VIDEO,
        *[AUDIO] * 4,
        VIDEO,
        AUDIO,
        AUDIO_END,
        VISION_END,
        1,
    ]
    spans = [
        grid(2, 1, 2, 2, 0.5),
        sound(3, 4, joined=True),
        grid(7, 1, 2, 2, 0.5, row=1, joined=True),
        sound(8, 1, row=4, joined=True),
    ]
    found, after = positions(tokens, spans, config)
    time = [0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 6, 7]
    still = [0, 0, 1, 1, 2, 3, 4, 1, 5, 6, 6, 7]
    np.testing.assert_array_equal(found, [time, still, still])
    assert after == 8


def test_what_follows_counts_from_the_last_run_alone(config):
    """Published behaviour: a short end of sound hides that the frames were wide."""
    tokens = [*[VIDEO] * 5, AUDIO, 7]
    spans = [grid(0, 1, 2, 10, 0.5), sound(5, 1, joined=True)]
    found, after = positions(tokens, spans, config)
    np.testing.assert_array_equal(found[2], [0, 1, 2, 3, 4, 0, 1])
    assert after == 2


def test_only_markers_that_open_or_close_together_share_a_position(config):
    tokens = [VISION_END, AUDIO_START, AUDIO_END, VISION_START, AUDIO_START, AUDIO_END, VISION_END]
    found, after = positions(tokens, [], config)
    np.testing.assert_array_equal(found[0], [0, 1, 2, 3, 3, 4, 4])
    assert after == 5


def test_pieces_carried_one_by_one_equal_the_joined_sequence(config):
    pieces = [
        ([1, *[IMAGE] * 4, 3], [grid(1, 1, 4, 4)]),
        ([AUDIO_START, AUDIO, AUDIO, AUDIO_END], [sound(1, 2)]),
        ([], []),
        (
            [2, VISION_START, AUDIO_START, VIDEO, AUDIO, VIDEO, AUDIO_END, VISION_END],
            [
                grid(3, 1, 2, 2, 0.9),
                sound(4, 1, joined=True),
                grid(5, 1, 2, 2, 0.9, row=1, joined=True),
            ],
        ),
        ([4, VISION_START, *[VIDEO] * 2], [grid(2, 2, 2, 2, 1.0)]),
        ([6], []),
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


def test_rounding_follows_the_order_of_the_products():
    """Row 5 of rows 0.08 s apart stands at 10 in exact arithmetic, and at 9 in the reference's."""
    config = tiny_config(position_id_per_seconds=25)
    found, _ = positions([VIDEO] * 11, [grid(0, 11, 2, 2, 0.08)], config)
    np.testing.assert_array_equal(found[0], [0, 2, 4, 6, 8, 9, 12, 14, 16, 18, 19])


@pytest.mark.parametrize(
    ("tokens", "spans", "message"),
    [
        ([AUDIO] * 4, [sound(1, 4)], "leave the piece"),
        ([AUDIO] * 4, [sound(0, 3), sound(2, 2)], "overlap"),
        ([AUDIO, VIDEO], [sound(0, 2)], "not all the audio placeholder"),
        ([9], [Span(0, (1, 2, 2), "smell", None, 0)], "are smell, which the model cannot take"),
    ],
)
def test_spans_that_do_not_match_are_refused(config, tokens, spans, message):
    with pytest.raises(InputError, match=message):
        positions(tokens, spans, config)
