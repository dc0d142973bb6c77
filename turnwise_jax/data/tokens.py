"""The tokenizer as the rest of the package sees it: text to ids, ids to text, and the marker ids.

Wraps an ordinary Hugging Face tokenizer directory; ``build_tokenizer`` makes one from a corpus.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from turnwise_jax.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Attribute -> the token's names; Qwen2.5-Omni calls the vision markers differently from Qwen-VL.
_MARKERS: dict[str, tuple[str, ...]] = {
    "im_start": ("<|im_start|>",),
    "im_end": ("<|im_end|>",),
    "vision_start": ("<|vision_start|>", "<|vision_bos|>"),
    "vision_end": ("<|vision_end|>", "<|vision_eos|>"),
    "image_pad": ("<|image_pad|>", "<|IMAGE|>"),
    "video_pad": ("<|video_pad|>", "<|VIDEO|>"),
    "eos": ("<|endoftext|>",),
}
# Only families that hear have these.
_SOUND_MARKERS = {
    "audio_pad": "<|AUDIO|>",
    "audio_start": "<|audio_bos|>",
    "audio_end": "<|audio_eos|>",
}

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)

# Qwen's split rule: contractions, words, single digits, punctuation runs, newlines, blanks.
PRETOKENIZE_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Vocab:
    """A tokenizer and the ids of the markers that the chat format and the vision input use.

    Attributes:
      im_start, im_end, vision_start, vision_end, image_pad, video_pad, eos: token ids.
      audio_pad, audio_start, audio_end: token ids, None where the tokenizer has no such token.
      size: number of ids that the tokenizer knows. A model may have more embedding rows.
      forbidden: int32, sorted: the ids that may never be sampled, which are all special tokens
        of the tokenizer but ``im_end``, the end-of-turn marker.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, directory: str = ""):
        self._tokenizer = tokenizer
        self.size = len(tokenizer)
        special = {
            str(token): index
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        ids = {name: _find(special, names, directory) for name, names in _MARKERS.items()}
        self.im_start: int = ids["im_start"]
        self.im_end: int = ids["im_end"]
        self.vision_start: int = ids["vision_start"]
        self.vision_end: int = ids["vision_end"]
        self.image_pad: int = ids["image_pad"]
        self.video_pad: int = ids["video_pad"]
        self.eos: int = ids["eos"]
        self.audio_pad: int | None = special.get(_SOUND_MARKERS["audio_pad"])
        self.audio_start: int | None = special.get(_SOUND_MARKERS["audio_start"])
        self.audio_end: int | None = special.get(_SOUND_MARKERS["audio_end"])
        self.forbidden = np.array(sorted(set(special.values()) - {self.im_end}), np.int32)

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> Vocab:
        """Loads the tokenizer of a local Hugging Face directory; never asks the network.

        Raises:
          InputError: no such directory, no tokenizer in it, or a marker is missing.
        """
        path = Path(directory)
        if not path.is_dir():
            raise InputError("no such directory", file=path)
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # transformers and tokenizers raise what they like here
            raise InputError(f"no usable tokenizer: {error}", file=path) from error
        return cls(tokenizer, directory=str(path))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. What looks like a special token in it is text like any other."""
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, special tokens spelled out; ids without a token give nothing."""
        known = [int(index) for index in ids if 0 <= index < self.size]
        return self._tokenizer.decode(
            known, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def placeholder(self, kind: str) -> int:
        """The id that stands for one token of an "image", a "video" or an "audio"."""
        index = {"image": self.image_pad, "video": self.video_pad, "audio": self.audio_pad}[kind]
        if index is None:
            raise InputError(f"the tokenizer has no placeholder for {kind}")
        return index

    def forbidden_mask(self, rows: int) -> np.ndarray:
        """bool[rows] over a model's embedding rows: True where an id may never be sampled.

        Covers ``forbidden`` and the rows past the tokenizer that checkpoints are padded with.
        """
        mask = np.arange(rows) >= self.size
        mask[self.forbidden[self.forbidden < rows]] = True
        return mask

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the tokenizer files, so that transformers and this class load them again."""
        self._tokenizer.save_pretrained(os.fspath(directory))


def build_tokenizer(
    corpus: Iterable[str],
    vocab_size: int,
    directory: str | os.PathLike[str],
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
) -> Vocab:
    """Trains a byte-level BPE tokenizer with Qwen's split rule and writes a Hugging Face directory.

    Deterministic in the corpus. The special tokens take the last ids, as in Qwen. A small corpus
    may give fewer tokens than asked for.

    Args:
      corpus: texts.
      vocab_size: most ids, special tokens included.
      directory: where the tokenizer files go; made if missing.

    Raises:
      InputError: ``vocab_size`` has no room for the 256 bytes and the special tokens.
    """
    from tokenizers import pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    room = vocab_size - len(special_tokens)
    if room < 256:
        raise InputError(
            f"needs at least {256 + len(special_tokens)} (256 bytes and {len(special_tokens)} "
            f"special tokens), got {vocab_size}",
            field="vocab_size",
        )
    tokenizer = byte_level_bpe({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(list(special_tokens))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    Path(directory).mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(os.fspath(directory))
    return Vocab.from_pretrained(directory)


def byte_level_bpe(vocab: dict[str, int], merges: list[tuple[str, str]]):
    """A ``tokenizers.Tokenizer`` of Qwen's kind: NFC, Qwen's split rule, byte-level BPE."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _find(special: dict[str, int], names: tuple[str, ...], directory: str) -> int:
    """The id of the first of ``names`` that is a special token."""
    for name in names:
        if name in special:
            return special[name]
    raise InputError(
        f"the tokenizer has no special token {' or '.join(names)}", file=directory or None
    )
