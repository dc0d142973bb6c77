"""The real Qwen2.5 vocabulary as a Hugging Face tokenizer, made from ``dashscope``'s rank file.

The rank file lists byte strings by merge priority. Each merge is recovered by encoding a token
with the lower ranks only, which leaves its two halves.
"""

from __future__ import annotations

import base64
from importlib.resources import files
from pathlib import Path

import tiktoken
from transformers import PreTrainedTokenizerFast

from turnwise_jax.data.tokens import PRETOKENIZE_PATTERN, byte_level_bpe

# Ids 151643 and up, in the order of Qwen2.5-VL's tokenizer; the last ones are ordinary text.
SPECIAL = (
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
)
NOT_SPECIAL = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)


def qwen_ranks() -> dict[bytes, int]:
    """Byte string -> id of Qwen's 151,643 ordinary tokens."""
    text = (files("dashscope") / "resources" / "qwen.tiktoken").read_text(encoding="ascii")
    pairs = (line.split() for line in text.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def qwen_tiktoken(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """The same vocabulary in another implementation, markers included."""
    markers = {name: len(ranks) + i for i, name in enumerate((*SPECIAL, *NOT_SPECIAL))}
    return tiktoken.Encoding(
        "qwen", pat_str=PRETOKENIZE_PATTERN, mergeable_ranks=ranks, special_tokens=markers
    )


def write_qwen_tokenizer(directory: Path, ranks: dict[bytes, int]) -> None:
    """Writes the Hugging Face tokenizer directory."""
    spell = {token: _printable(token) for token in ranks}
    merges = [
        tuple(_printable(half) for half in _halves(token, rank, ranks))
        for token, rank in ranks.items()
        if len(token) > 1
    ]
    tokenizer = byte_level_bpe({spell[token]: rank for token, rank in ranks.items()}, merges)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(NOT_SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.save_pretrained(directory)


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """The two parts that the merge of this rank joins."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(parts[i] + parts[i + 1], rank) for i in range(len(parts) - 1)]
        best = min(joined)
        assert best < rank, token
        at = joined.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes: printable ones as they are, the others from U+0100."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    stand_ins = {byte: chr(byte) for byte in shown}
    return stand_ins | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


def _printable(token: bytes) -> str:
    return "".join(_ALPHABET[byte] for byte in token)
