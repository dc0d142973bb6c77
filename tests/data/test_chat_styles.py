"""Videos and sound in the token stream, against the text that the reference processors write."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.chat import ChatTemplate, MediaSpan
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.data.tokens import SPECIAL_TOKENS, build_tokenizer
from turnwise_jax.errors import InputError
from turnwise_jax.models.media import FeatureRows, media_index, span_tokens

OMNI_NAMES = {
    "<|vision_start|>": "<|vision_bos|>",
    "<|vision_end|>": "<|vision_eos|>",
    "<|image_pad|>": "<|IMAGE|>",
    "<|video_pad|>": "<|VIDEO|>",
}
OPEN, SHUT = "<|vision_bos|>", "<|vision_eos|>"
IMAGE, VIDEO, AUDIO = "<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>"
HEAR, QUIET = "<|audio_bos|>", "<|audio_eos|>"
USER, REPLY = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def omni_vocab(tmp_path_factory):
    """The markers under the names that Qwen2.5-Omni gives them."""
    names = [OMNI_NAMES.get(name, name) for name in SPECIAL_TOKENS]
    corpus = ["user assistant system", "0.5 seconds", "NO REPLY"] * 4
    return build_tokenizer(corpus, 340, tmp_path_factory.mktemp("omni"), special_tokens=names)


@pytest.fixture(scope="module")
def omni(omni_vocab):
    return ChatTemplate(omni_vocab, FrameSpec(), style="qwen2_5_omni")


@pytest.fixture(scope="module")
def stamped(qwen):
    return ChatTemplate(qwen, FrameSpec(patch_size=16), style="qwen3_vl")


def one_turn(times, *, sound=None, video=True, text="Well?", path="v.mp4"):
    frames = tuple(Frame(path, time) for time in times)
    turn = Turn(frames, text, 30.0, video=video, audio=sound and Sound(path, *sound))
    return Dialogue("q", (turn,), system="S.")


def shown(template, dialogue, grids) -> str:
    """The text of the open turn, from its media to the end of its own text."""
    text = template.vocab.decode(template.context(dialogue, grids).tokens)
    assert text.startswith("<|im_start|>system\nS.<|im_end|>\n" + USER)
    assert text.endswith(REPLY)
    return text.split(USER)[1].removesuffix(REPLY)


def check_spans(template, dialogue, grids):
    """Every placeholder is in one span of its kind, and every slice and row comes once."""
    piece = template.context(dialogue, grids)
    vocab, merge = template.vocab, template.spec.merge_size
    kinds = {vocab.image_pad: "image", vocab.video_pad: "video", vocab.audio_pad: "audio"}
    want = {at: kinds[i] for at, i in enumerate(piece.tokens) if i in kinds and i is not None}
    got = {
        span.start + j: span.kind for span in piece.media for j in range(span_tokens(span, merge))
    }
    assert got == want
    each = max(((h // merge) * (w // merge) for _, h, w in grids), default=1)
    rows = FeatureRows(sum(t for t, _, _ in grids), each, 50)
    index = media_index(len(piece.tokens), piece.media, merge, rows)
    return piece, index[index >= 0]


# Qwen3-VL


def reference_stamps(times, fps, grid) -> str:
    """``Qwen3VLProcessor.replace_video_token`` for frames with these numbers in the video."""
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
        video_token="<|video_pad|>",
        _calculate_timestamps=lambda *args: Qwen3VLProcessor._calculate_timestamps(None, *args),
    )
    metadata = SimpleNamespace(fps=fps, frames_indices=[round(time * fps) for time in times])
    inputs = {"video_grid_thw": np.array([grid]), "video_metadata": [metadata]}
    return Qwen3VLProcessor.replace_video_token(processor, inputs, 0)


@pytest.mark.parametrize(
    ("numbers", "fps"),
    [
        ([0, 12, 24, 36], 24.0),
        ([0, 1, 2], 2.0),  # the last row has one frame
        ([5], 10.0),
        ([0, 1, 9, 10, 100, 101], 4.0),  # .125 and .625: halves round as Python's do
        ([3597, 3598], 29.97),
    ],
)
def test_rows_of_a_video_stand_behind_their_time(stamped, numbers, fps):
    times = [number / fps for number in numbers]
    grid = (-(-len(times) // 2), 4, 6)
    dialogue = one_turn(times)
    assert shown(stamped, dialogue, [grid]) == reference_stamps(times, fps, grid) + "Well?"
    piece, rows = check_spans(stamped, dialogue, [grid])
    assert [(span.grid, span.slice, span.row) for span in piece.media] == [
        ((1, 4, 6), t, t) for t in range(grid[0])
    ]
    np.testing.assert_array_equal(rows, np.arange(grid[0] * 6))


def test_golden_ids_of_a_stamped_video(stamped):
    """Header and time are one run of text, "user\\n<0.2 seconds>"."""
    piece = stamped.context(one_turn([0.0, 0.5], text="Hello?"), [(1, 2, 4)])
    start, end, vision, noisiv, pad = 151644, 151645, 151652, 151653, 151656
    ids = piece.tokens.tolist()
    assert ids[ids.index(872) - 1 :] == [
        *(start, 872, 198, 27, 15, 13, 17, 6486, 29),  # user\n<0.2 seconds>
        *(vision, pad, pad, noisiv, 9707, 30, end, 198),  # Hello?
        *(start, 77091, 198),
    ]
    assert stamped.vocab.encode("user\n<0.2 seconds>") == [872, 198, 27, 15, 13, 17, 6486, 29]


def test_images_of_qwen3_have_no_time(stamped):
    dialogue = one_turn([0.0, 1.0], video=False)
    pads = "<|vision_start|>" + 2 * "<|image_pad|>" + "<|vision_end|>"
    assert shown(stamped, dialogue, [(1, 2, 4)] * 2) == 2 * pads + "Well?"


def test_image_files_of_a_video_turn_are_spread_over_the_turn(stamped):
    frames = tuple(Frame(f"{i}.png") for i in range(4))
    turns = (Turn((), "", 2.0, "Yes."), Turn(frames, "", 6.0, video=True))
    piece = stamped.context(Dialogue("q", turns, system="S."), [(2, 2, 2)])
    text = stamped.vocab.decode(piece.tokens)
    assert "<3.5 seconds>" in text
    assert "<5.5 seconds>" in text


def picture_files(rate, *, told=True, start=30.0):
    """Four files of a video turn that ends at 36 s, taken from ``start`` on, ``rate`` a second."""
    frames = tuple(Frame(f"{i}.jpg", shown=start + i / rate if told else None) for i in range(4))
    return Dialogue("q", (Turn(frames, "Well?", 36.0, video=True),), system="S.")


@pytest.mark.parametrize(
    ("rate", "row", "stamps"), [(1, 2.0, (30.5, 32.5)), (4, 0.5, (30.1, 30.6))]
)
def test_every_family_keeps_the_rate_of_image_files(qwen, stamped, omni, rate, row, stamps):
    """Rows of two files: their seconds apart, and Qwen3-VL's the middle of the two."""
    dialogue, grids = picture_files(rate), [(2, 2, 2)]
    for template in (ChatTemplate(qwen, FrameSpec()), omni):
        (span,) = template.context(dialogue, grids).media
        assert span.seconds_per_grid == row
    text = shown(stamped, dialogue, grids)
    assert text.count(" seconds>") == 2
    assert all(f"<{stamp} seconds>" in text for stamp in stamps)


