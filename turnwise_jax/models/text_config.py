"""The text decoder's part of ``config.json``, which the families spell almost alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from turnwise_jax.models.config_fields import ConfigFields
from turnwise_jax.models.decoder import DecoderConfig

_ROPE = ("rope_theta", "mrope_section", "mrope_interleaved")
_KINDS = ("attention_bias", "qk_norm")
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)


class TextKind(NamedTuple):
    """What a family's code fixes, and its defaults for fields that a file may leave out.

    ``head_dim`` None: heads share ``hidden_size`` equally and the file does not say it.
    """

    attention_bias: bool = True
    qk_norm: bool = False
    mrope_interleaved: bool = False
    head_dim: int | None = None
    num_key_value_heads: int = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e6
    mrope_section: tuple[int, ...] = (16, 24, 24)
    max_position_embeddings: int = 32768
    initializer_range: float = 0.02


def read_text(read: ConfigFields, section: Mapping[str, Any], kind: TextKind) -> DecoderConfig:
    """The decoder's sizes.

    Args:
      read: the file, for its errors.
      section: the object with the text decoder's fields.
      kind: the family's.

    Raises:
      InputError: a missing or impossible field, an unsupported feature.
    """
    _check_supported(read, section, kind)
    sizes = {name: read.integer(section, name, None) for name in SIZES}
    heads = sizes["num_attention_heads"]
    kv_heads = read.integer(section, "num_key_value_heads", kind.num_key_value_heads)
    if kind.head_dim is None:
        if sizes["hidden_size"] % (2 * heads):
            raise read.error("num_attention_heads", f"{heads} heads do not divide the hidden size")
        head_dim = sizes["hidden_size"] // heads
    else:
        head_dim = read.integer(section, "head_dim", kind.head_dim)
    if heads % kv_heads:
        raise read.error("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    theta, sections = _read_rope(read, section, head_dim, kind)
    return DecoderConfig(
        **sizes,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=read.number(section, "rms_norm_eps", kind.rms_norm_eps),
        rope_theta=theta,
        mrope_section=sections,
        max_position_embeddings=read.integer(
            section, "max_position_embeddings", kind.max_position_embeddings
        ),
        initializer_range=read.number(section, "initializer_range", kind.initializer_range),
        attention_bias=kind.attention_bias,
        qk_norm=kind.qk_norm,
        mrope_interleaved=kind.mrope_interleaved,
    )


def write_text(section: dict[str, Any], config: DecoderConfig, kind: TextKind) -> None:
    """Bring the text decoder's fields in ``section`` up to date."""
    unwritten = {*_ROPE, *_KINDS, *(("head_dim",) if kind.head_dim is None else ())}
    write_fields(section, config, skip=unwritten)
    if section.get("layer_types"):
        section["layer_types"] = ["full_attention"] * config.num_hidden_layers
    _write_rope(section, config)


def write_fields(section: dict[str, Any], config: Any, skip: Any = ()) -> None:
    """A dataclass's fields into an object of the file, tuples as lists."""
    for f in fields(config):
        if f.name not in skip:
            value = getattr(config, f.name)
            section[f.name] = list(value) if isinstance(value, tuple) else value


def _check_supported(read: ConfigFields, section: Mapping[str, Any], kind: TextKind) -> None:
    if section.get("hidden_act", "silu") != "silu":
        raise read.error("hidden_act", f"{section['hidden_act']!r} is not supported, only 'silu'")
    if section.get("attention_bias", kind.attention_bias) != kind.attention_bias:
        raise read.error("attention_bias", f"only {kind.attention_bias} is supported")
    layers = read.integer(section, "num_hidden_layers", None)
    sliding_from = read.integer(section, "max_window_layers", 80, minimum=0)
    slides = section.get("use_sliding_window") and sliding_from < layers
    if slides or section.get("layer_types") not in (None, ["full_attention"] * layers):
        raise read.error("use_sliding_window", "sliding-window attention is not supported")


def _read_rope(
    read: ConfigFields, section: Mapping[str, Any], head_dim: int, kind: TextKind
) -> tuple[float, tuple[int, ...]]:
    spelling = "rope_scaling" if section.get("rope_scaling") else "rope_parameters"
    rope = read.subsection(section, spelling)
    name = rope.get("rope_type", rope.get("type", "default"))
    if name not in ("default", "mrope"):
        raise read.error(spelling, f"rotary type {name!r} is not supported")
    if rope.get("mrope_interleaved", kind.mrope_interleaved) != kind.mrope_interleaved:
        raise read.error("mrope_interleaved", f"only {kind.mrope_interleaved} is supported")
    theta = read.number(rope, "rope_theta", section.get("rope_theta", kind.rope_theta))
    sections = read.integers(rope, "mrope_section", kind.mrope_section)
    if len(sections) != 3 or 2 * sum(sections) != head_dim:
        raise read.error("mrope_section", f"{list(sections)} does not add up to half of {head_dim}")
    return theta, sections


def _write_rope(text: dict[str, Any], config: DecoderConfig) -> None:
    values: dict[str, Any] = {"mrope_section": list(config.mrope_section)}
    if config.mrope_interleaved:
        values["mrope_interleaved"] = True
    if text.get("rope_scaling"):
        text["rope_scaling"].update(values)
        if "rope_theta" in text["rope_scaling"]:
            text["rope_scaling"]["rope_theta"] = config.rope_theta
        else:
            text["rope_theta"] = config.rope_theta
        return
    rope = text.get("rope_parameters") or {"rope_type": "default"}
    text["rope_parameters"] = {**rope, "rope_theta": config.rope_theta, **values}
