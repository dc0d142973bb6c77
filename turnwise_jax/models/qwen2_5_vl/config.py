"""Sizes and token ids of Qwen2.5-VL, read from and written to Hugging Face's ``config.json``."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from turnwise_jax.models.config_fields import (
    ConfigFields,
    override,
    pixel_statistics,
    token_id_names,
)
from turnwise_jax.models.decoder import DecoderConfig
from turnwise_jax.models.text_config import TextKind, read_text, write_fields, write_text

TEXT = TextKind()


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision tower, named as in Hugging Face's vision configuration.

    ``window_size`` is in pixels: windows are ``window_size / patch_size`` patches wide.
    ``tokens_per_second`` scales the temporal positions of videos.
    """

    hidden_size: int
    out_hidden_size: int
    depth: int = 32
    intermediate_size: int = 3420
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    tokens_per_second: int = 4
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    initializer_range: float = 0.02

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_dim(self) -> int:
        """Values of one patch: channels x frames x height x width."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def window(self) -> int:
        """Width of an attention window in merged tokens."""
        return self.window_size // self.spatial_merge_size // self.patch_size


@dataclass(frozen=True, slots=True)
class Config:
    """A Qwen2.5-VL model.

    ``image_mean`` and ``image_std`` belong to the preprocessor's file; the model applies them on
    the device. ``raw`` is the ``config.json`` that was read: fields this class does not know are
    kept there and written back.
    """

    text: DecoderConfig
    vision: VisionConfig
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    tie_word_embeddings: bool = False
    image_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    model_type = "qwen2_5_vl"

    sound_tokens = 0  # tokens of an audio slice: this family does not hear

    @property
    def merge(self) -> int:
        """Patches per merged token along one axis."""
        return self.vision.spatial_merge_size

    @classmethod
    def from_hf(
        cls, raw: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None
    ) -> Config:
        """Read ``config.json``, flat (as published) or nested (as transformers 5 writes it).

        Raises:
          InputError: another model type, a missing or impossible field, an unsupported feature.
        """
        read = ConfigFields(raw, file)
        if raw.get("model_type") != cls.model_type:
            raise read.error(
                "model_type", f"{raw.get('model_type')!r}, expected {cls.model_type!r}"
            )
        text = read_text(read, read.section("text_config") or raw, TEXT)
        vision = read_vision(read, text.hidden_size)
        return cls(
            text,
            vision,
            **read.token_ids(cls),
            tie_word_embeddings=read.tied(),
            raw=copy.deepcopy(dict(raw)),
        )

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` of this model: ``raw`` with every known field brought up to date."""
        out = copy.deepcopy(dict(self.raw)) or _fresh()
        for name in token_id_names(self):
            out[name] = getattr(self, name)
        out["tie_word_embeddings"] = self.tie_word_embeddings
        text = out.get("text_config", out)
        if "tie_word_embeddings" in text:
            text["tie_word_embeddings"] = self.tie_word_embeddings
        write_text(text, self.text, TEXT)
        write_fields(out.setdefault("vision_config", {}), self.vision)
        return out

    def with_preprocessor(
        self, raw: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None
    ) -> Config:
        """This model with the pixel mean and deviation of a ``preprocessor_config.json``."""
        return replace(self, **pixel_statistics(self, raw, file))

    @classmethod
    def tiny(cls, vocab_size: int, **overrides: Any) -> Config:
        """A model for tests and embedded worlds; one 56 x 56 frame is 16 patches and 4 tokens.

        ``overrides`` are fields of this class (token ids, ``tie_word_embeddings``), or fields of
        the text decoder with the prefix ``text_``, or of the vision tower with ``vision_``.
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
            tokens_per_second=2,
            window_size=56,
            fullatt_block_indexes=(1,),
        )
        own = {f.name for f in fields(cls)}
        chosen = override({"text": text, "vision": vision}, own, overrides)
        if "vision_out_hidden_size" not in overrides:
            width = chosen["text"].hidden_size
            chosen["vision"] = replace(chosen["vision"], out_hidden_size=width)
        config = cls(**chosen)
        return replace(config, raw=cls.from_hf(config.to_hf()).raw)


def read_vision(read: ConfigFields, text_width: int, **defaults: Any) -> VisionConfig:
    """The vision tower's sizes.

    Args:
      read: the file.
      text_width: the decoder's width, which the tower's output must have.
      defaults: for fields that the file leaves out.

    Raises:
      InputError: a missing or impossible field, an unsupported feature.
    """
    section = read.section("vision_config")
    if not section:
        raise read.error("vision_config", "missing")
    if section.get("hidden_act", "silu") != "silu":
        raise read.error("hidden_act", f"{section['hidden_act']!r} is not supported, only 'silu'")
    rope = read.subsection(section, "rope_parameters")
    if rope.get("rope_type", "axial") != "axial" or rope.get("rope_theta", 1e4) != 1e4:
        raise read.error("rope_parameters", f"vision rotary settings {rope} are not supported")
    widths = {"hidden_size": 3584, "out_hidden_size": 3584}
    config = read.record(section, VisionConfig, **widths, **defaults)
    if config.hidden_size % (4 * config.num_heads):
        raise read.error("num_heads", f"{config.num_heads} heads do not divide the vision width")
    if config.window < 1:
        raise read.error("window_size", f"{config.window_size} is less than one merged token")
    if config.out_hidden_size != text_width:
        raise read.error(
            "out_hidden_size", f"{config.out_hidden_size}, but the decoder is {text_width} wide"
        )
    return config


def _fresh() -> dict[str, Any]:
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": Config.model_type,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "hidden_act": "silu",
            # transformers would assume the published vocabulary's ids, which a smaller one lacks
            "bos_token_id": None,
            "eos_token_id": None,
        },
        "vision_config": {"model_type": "qwen2_5_vl_vision", "hidden_act": "silu"},
    }
