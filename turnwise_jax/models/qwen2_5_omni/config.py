"""Sizes and token ids of Qwen2.5-Omni's thinker, read from and written to ``config.json``."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from turnwise_jax.errors import InputError
from turnwise_jax.models.config_fields import ConfigFields, override, pixel_statistics
from turnwise_jax.models.decoder import DecoderConfig
from turnwise_jax.models.qwen2_5_vl.config import VisionConfig, read_vision
from turnwise_jax.models.text_config import TextKind, read_text, write_fields, write_text

TEXT = TextKind(num_key_value_heads=4, rms_norm_eps=1e-6)
THINKER = "qwen2_5_omni_thinker"
SECONDS_PER_CHUNK = 2
TOKEN_IDS = {  # ours -> the file's
    "audio_token_id": "audio_token_index",
    "image_token_id": "image_token_index",
    "video_token_id": "video_token_index",
    "audio_start_token_id": "audio_start_token_id",
    "audio_end_token_id": "audio_end_token_id",
    "vision_start_token_id": "vision_start_token_id",
    "vision_end_token_id": "vision_end_token_id",
}


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """Sizes of the audio tower, named as in Hugging Face's audio configuration.

    ``n_window`` is half the mel frames of a slice.
    """

    num_mel_bins: int = 128
    encoder_layers: int = 32
    encoder_attention_heads: int = 20
    encoder_ffn_dim: int = 5120
    d_model: int = 1280
    max_source_positions: int = 1500
    n_window: int = 100
    output_dim: int = 3584

    @property
    def slice_frames(self) -> int:
        """Mel frames of a full slice."""
        return 2 * self.n_window

    @property
    def slice_tokens(self) -> int:
        """A: tokens of a full slice."""
        return self.n_window // 2


@dataclass(frozen=True, slots=True)
class Config:
    """The thinker of a Qwen2.5-Omni model.

    ``position_id_per_seconds`` is how many positions a second takes, and how many tokens a second
    of sound. ``image_mean`` and ``image_std`` belong to the preprocessor's file; the model applies
    them on the device. ``raw`` is the ``config.json`` that was read: fields this class does not
    know are kept there and written back.
    """

    text: DecoderConfig
    vision: VisionConfig
    audio: AudioConfig
    audio_token_id: int = 151646
    image_token_id: int = 151655
    video_token_id: int = 151656
    audio_start_token_id: int = 151647
    audio_end_token_id: int = 151648
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    position_id_per_seconds: int = 25
    tie_word_embeddings: bool = False
    image_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    model_type = "qwen2_5_omni"

    @property
    def merge(self) -> int:
        """Patches per merged token along one axis."""
        return self.vision.spatial_merge_size

    @property
    def sound_tokens(self) -> int:
        """A: feature rows of an audio slice."""
        return self.audio.slice_tokens

    @classmethod
    def from_hf(
        cls, raw: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None
    ) -> Config:
        """Read ``config.json`` of a whole Qwen2.5-Omni, or of a thinker alone.

        Raises:
          InputError: another model type, a missing or impossible field, an unsupported feature.
        """
        thinker = _thinker(raw, file)
        read = ConfigFields(thinker, file)
        section = read.section("text_config")
        if not section:
            raise read.error("text_config", "missing")
        text = read_text(read, section, TEXT)
        if read.number(thinker, "seconds_per_chunk", SECONDS_PER_CHUNK) != SECONDS_PER_CHUNK:
            raise read.error("seconds_per_chunk", f"only {SECONDS_PER_CHUNK} is supported")
        ids = {
            ours: read.integer(thinker, theirs, None, minimum=0)
            for ours, theirs in TOKEN_IDS.items()
            if theirs in thinker
        }
        return cls(
            text,
            # its own tokens_per_second is unused here: time is position_id_per_seconds
            read_vision(read, text.hidden_size, tokens_per_second=25),
            _read_audio(read, text.hidden_size),
            **ids,
            position_id_per_seconds=read.integer(thinker, "position_id_per_seconds", 25),
            tie_word_embeddings=bool(thinker.get("tie_word_embeddings", False)),
            raw=copy.deepcopy(dict(raw)),
        )

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` of this model: ``raw`` with every known field brought up to date.

        It is always that of a Qwen2.5-Omni without audio output: a talker that was read is not part
        of the model, and its configuration is left out like its weights.
        """
        raw = copy.deepcopy(dict(self.raw))
        alone = raw.get("model_type") == THINKER
        out = _fresh() if alone or not raw else raw
        if alone:
            out["thinker_config"] = raw
        for name in ("talker_config", "token2wav_config"):
            out.pop(name, None)
        out["enable_audio_output"] = False
        thinker = out["thinker_config"]
        for ours, theirs in TOKEN_IDS.items():
            thinker[theirs] = getattr(self, ours)
        thinker["position_id_per_seconds"] = self.position_id_per_seconds
        thinker["tie_word_embeddings"] = self.tie_word_embeddings
        write_text(thinker["text_config"], self.text, TEXT)
        write_fields(thinker["vision_config"], self.vision)
        write_fields(thinker["audio_config"], self.audio)
        return out

    def with_preprocessor(
        self, raw: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None
    ) -> Config:
        """This model with the pixel mean and deviation of a ``preprocessor_config.json``.

        Raises:
          InputError: its sound has other mel bins than the audio tower takes.
        """
        bins = raw.get("feature_size", self.audio.num_mel_bins)
        if bins != self.audio.num_mel_bins:
            raise InputError(
                f"{bins!r} mel bins, but the audio tower takes {self.audio.num_mel_bins}",
                file=file,
                field="feature_size",
            )
        return replace(self, **pixel_statistics(self, raw, file))

    @classmethod
    def tiny(cls, vocab_size: int, **overrides: Any) -> Config:
        """A model for tests and embedded worlds; one 56 x 56 frame is 16 patches and 4 tokens.

        ``overrides`` are fields of this class (token ids, ``tie_word_embeddings``), or fields of
        the text decoder with the prefix ``text_``, of the vision tower with ``vision_``, or of the
        audio tower with ``audio_``.
        """
        text = DecoderConfig(
            vocab_size=vocab_size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            mrope_section=(2, 3, 3),
            max_position_embeddings=8192,
            initializer_range=0.02,
        )
        vision = VisionConfig(
            hidden_size=64,
            out_hidden_size=64,
            depth=2,
            intermediate_size=128,
            num_heads=2,
            tokens_per_second=25,
            window_size=56,
            fullatt_block_indexes=(1,),
        )
        audio = AudioConfig(
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=128,
            d_model=64,
            output_dim=64,
        )
        own = {f.name for f in fields(cls)}
        chosen = override({"text": text, "vision": vision, "audio": audio}, own, overrides)
        width = chosen["text"].hidden_size
        for part, name in (("vision", "out_hidden_size"), ("audio", "output_dim")):
            if f"{part}_{name}" not in overrides:
                chosen[part] = replace(chosen[part], **{name: width})
        config = cls(**chosen)
        return replace(config, raw=cls.from_hf(config.to_hf()).raw)