def test_image_files_without_their_seconds_have_one_rate_in_every_family(qwen, stamped, omni):
    """36 s in four files: rows of two begin 18 s apart."""
    dialogue, grids = picture_files(1, told=False), [(2, 2, 2)]
    for template in (ChatTemplate(qwen, FrameSpec()), omni):
        assert template.context(dialogue, grids).media[0].seconds_per_grid == 18.0
    text = shown(stamped, dialogue, grids)
    assert "<13.5 seconds>" in text
    assert "<31.5 seconds>" in text


def test_pieces_of_stamped_videos_join_to_the_row(stamped):
    turns = tuple(
        Turn((Frame("v", 2.0 * k), Frame("v", 2.0 * k + 1)), "", 2.0 * k + 1, video=True)
        for k in range(3)
    )
    dialogue, grids = Dialogue("q", turns), [(1, 2, 2)] * 3
    replies = [([40 + k, stamped.vocab.im_end], False) for k in range(3)]
    row = stamped.training_row(dialogue, grids, replies)
    pieces = [
        stamped.context(dialogue, grids),
        *(stamped.turn(dialogue, k, grids) for k in (1, 2)),
    ]
    joined = [
        token
        for piece, (ids, _) in zip(pieces, replies, strict=True)
        for token in [*piece.tokens, *ids]
    ]
    np.testing.assert_array_equal(row.tokens, joined)
    assert [span.slice for span in row.media] == [0, 1, 2]


