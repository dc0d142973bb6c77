"""Golden rows of Qwen3-VL and Qwen2.5-Omni: ids, what is trained, and of which turn it is.

The ids are those of the published tokenizers, which share Qwen's text vocabulary; the rows were
written from the families' templates by hand.
"""

from __future__ import annotations

import shutil

import pytest
from qwen_vocab import qwen_tiktoken

from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.records import Dialogue, Frame, Sound, Turn
from turnwise_jax.data.tokens import Vocab

START, END = 151644, 151645
SEE, SEEN, IMAGE, VIDEO = 151652, 151653, 151655, 151656
AUDIO, HEAR, HEARD = 151646, 151647, 151648  # Qwen2.5-Omni's; text models have other names there
OMNI_NAMES = {
    "<|object_ref_start|>": "<|AUDIO|>",
    "<|object_ref_end|>": "<|audio_bos|>",
    "<|box_start|>": "<|audio_eos|>",
    "<|vision_start|>": "<|vision_bos|>",
    "<|vision_end|>": "<|vision_eos|>",
    "<|image_pad|>": "<|IMAGE|>",
    "<|video_pad|>": "<|VIDEO|>",
}
WAVES, STILL = [32, 883, 16876, 13], [23322, 63111, 13]  # A man waves. / Still waving.
SYSTEM = [START, 8948, 198, 14247, 13, END, 198]  # system\nWatch.
USER, ASKED, REPLY = [START, 872, 198], [3838, 8573, 30], [START, 77091, 198]  # What happens?
HELLO = [9707, 30]  # Hello?


@pytest.fixture(scope="module")
def omni(qwen_dir, tmp_path_factory) -> Vocab:
    """Qwen's tokenizer with the names that Qwen2.5-Omni gives the markers."""
    directory = tmp_path_factory.mktemp("omni") / "tokenizer"
    shutil.copytree(qwen_dir, directory)
    for path in directory.iterdir():
        text = path.read_text(encoding="utf-8")
        for old, new in OMNI_NAMES.items():
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    return Vocab.from_pretrained(directory)


def dialogue(times, *, video_sound=None, image_sound=None) -> Dialogue:
    """A turn with a video, then one with an image."""
    film = tuple(Frame("v.mp4", time) for time in times)
    first = Turn(film, "What happens?", times[-1] + 1, video=True, audio=video_sound)
    second = Turn((Frame("a.jpg"),), "Hello?", 9.0, audio=image_sound)
    return Dialogue("q", (first, second), system="Watch.")


def check(row, parts: list[tuple[int, list[int]]]) -> None:
    """``parts``: (turn that these ids are trained as, or -1; ids)."""
    turn_id = [turn for turn, ids in parts for _ in ids]
    assert row.tokens.tolist() == [token for _, ids in parts for token in ids]
    assert row.turn_id.tolist() == turn_id
    assert row.loss_mask.tolist() == [turn >= 0 for turn in turn_id]


def test_qwen3_vl(qwen, ranks):
    """Three frames in two rows: 0 s and 1 s, then 2 s alone. The second reply is cut at a limit."""
    template = ChatTemplate(qwen, FrameSpec(patch_size=16), style="qwen3_vl")
    replies = [([*WAVES, END], False), (STILL, True)]
    row = template.training_row(dialogue([0.0, 1.0, 2.0]), [(2, 2, 4), (1, 2, 2)], replies)
    half = [27, 15, 13, 20, 6486, 29]  # <0.5 seconds>
    two = [27, 17, 13, 15, 6486, 29]  # <2.0 seconds>
    film = [*half, SEE, VIDEO, VIDEO, SEEN, *two, SEE, VIDEO, VIDEO, SEEN]
    parts = [
        (-1, [*SYSTEM, *USER, *film, *ASKED, END, 198, *REPLY]),
        (0, [*WAVES, END]),
        (-1, [198, *USER, SEE, IMAGE, SEEN, *HELLO, END, 198, *REPLY]),
        (1, STILL),
        (-1, [END]),
    ]
    check(row, parts)
    assert row.loss_mask.nonzero()[0].tolist() == [*range(38, 43), *range(57, 60)]
    assert [span.start for span in row.media] == [17, 27, 48]
    pads = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    text = (
        "<|im_start|>system\nWatch.<|im_end|>\n"
        f"<|im_start|>user\n<0.5 seconds>{pads}<2.0 seconds>{pads}What happens?<|im_end|>\n"
        "<|im_start|>assistant\nA man waves.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Hello?<|im_end|>\n"
        "<|im_start|>assistant\nStill waving.<|im_end|>"
    )
    assert qwen_tiktoken(ranks).encode(text, allowed_special="all") == row.tokens.tolist()


def test_qwen2_5_omni(omni):
    """A video with 2.4 s of sound inside, then an image and 0.2 s after it; 25 tokens a second.

    Rows of the video last 2 s, and one stands before each 2 s of sound. The first reply is cut.
    """
    template = ChatTemplate(omni, FrameSpec(), style="qwen2_5_omni")
    shown = dialogue(
        [0.0, 1.0, 2.0, 3.0],
        video_sound=Sound("v.mp4", 0.0, 2.4),
        image_sound=Sound("b.wav", 1.0, 1.2),
    )
    replies = [(WAVES, True), ([*STILL, END], False)]
    row = template.training_row(shown, [(2, 2, 2), (1, 2, 4)], replies)
    film = [SEE, HEAR, VIDEO, *[AUDIO] * 50, VIDEO, *[AUDIO] * 10, HEARD, SEEN]
    parts = [
        (-1, [*SYSTEM, *USER, *film, *ASKED, END, 198, *REPLY]),
        (0, WAVES),
        (-1, [END, 198, *USER, SEE, IMAGE, IMAGE, SEEN, HEAR, *[AUDIO] * 5, HEARD]),
        (-1, [*HELLO, END, 198, *REPLY]),
        (1, [*STILL, END]),
    ]
    check(row, parts)
    assert row.loss_mask.nonzero()[0].tolist() == [*range(84, 88), *range(111, 115)]
    assert [(span.kind, span.start) for span in row.media] == [
        ("video", 12),
        ("audio", 13),
        ("video", 63),
        ("audio", 64),
        ("image", 94),
        ("audio", 98),
    ]