def _thinker(raw: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    read = ConfigFields(raw, file)
    if raw.get("model_type") == THINKER:
        return raw
    if raw.get("model_type") != Config.model_type:
        raise read.error(
            "model_type",
            f"{raw.get('model_type')!r}, expected {Config.model_type!r} or {THINKER!r}",
        )
    thinker = read.section("thinker_config")
    if not thinker:
        raise read.error("thinker_config", "missing")
    return thinker


def _read_audio(read: ConfigFields, text_width: int) -> AudioConfig:
    section = read.section("audio_config")
    if not section:
        raise read.error("audio_config", "missing")
    act = section.get("activation_function", "gelu")
    if act != "gelu":
        raise read.error("activation_function", f"{act!r} is not supported, only 'gelu'")
    config = read.record(section, AudioConfig)
    width, heads = config.d_model, config.encoder_attention_heads
    if width % (2 * heads) or width < 4:
        raise read.error("encoder_attention_heads", f"{heads} heads do not divide {width}")
    if config.n_window % 2 or config.n_window > config.max_source_positions:
        raise read.error(
            "n_window",
            f"{config.n_window} is odd or more than {config.max_source_positions} positions",
        )
    if config.output_dim != text_width:
        raise read.error("output_dim", f"{config.output_dim}, but the decoder is {text_width} wide")
    return config


def _fresh() -> dict[str, Any]:
    return {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "model_type": Config.model_type,
        "thinker_config": {
            "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
            "model_type": THINKER,
            "seconds_per_chunk": SECONDS_PER_CHUNK,
            "text_config": {"model_type": "qwen2_5_omni_text", "hidden_act": "silu"},
            "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", "hidden_act": "silu"},
            "audio_config": {
                "model_type": "qwen2_5_omni_audio_encoder",
                "activation_function": "gelu",
            },
        },
    }
