"""Floating-point operations and memory traffic of a program, counted from the model's own sizes.

XLA's counter takes the body of a loop once, and the layers, micro-batches and query blocks of this
project are loops. So the work is counted here: every projection is a kernel ``[.., I, O]`` applied
at a number of positions (2 operations per entry and position), every attention 4 operations per
query-key pair and channel. A multiplication with masked entries counts where it is executed:
attention leaves out most keys that come after their queries (``kernels/attention.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from turnwise_jax.kernels.attention import causal_pairs
from turnwise_jax.models.lora import is_adapter
from turnwise_jax.models.params import Path, named

PROJECTIONS = ("kernel", "lora_a", "lora_b")
_LAYERS = {"layers", "blocks"}  # what rematerialisation computes again
_FIRST = {("vision", "patch"), ("audio", "conv1")}
SCORE_BYTES = 8  # a float32 attention score is written once and read once


class Use(NamedTuple):
    """Where a program applies the network once, all rows and devices together.

    ``tokens``: positions in the decoder. ``pairs``: query-key pairs of one of its heads. ``heads``:
    positions at the output head. ``patches``: slots in the vision tower, ``frame_pairs``: their
    pairs, summed over the tower's layers. ``sounds``: audio slices.
    """

    tokens: int = 0
    pairs: int = 0
    heads: int = 0
    patches: int = 0
    frame_pairs: int = 0
    sounds: int = 0


class Work(NamedTuple):
    """Operations of all devices together; bytes of weights (each device) and of all else (all)."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    other_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Work:
        """The same work several times."""
        return Work(*(factor * value for value in self))


class Passes(NamedTuple):
    """How often a forward computation is executed in the end; a backward product counts as one.

    ``projections``: of a kernel, by its path. ``attention``: of the decoder. ``vision``, ``audio``:
    of the towers' attention.
    """

    projections: Callable[[Path], float]
    attention: float = 1.0
    vision: float = 1.0
    audio: float = 1.0


ONCE = Passes(lambda path: 1.0)


def media_use(config: Any, media: Any) -> Use:
    """What encoding a batch's ``MediaInput`` (arrays or their shapes) takes."""
    use = Use()
    if media is None:
        return use
    if media.vision is not None:
        lead = media.vision.valid.shape
        depth = config.vision.depth
        full = len(getattr(config.vision, "fullatt_block_indexes", range(depth)))
        windowed = depth - full
        pairs = full * lead[0] * math.prod(lead[1:]) ** 2
        pairs += windowed * math.prod(lead[:-1]) * lead[-1] ** 2
        use = use._replace(patches=math.prod(lead), frame_pairs=pairs)
    if media.audio is not None:
        use = use._replace(sounds=media.audio.mel.shape[0])
    return use


def rows_use(batch: Any) -> list[Use]:
    """Of a batch's rows and, before them, of the contexts that they share, if any."""
    rows, length = batch.tokens_NT.shape
    actions = batch.action_pos_NA.shape[1]
    own = causal_pairs(length)
    if batch.context is None:
        return [Use(rows * length, rows * own, rows * actions)]
    contexts, shared = batch.context.tokens.shape
    return [
        Use(contexts * shared, contexts * causal_pairs(shared)),
        Use(rows * length, rows * (length * shared + own), rows * actions),
    ]


def work(config: Any, params: Any, use: Use, *, passes: Passes = ONCE, itemsize: int = 2) -> Work:
    """What one application of the network takes.

    Args:
      config: the model's.
      params: its parameters, or their shapes.
      use: where it is applied.
      passes: how often each part is executed.
      itemsize: bytes of a value in the compute dtype.
    """
    leaves = named(params)
    kernels = {path: leaf.shape for path, leaf in leaves.items() if path[-1] in PROJECTIONS}
    if config.tie_word_embeddings:
        kernels["text", "head", "kernel"] = leaves["text", "embed", "embedding"].shape
    total = _attention(config, use, passes, itemsize)
    for path, shape in kernels.items():
        count = _positions(path, config, use)
        if count:
            one = Work(
                flops=2.0 * math.prod(shape) * count,
                weight_bytes=float(math.prod(shape) * itemsize),
                other_bytes=float(math.prod(shape[:-2]) * sum(shape[-2:]) * count * itemsize),
            )
            total += one.times(passes.projections(path))
    return total


