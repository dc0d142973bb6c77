"""Sizes and token ids of Qwen3-VL, read from and written to Hugging Face's ``config.json``."""

from __future__ import annotations

import copy
import math
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

TEXT = TextKind(
    attention_bias=False,
    qk_norm=True,
    mrope_interleaved=True,
    head_dim=128,
    num_key_value_heads=32,
    rms_norm_eps=1e-6,
    rope_theta=5e5,
    mrope_section=(24, 20, 20),
    max_position_embeddings=128000,
)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision tower, named as in Hugging Face's vision configuration.

    ``num_position_embeddings`` is a square number: learned positions stand on a square grid.
    ``deepstack_visual_indexes`` are the blocks whose outputs also go to the decoder, in order.
    """

    hidden_size: int = 1152
    out_hidden_size: int = 3584
    depth: int = 27
    intermediate_size: int = 4304
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 16
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    initializer_range: float = 0.02

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_dim(self) -> int:
        """Values of one patch: channels x frames x height x width."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def position_side(self) -> int:
        """Learned positions along one axis."""
        return math.isqrt(self.num_position_embeddings)


@dataclass(frozen=True, slots=True)
class Config:
    """A dense Qwen3-VL model.

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
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    model_type = "qwen3_vl"

    sound_tokens = 0  # tokens of an audio slice: this family does not hear

    @property
    def merge(self) -> int:
        """Patches per merged token along one axis."""
        return self.vision.spatial_merge_size

    @classmethod
    def from_hf(
        cls, raw: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None
    ) -> Config:
        """Read ``config.json``, as published or as transformers 5 writes it.

        Raises:
          InputError: another model type, a missing or impossible field, an unsupported feature.
        """
        read = ConfigFields(raw, file)
        if raw.get("model_type") != cls.model_type:
            raise read.error(
                "model_type", f"{raw.get('model_type')!r}, expected {cls.model_type!r}"
            )
        section = read.section("text_config")
        if not section:
            raise read.error("text_config", "missing")
        text = read_text(read, section, TEXT)
        return cls(
            text,
            _read_vision(read, text.hidden_size),
            **read.token_ids(cls),
            tie_word_embeddings=read.tied(),
            raw=copy.deepcopy(dict(raw)),
        )

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` of this model: ``raw`` with every known field brought up to date."""
        out = copy.deepcopy(dict(self.raw)) or _fresh()
        for name in token_id_names(self):
            out[name] = getattr(self, name)
        text = out["text_config"]
        for section in (out, *([text] if "tie_word_embeddings" in text else [])):
            section["tie_word_embeddings"] = self.tie_word_embeddings
        write_text(text, self.text, TEXT)
        write_fields(out["vision_config"], self.vision)
        return out

    def with_preprocessor(
        self, raw: Mapping[str, Any], *, file: str | os.PathLike[str] | None = None
    ) -> Config:
        """This model with the pixel mean and deviation of a ``preprocessor_config.json``."""
        return replace(self, **pixel_statistics(self, raw, file))

    @classmethod
    def tiny(cls, vocab_size: int, **overrides: Any) -> Config:
        """A model for tests and embedded worlds; one 64 x 64 frame is 16 patches and 4 tokens.

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
            mrope_section=(4, 2, 2),
            max_position_embeddings=8192,
            initializer_range=0.02,
            attention_bias=TEXT.attention_bias,
            qk_norm=TEXT.qk_norm,
            mrope_interleaved=TEXT.mrope_interleaved,
        )
        vision = VisionConfig(
            hidden_size=64,
            out_hidden_size=64,
            depth=2,
            intermediate_size=128,
            num_heads=2,
            num_position_embeddings=36,
            deepstack_visual_indexes=(0, 1),
        )
        own = {f.name for f in fields(cls)}
        chosen = override({"text": text, "vision": vision}, own, overrides)
        if "vision_out_hidden_size" not in overrides:
            width = chosen["text"].hidden_size
            chosen["vision"] = replace(chosen["vision"], out_hidden_size=width)
        config = cls(**chosen)
        return replace(config, raw=cls.from_hf(config.to_hf()).raw)


def _read_vision(read: ConfigFields, text_width: int) -> VisionConfig:
    section = read.section("vision_config")
    if not section:
        raise read.error("vision_config", "missing")
    act = section.get("hidden_act", "gelu_pytorch_tanh")
    if act != "gelu_pytorch_tanh":
        raise read.error("hidden_act", f"{act!r} is not supported, only 'gelu_pytorch_tanh'")
    rope = read.subsection(section, "rope_parameters")
    if rope.get("rope_type", "axial") != "axial" or rope.get("rope_theta", 1e4) != 1e4:
        raise read.error("rope_parameters", f"vision rotary settings {rope} are not supported")
    config = read.record(section, VisionConfig)
    if config.hidden_size % (4 * config.num_heads):
        raise read.error("num_heads", f"{config.num_heads} heads do not divide the vision width")
    if config.position_side**2 != config.num_position_embeddings:
        raise read.error(
            "num_position_embeddings", f"{config.num_position_embeddings} is not a square number"
        )
    taps = config.deepstack_visual_indexes
    if not taps or list(taps) != sorted({*taps} & {*range(config.depth)}):
        raise read.error(
            "deepstack_visual_indexes",
            f"{list(taps)} are not blocks of {config.depth} in ascending order",
        )
    if config.out_hidden_size != text_width:
        raise read.error(
            "out_hidden_size", f"{config.out_hidden_size}, but the decoder is {text_width} wide"
        )
    return config


def _fresh() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": Config.model_type,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "hidden_act": "silu",
            "attention_bias": False,
            # transformers would assume the published vocabulary's ids, which a smaller one lacks
            "bos_token_id": None,
            "eos_token_id": None,
        },
        "vision_config": {"model_type": "qwen3_vl", "hidden_act": "gelu_pytorch_tanh"},
    }