# Qwen2.5-Omni


def reference_interleaved(grid, seconds_per_grid, tokens) -> str:
    """``Qwen2_5OmniProcessor.replace_video_with_audio_token``."""
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2),
        audio_bos_token=HEAR,
        audio_eos_token=QUIET,
        video_token=VIDEO,
        audio_token=AUDIO,
        get_chunked_index=lambda *args: Qwen2_5OmniProcessor.get_chunked_index(None, *args),
    )
    return Qwen2_5OmniProcessor.replace_video_with_audio_token(
        processor,
        {"video_grid_thw": np.array([grid]), "video_second_per_grid": [seconds_per_grid]},
        0,
        {"num_audio_tokens": np.array([tokens])},
        0,
        position_id_per_seconds=25,
        seconds_per_chunk=2.0,
    )


@pytest.mark.parametrize(
    ("frames", "interval", "seconds", "tokens"),
    [
        (8, 0.5, 4.0, 100),
        (8, 0.5, 9.0, 225),  # sound goes on after the video
        (16, 0.5, 3.0, 75),  # video goes on after the sound
        (7, 0.25, 1.7, 42),
        (6, 1.0, 6.0, 150),  # 2 s a row: one row a chunk
        (10, 1 / 3, 3.4, 85),
        (12, 0.3, 3.6, 90),  # rows begin just before and after a chunk's border
        (2, 2.0, 4.0, 100),  # one row of 4 s
        (1, 1.0, 0.1, 2),
    ],
)
def test_video_and_sound_alternate_as_in_the_reference(omni, frames, interval, seconds, tokens):
    grid = (-(-frames // 2), 4, 4)
    dialogue = one_turn([interval * i for i in range(frames)], sound=(0.0, seconds))
    per_grid = omni.context(dialogue, [grid]).media[0].seconds_per_grid
    assert per_grid == pytest.approx(2 * interval)
    want = OPEN + reference_interleaved(grid, per_grid, tokens) + SHUT
    assert shown(omni, dialogue, [grid]) == want + "Well?"
    piece, rows = check_spans(omni, dialogue, [grid])
    assert [span.joined for span in piece.media] == [False] + [True] * (len(piece.media) - 1)
    assert sorted(rows) == list(range(grid[0] * 4 + tokens))


def test_runs_of_an_interleaved_video(omni):
    dialogue = one_turn([0.5 * i for i in range(5)], sound=(0.0, 2.4))
    media = omni.context(dialogue, [(3, 2, 2)]).media
    first = media[0].start
    assert media == (
        MediaSpan(first, (2, 2, 2), "video", 1.0, 0),
        MediaSpan(first + 2, (50, 1, 1), "audio", None, 0, 0, True),
        MediaSpan(first + 52, (1, 2, 2), "video", 1.0, 2, 2, True),
        MediaSpan(first + 53, (10, 1, 1), "audio", None, 0, 50, True),
    )


def test_rows_longer_than_a_chunk_stay_whole(omni):
    dialogue = one_turn([0.0, 3.0, 6.0, 9.0], sound=(0.0, 8.0))
    media = omni.context(dialogue, [(2, 4, 4)]).media
    assert [(span.kind, span.row, span.grid[0]) for span in media] == [
        ("video", 0, 1),
        *(("audio", 50 * chunk, 50) for chunk in range(3)),
        ("video", 1, 1),  # it begins at 6 s
        ("audio", 150, 50),
    ]


def test_sound_follows_pictures_and_stands_alone_without_them(omni):
    pads = f"{OPEN}{IMAGE}{IMAGE}{SHUT}"
    dialogue = one_turn([0.0, 1.0], sound=(0.0, 0.2), video=False)
    sound = f"{HEAR}{5 * AUDIO}{QUIET}"
    assert shown(omni, dialogue, [(1, 2, 4)] * 2) == 2 * pads + sound + "Well?"
    assert shown(omni, one_turn([], sound=(0.0, 0.2)), []) == sound + "Well?"
    check_spans(omni, dialogue, [(1, 2, 4)] * 2)


def test_silent_media_of_omni(omni):
    assert shown(omni, one_turn([0.0, 1.0]), [(1, 4, 4)]) == OPEN + 4 * VIDEO + SHUT + "Well?"
    assert shown(omni, one_turn([0.0], video=False), [(1, 2, 2)]) == OPEN + IMAGE + SHUT + "Well?"
    assert shown(omni, one_turn([]), []) == "Well?"


def test_sounds_are_numbered_by_slices_through_the_dialogue(omni):
    turns = tuple(Turn((), "", 5.0 * k, audio=Sound("a", 0.0, 4.1)) for k in range(3))
    dialogue = Dialogue("q", turns)
    assert [omni.context(dialogue, []).media[0].slice] == [0]
    assert [omni.turn(dialogue, k, []).media[0].slice for k in (1, 2)] == [3, 6]
    assert omni.sound_slices(dialogue) == 9
    assert omni.lengths(dialogue, []).turns == tuple(
        len(omni.turn(dialogue, k, []).tokens) for k in (1, 2)
    )
    replies = [([omni.vocab.im_end], False)] * 3
    row = omni.training_row(dialogue, [], replies)
    assert [span.slice for span in row.media] == [0, 3, 6]
    assert (row.tokens == omni.vocab.audio_pad).sum() == 3 * 102
    assert not row.loss_mask[row.tokens == omni.vocab.audio_pad].any()


# What is refused


@pytest.mark.parametrize("style", ["qwen2_5_vl", "qwen3_vl"])
def test_a_style_without_ears_refuses_sound(qwen, style):
    template = ChatTemplate(qwen, FrameSpec(), style=style)
    dialogue = one_turn([0.0, 1.0], sound=(0.0, 4.0))
    with pytest.raises(InputError, match=rf"q.*turns\[0\]\.audio.*{style} cannot hear"):
        template.context(dialogue, [(1, 2, 2)])


def test_omni_needs_markers_for_sound(qwen):
    with pytest.raises(InputError, match="no markers for sound"):
        ChatTemplate(qwen, FrameSpec(), style="qwen2_5_omni")


def test_unknown_styles_are_refused(qwen):
    with pytest.raises(InputError, match="'qwen4' is none of qwen2_5_vl, qwen3_vl, qwen2_5_omni"):
        ChatTemplate(qwen, FrameSpec(), style="qwen4")


def test_a_sound_out_of_bounds_names_its_turn(omni):
    for span, message in (((0.0, 0.01), "too short"), ((0.0, 301.0), "exceeds")):
        with pytest.raises(InputError, match=rf"turns\[0\]\.audio.*{message}"):
            omni.context(one_turn([], sound=span), [])


def test_the_checkpoint_decides_how_long_a_sound_may_be(omni_vocab):
    spec = SoundSpec(longest=30)
    template = ChatTemplate(omni_vocab, FrameSpec(), style="qwen2_5_omni", sound=spec)
    with pytest.raises(InputError, match="exceeds the 30 s"):
        template.context(one_turn([], sound=(0.0, 31.0)), [])


def test_placeholders_and_markers_are_never_sampled(omni_vocab):
    forbidden = set(omni_vocab.forbidden.tolist())
    assert forbidden >= {
        omni_vocab.audio_pad,
        omni_vocab.audio_start,
        omni_vocab.audio_end,
        omni_vocab.image_pad,
        omni_vocab.video_pad,
        omni_vocab.vision_start,
        omni_vocab.vision_end,
    }
    assert omni_vocab.im_end not in forbidden


def test_placeholder_ids(qwen, omni_vocab):
    assert omni_vocab.placeholder("audio") == omni_vocab.audio_pad
    assert qwen.placeholder("video") == 151656
    with pytest.raises(InputError, match="no placeholder for audio"):
        qwen.placeholder("audio")