def update_passes(params: Any, trains: Callable[[Path], bool], remat: str) -> Passes:
    """Passes of a gradient step, in which the decoder is differentiated.

    So is a tower that has anything to train, from its first layer on.

    Args:
      params: the model's, or their shapes.
      trains: whether a parameter is trained.
      remat: one of ``REMAT``.
    """
    sloped = {"text"} | {path[0] for path in named(params) if trains(path)}

    def projections(path: Path) -> float:
        own = 1.0 if trains(path) else 0.0
        again = 1.0 if remat == "full" and _LAYERS & set(path) else 0.0
        if path[:2] == ("text", "head"):
            return 3.0 + own  # logits, logits again, of the hidden state, of the head
        if path[0] not in sloped or path[:2] in _FIRST:  # no slope of pixels and sounds
            return 1.0 + own
        return 2.0 + again + own

    # Two products forwards, five backwards: scores again, slopes of weights, queries, keys, values.
    attention = 3.5 + (remat != "none")
    towers = (attention if tower in sloped else 1.0 for tower in ("vision", "audio"))
    return Passes(projections, attention, *towers)


def optimizer_bytes(params: Mapping[Path, Any], trains: Callable[[Path], bool]) -> float:
    """Traffic of one optimizer update, all devices together.

    Gradient, parameter and two moments are read, all but the gradient written; 4 bytes each.
    """
    count = sum(math.prod(leaf.shape) for path, leaf in params.items() if trains(path))
    return 4.0 * 7 * count


def _attention(config: Any, use: Use, passes: Passes, itemsize: int) -> Work:
    text = config.text
    pairs = float(use.pairs * text.num_hidden_layers * text.num_attention_heads)
    decoder = Work(4.0 * pairs * text.head_dim, 0.0, SCORE_BYTES * pairs).times(passes.attention)
    vision = Work(
        4.0 * use.frame_pairs * config.vision.hidden_size,
        0.0,
        float(SCORE_BYTES * use.frame_pairs * config.vision.num_heads),
    )
    total = decoder + vision.times(passes.vision)
    if use.sounds:
        audio = config.audio
        steps = audio.slice_frames // 2
        pairs = float(use.sounds * steps**2 * audio.encoder_layers)
        heads = audio.encoder_attention_heads
        sound = Work(4.0 * pairs * audio.d_model, 0.0, SCORE_BYTES * pairs * heads)
        total += sound.times(passes.audio)
    return total


def _positions(path: Path, config: Any, use: Use) -> int:
    """At how many positions a projection is applied."""
    name = "/".join(path[:-1])
    frames = use.sounds * (config.audio.slice_frames if use.sounds else 0)
    table = (
        (r"text/head", use.heads),
        (r"text/.*", use.tokens),
        (r"vision/(patch|blocks/.*)", use.patches),
        (r"vision/.*", use.patches // config.merge**2),
        (r"audio/conv1/.*", frames),
        (r"audio/(conv2|blocks)/.*", frames // 2),
        (r"audio/proj", frames // 4),
    )
    for pattern, count in table:
        if re.fullmatch(pattern, name):
            return count
    raise KeyError(f"no rule for the projection {name}")


def count_parameters(params: Any, *, adapters: bool = True) -> int:
    """Entries of all parameters, with or without adapters."""
    return sum(
        math.prod(leaf.shape)
        for path, leaf in named(params).items()
        if adapters or not is_adapter(path)
    )
