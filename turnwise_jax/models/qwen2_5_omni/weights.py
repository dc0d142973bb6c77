"""The name table of Qwen2.5-Omni's thinker, and the spellings its checkpoints have used.

Written names are those of the published checkpoints, ``thinker.*``. Read are also directories that
hold a thinker alone, with these names or those that transformers 5 has in memory. What belongs to
the talker and its vocoder is passed over, and a directory written here has none: its config.json
says so, and transformers' thinker class reads it. To hear a trained thinker, put its tensors in the
place of those with the same names in the directory it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from turnwise_jax.models.params import Path
from turnwise_jax.models.qwen2_5_omni.config import AudioConfig, Config
from turnwise_jax.models.qwen2_5_vl.weights import vision_entries
from turnwise_jax.models.text_weights import linear, text_entries
from turnwise_jax.models.weights import Entry

PREFIX = "thinker."
EMBEDDING = f"{PREFIX}model.embed_tokens.weight"
HEAD = f"{PREFIX}lm_head.weight"
_SPELLINGS = (
    (re.compile(r"^thinker\."), ""),
    (re.compile(r"^model\.(visual|audio_tower)\."), r"\1."),
    (re.compile(r"^model\.language_model\."), "model."),
)
_OTHERS = re.compile(r"^(talker|token2wav)\.|rotary_(pos_)?emb\.(inv_freq|original_inv_freq)$")


def published_name(name: str) -> str:
    """A tensor name of any spelling -> the published one."""
    for pattern, replacement in _SPELLINGS:
        name = pattern.sub(replacement, name)
    return PREFIX + name


def spelling(names: Iterable[str]) -> dict[str, str]:
    """Published name -> the name found among ``names``."""
    return {published_name(name): name for name in names if not ignored(name)}


def ignored(name: str) -> bool:
    """Tensors that are not the thinker's, and rotary buffers."""
    return _OTHERS.search(name) is not None


def entries(config: Config) -> list[Entry]:
    """One row per parameter, in the order in which they are written."""
    head = None if config.tie_word_embeddings else HEAD
    return [
        *text_entries(config.text, prefix=f"{PREFIX}model.", head=head),
        *vision_entries(config.vision, prefix=f"{PREFIX}visual.", fused=False),
        *_audio(config.audio, f"{PREFIX}audio_tower."),
    ]


def _audio(audio: AudioConfig, prefix: str) -> list[Entry]:
    width, layers = audio.d_model, audio.encoder_layers
    rows = []
    for conv, inputs in (("conv1", audio.num_mel_bins), ("conv2", width)):
        name, taps = f"{prefix}{conv}", ("audio", conv, "taps")
        rows.append(Entry((*taps, "kernel"), f"{name}.weight", (width, inputs, 3), True))
        rows.append(Entry((*taps, "bias"), f"{name}.bias", (width,)))
    markers = f"{prefix}audio_bos_eos_token.weight"
    rows.append(Entry(("audio", "markers", "embedding"), markers, (2, audio.output_dim)))
    path, name = ("audio", "blocks"), f"{prefix}layers.{{}}"
    for ours, theirs in (("norm1", "self_attn_layer_norm"), ("norm2", "final_layer_norm")):
        rows += _norm((*path, ours), f"{name}.{theirs}", width, layers)
    for ours, theirs in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("out", "out_proj")):
        full = f"{name}.self_attn.{theirs}"
        rows += linear((*path, ours), full, width, width, bias=ours != "k", layers=layers)
    hidden = audio.encoder_ffn_dim
    for part, out, inputs in (("fc1", hidden, width), ("fc2", width, hidden)):
        rows += linear((*path, part), f"{name}.{part}", out, inputs, bias=True, layers=layers)
    rows += _norm(("audio", "norm"), f"{prefix}ln_post", width, None)
    proj = ("audio", "proj")
    return rows + linear(proj, f"{prefix}proj", audio.output_dim, width, bias=True, layers=None)


def _norm(path: Path, name: str, size: int, layers: int | None) -> list[Entry]:
    return [
        Entry((*path, "scale"), f"{name}.weight", (size,), False, layers),
        Entry((*path, "bias"), f"{name}.bias", (size,), False, layers),
    ]
