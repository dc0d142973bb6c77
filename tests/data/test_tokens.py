"""The vocabulary: Qwen's ids, plain text stays plain, markers must be there."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
from qwen_vocab import SPECIAL, qwen_tiktoken
from transformers import PreTrainedTokenizerFast

from turnwise_jax.data.tokens import SPECIAL_TOKENS, Vocab, build_tokenizer, byte_level_bpe
from turnwise_jax.errors import InputError

TEXTS = [
    "",
    "Hello  world\n\n 123 it's \tfine\r\n  \n",
    "NO REPLY",
    "The man's 2,500 km trip isn't over; he'll say \"wait\".",
    "def f(x):\n    return x ** 2  # é\n\n\n",
    "好的,第三段视频里发生了什么?",
    "Привет, как дела? مرحبا שלום",
    "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 ok",
    "   leading and trailing   ",
    "e\u0301 composed",
    "\u00a0\u3000odd\u2028blanks",
    "<tag> && <|not a token|>",
]
CORPUS = ["The red circle appears on the left.", "A blue square leaves.", "NO REPLY"] * 3


@pytest.mark.parametrize("text", TEXTS)
def test_the_rebuilt_qwen_vocabulary_encodes_as_tiktoken_does(qwen, ranks, text):
    expected = qwen_tiktoken(ranks).encode_ordinary(unicodedata.normalize("NFC", text))
    assert qwen.encode(text) == expected
    assert qwen.decode(expected) == unicodedata.normalize("NFC", text)


def test_random_bytes_decoded_as_text_encode_as_tiktoken_does(qwen, ranks):
    rng = np.random.default_rng(0)
    other = qwen_tiktoken(ranks)
    for ids in rng.integers(0, len(ranks), (200, 12)):
        text = unicodedata.normalize("NFC", other.decode(ids.tolist()))
        assert qwen.encode(text) == other.encode_ordinary(text)


def test_marker_ids_are_qwens(qwen):
    assert (qwen.eos, qwen.im_start, qwen.im_end) == (151643, 151644, 151645)
    assert (qwen.vision_start, qwen.vision_end) == (151652, 151653)
    assert (qwen.image_pad, qwen.video_pad) == (151655, 151656)
    assert qwen.size == 151665


def test_all_special_tokens_but_the_end_marker_are_forbidden(qwen):
    assert qwen.forbidden.tolist() == [151643, 151644, *range(151646, 151657)]
    mask = qwen.forbidden_mask(152064)
    assert np.flatnonzero(mask).tolist() == [*qwen.forbidden.tolist(), *range(151665, 152064)]
    assert qwen.forbidden_mask(151644).sum() == 1


def test_special_tokens_in_text_are_text(qwen):
    text = "".join(SPECIAL)
    ids = qwen.encode(text)
    assert max(ids) < qwen.eos
    assert qwen.decode(ids) == text


def test_decoding_spells_markers_out_and_passes_over_ids_without_a_token(qwen):
    assert qwen.decode([8996, 3596, 24834, 151645]) == "NO REPLY<|im_end|>"
    assert qwen.decode([8996, 151700, -1, 152063]) == "NO"


def test_a_saved_vocabulary_loads_again(qwen, tmp_path):
    qwen.save(tmp_path)
    again = Vocab.from_pretrained(tmp_path)
    assert [again.encode(text) for text in TEXTS] == [qwen.encode(text) for text in TEXTS]
    assert again.forbidden.tolist() == qwen.forbidden.tolist()


def test_a_built_tokenizer_is_an_ordinary_one_and_the_same_every_time(tmp_path):
    vocab = build_tokenizer(iter(CORPUS), 300, tmp_path / "a")
    build_tokenizer(CORPUS, 300, tmp_path / "b")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert vocab.size == 300
    assert len(vocab.encode("The red circle")) < len("The red circle")
    for text in TEXTS:
        assert vocab.decode(vocab.encode(text)) == unicodedata.normalize("NFC", text)
    assert vocab.eos == 300 - len(SPECIAL_TOKENS)
    assert vocab.forbidden.tolist() == sorted({*range(vocab.eos, 300)} - {vocab.im_end})


def test_a_model_config_beside_it_does_not_change_the_tokenizer(tmp_path):
    vocab = build_tokenizer(CORPUS, 300, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    again = Vocab.from_pretrained(tmp_path)
    assert again.encode(CORPUS[0]) == vocab.encode(CORPUS[0])
    assert again.im_end == vocab.im_end


def test_a_vocabulary_without_room_for_bytes_is_refused(tmp_path):
    with pytest.raises(InputError, match="field 'vocab_size': needs at least 273"):
        build_tokenizer(CORPUS, 272, tmp_path)


def write_tokenizer(directory, special, ordinary=()) -> None:
    tokenizer = byte_level_bpe({"a": 0}, [])
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(ordinary))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)


@pytest.mark.parametrize("missing", ["<|im_end|>", "<|image_pad|>", "<|vision_start|>"])
def test_a_missing_marker_is_named_with_the_directory(missing, tmp_path):
    write_tokenizer(tmp_path, set(SPECIAL_TOKENS) - {missing})
    with pytest.raises(InputError) as caught:
        Vocab.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert missing in str(caught.value)


def test_a_marker_that_is_ordinary_text_counts_as_missing(tmp_path):
    write_tokenizer(tmp_path, set(SPECIAL_TOKENS) - {"<|image_pad|>"}, ["<|image_pad|>"])
    with pytest.raises(InputError, match=r"no special token <\|image_pad\|>"):
        Vocab.from_pretrained(tmp_path)


def test_omni_names_of_the_vision_markers_are_known(tmp_path):
    omni = {
        "<|vision_start|>": "<|vision_bos|>",
        "<|vision_end|>": "<|vision_eos|>",
        "<|image_pad|>": "<|IMAGE|>",
        "<|video_pad|>": "<|VIDEO|>",
    }
    special = [omni.get(token, token) for token in SPECIAL_TOKENS]
    vocab = build_tokenizer(CORPUS, 300, tmp_path, special_tokens=special)
    assert vocab.decode([vocab.vision_start, vocab.image_pad]) == "<|vision_bos|><|IMAGE|>"


def test_no_directory_and_no_tokenizer_are_one_clear_line_each(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such directory"):
        Vocab.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no usable tokenizer") as caught:
        Vocab.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_text("{ not json")
    with pytest.raises(InputError, match="no usable tokenizer"):
        Vocab.from_pretrained(tmp_path)
