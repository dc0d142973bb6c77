"""The text decoder's rows of a family's name table."""

from __future__ import annotations

from turnwise_jax.models.decoder import DecoderConfig
from turnwise_jax.models.params import Path
from turnwise_jax.models.weights import Entry


def text_entries(text: DecoderConfig, *, prefix: str, head: str | None) -> list[Entry]:
    """One row per parameter of the group ``text``, in the order in which they are written.

    Args:
      text: the decoder's sizes.
      prefix: what stands before ``embed_tokens``, ``layers`` and ``norm``, with its dot.
      head: the output head's tensor; None if it is tied to the embedding.
    """
    width, hidden, layers = text.hidden_size, text.intermediate_size, text.num_hidden_layers
    queries = text.num_attention_heads * text.head_dim
    keys = text.num_key_value_heads * text.head_dim
    path, name = ("text", "decoder", "layers"), f"{prefix}layers.{{}}"

    def scale(ours: str, theirs: str, size: int) -> Entry:
        return Entry((*path, ours, "scale"), f"{name}.{theirs}.weight", (size,), False, layers)

    embedding = f"{prefix}embed_tokens.weight"
    rows = [
        Entry(("text", "embed", "embedding"), embedding, (text.vocab_size, width)),
        scale("attn_norm", "input_layernorm", width),
        scale("mlp_norm", "post_attention_layernorm", width),
    ]
    for part, out in (("q", queries), ("k", keys), ("v", keys)):
        theirs = f"{name}.self_attn.{part}_proj"
        rows += linear((*path, part), theirs, out, width, bias=text.attention_bias, layers=layers)
    if text.qk_norm:
        for part in ("q_norm", "k_norm"):
            rows.append(scale(part, f"self_attn.{part}", text.head_dim))
    theirs = f"{name}.self_attn.o_proj"
    rows += linear((*path, "o"), theirs, width, queries, bias=False, layers=layers)
    for part, out, inputs in (
        ("gate", hidden, width),
        ("up", hidden, width),
        ("down", width, hidden),
    ):
        theirs = f"{name}.mlp.{part}_proj"
        rows += linear((*path, "mlp", part), theirs, out, inputs, bias=False, layers=layers)
    rows.append(Entry(("text", "decoder", "norm", "scale"), f"{prefix}norm.weight", (width,)))
    if head is not None:
        rows.append(Entry(("text", "head", "kernel"), head, (text.vocab_size, width), True))
    return rows


def linear(
    path: Path, name: str, out: int, inputs: int, *, bias: bool, layers: int | None
) -> list[Entry]:
    """The rows of one projection: kernel, and bias if it has one."""
    rows = [Entry((*path, "kernel"), f"{name}.weight", (out, inputs), True, layers)]
    if bias:
        rows.append(Entry((*path, "bias"), f"{name}.bias", (out,), False, layers))
    return rows
