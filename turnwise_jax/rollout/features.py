"""Features of frames and sounds: encoded on the devices, or put there from the host's memory.

Where towers are not trained, what a dialogue shows has the same features in every epoch. Those of
the dialogues that fit are kept on the host; a batch of which all are kept is not encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from turnwise_jax.data.hints import plain_id
from turnwise_jax.data.pipeline import Example
from turnwise_jax.models.media import Media, MediaInput
from turnwise_jax.models.sharding import traced_on
from turnwise_jax.rollout.decode import encode
from turnwise_jax.rollout.placement import Placement
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.shapes import RowShapes, Shapes


class SliceFeatures(NamedTuple):
    """Features by slice, as NumPy arrays or split over the devices like a ``MediaInput``.

    ``vision`` ``[S, n, M, D]``, ``audio`` ``[C, n, A, D]``: of the n layers the first is
    ``Media.features``, the others are ``Media.deep``. None: no room for such media.
    """

    vision: Any = None
    audio: Any = None


class _Entry(NamedTuple):
    """A dialogue whose features are to be kept, and where its slices stand in a process's batch."""

    key: Hashable
    vision: slice
    audio: slice


class KeptFeatures:
    """Features of what dialogues show, in at most ``room`` bytes of the host's memory.

    The first that fit stay: passes go round and round, so that throwing out the oldest would throw
    out just what comes next. Notes and questions come in turn; a thread may lay out batches
    meanwhile.

    Attributes:
      nbytes: of what is kept or noted.
    """

    def __init__(self, room: int, sound_tokens: int):
        """``sound_tokens``: A, feature rows of an audio slice."""
        self.room, self.nbytes = room, 0
        self._sound_tokens = sound_tokens
        self._kept: dict[Hashable, SliceFeatures] = {}
        self._known: set[Hashable] = set()  # kept or noted
        self._noted: list[tuple[Media, Shapes | RowShapes, list[_Entry]]] = []
        self._row: tuple[int, int, Any] = (0, 0, None)  # layers, width, dtype

    def note(self, examples: Sequence[Example], shapes: Shapes | RowShapes, media: Any) -> None:
        """Features on the devices that are to be kept; they are fetched when it is next asked.

        By then the devices have other work, and nothing waits for the towers.

        Args:
          examples: what was encoded, in order.
          shapes: the batch's.
          media: ``Media``; anything else is passed over.
        """
        if not self.room or not isinstance(media, Media):
            return
        layers = 1 if media.deep is None else 1 + media.deep.shape[0]
        self._row = layers, media.features.shape[1], media.features.dtype
        tokens = self._tokens(shapes)
        each = math.prod(self._row[:2]) * media.features.dtype.itemsize
        entries, begin = [], (0, 0)
        for example in examples:
            key, counts = _key(example, shapes), _counts(example)
            end = begin[0] + counts[0], begin[1] + counts[1]
            size = each * (counts[0] * tokens[0] + counts[1] * tokens[1])
            if key not in self._known and self.nbytes + size <= self.room:
                entries.append(_Entry(key, *map(slice, begin, end)))
                self._known.add(key)
                self.nbytes += size
            begin = end
        if entries:
            self._noted.append((media, shapes, entries))

    def holds(self, examples: Sequence[Example], shapes: Shapes | RowShapes) -> bool:
        """Whether :meth:`batch` has the features of all examples, from now on."""
        self._settle()
        found = self._found(examples, shapes)
        return found is not None and bool(shapes.slices or shapes.sounds)

    def batch(
        self, examples: Sequence[Example], shapes: Shapes | RowShapes
    ) -> SliceFeatures | None:
        """The features of all examples as their slices stand in a batch; None if any is missing."""
        found = self._found(examples, shapes)
        if found is None:
            return None
        vision, audio = zip(*found, strict=True)
        tokens, sound_tokens = self._tokens(shapes)
        return SliceFeatures(
            self._stacked(vision, shapes.slices, tokens),
            self._stacked(audio, shapes.sounds, sound_tokens),
        )

    def _found(
        self, examples: Sequence[Example], shapes: Shapes | RowShapes
    ) -> list[SliceFeatures] | None:
        found = []
        for example in examples:
            features = self._kept.get(_key(example, shapes)) if self._kept else None
            if features is None:
                return None
            found.append(features)
        return found or None

    def _settle(self) -> None:
        """Fetches what was noted."""
        noted, self._noted = self._noted, []
        for media, shapes, entries in noted:
            own = slices_of(media, shapes)
            for key, *places in entries:
                parts = (
                    None if part is None else part[place].copy()
                    for part, place in zip(own, places, strict=True)
                )
                self._kept[key] = SliceFeatures(*parts)

    def _tokens(self, shapes: Shapes | RowShapes) -> tuple[int, int]:
        """M and A: feature rows of a vision and of an audio slice."""
        return shapes.slots.tokens if shapes.slots else 0, self._sound_tokens

    def _stacked(
        self, parts: Sequence[np.ndarray | None], count: int, tokens: int
    ) -> np.ndarray | None:
        """The dialogues' slices one after the other, then empty ones up to ``count``."""
        if not count:
            return None
        layers, width, dtype = self._row
        out, begin = np.zeros((count, layers, tokens, width), dtype), 0
        for part in parts:
            if part is not None:
                out[begin : begin + len(part)] = part
                begin += len(part)
        return out


class Encoder:
    """Media of a batch to features that are whole on every device, one compilation per shape.

    Attributes:
      kept: features for later batches.
    """

    def __init__(self, policy: Policy, placement: Placement, *, room: int = 0):
        """
        Args:
          policy: its structure.
          placement: where slices and features live.
          room: bytes of the host's memory for features; 0: none are kept.
        """
        self.kept = KeptFeatures(room, policy.config.sound_tokens)
        self._placement = placement
        self._encode = jax.jit(
            partial(traced_on(placement.mesh, encode), graphdef=policy.graphdef),
            out_shardings=placement.whole,
        )
        self._join = jax.jit(_joined, out_shardings=placement.whole)

    def __call__(self, params: nnx.State, media: Any) -> Any:
        """``Media`` of a batch's ``MediaInput`` or ``SliceFeatures``; of anything else itself."""
        if isinstance(media, SliceFeatures):
            return self._join(self._placement.split(media))
        if isinstance(media, MediaInput):
            return self._encode(params, self._placement.split(media))
        return media

    def warm_up(self, params: nnx.State, media: Any, shapes: Shapes | RowShapes) -> Any:
        """Compiles what such a batch needs by running it."""
        encoded = self(params, media)
        if self.kept.room and isinstance(encoded, Media):
            self(params, slices_of(encoded, shapes))
        return encoded

    def lower(self, params: nnx.State, media: MediaInput) -> jax.stages.Lowered:
        """The encoding of such media, lowered from shapes alone."""
        return self._encode.lower(params, self._placement.split_shapes(media))

    def shapes(self, params: nnx.State, media: Any) -> Any:
        """What a call gives, as shapes alone."""
        if not isinstance(media, MediaInput):
            return media
        return jax.eval_shape(self._encode, params, self._placement.split_shapes(media))


def slices_of(media: Media, shapes: Shapes | RowShapes) -> SliceFeatures:
    """This process's share of encoded media as NumPy arrays; waits for them."""
    rows = np.asarray(media.features.addressable_data(0))[None]
    if media.deep is not None:
        rows = np.concatenate([rows, np.asarray(media.deep.addressable_data(0))])
    seen = shapes.slots.tokens * shapes.slices * shapes.parts if shapes.slices else 0
    return SliceFeatures(
        _by_slice(rows[:, :seen], shapes.slices, shapes),
        _by_slice(rows[:, seen:], shapes.sounds, shapes),
    )


def _by_slice(rows: np.ndarray, count: int, shapes: Shapes | RowShapes) -> np.ndarray | None:
    """This process's ``count`` slices ``[count, n, tokens, D]`` of all processes' rows."""
    if not count:
        return None
    layers, _, width = rows.shape
    own = slice(shapes.part * count, (shapes.part + 1) * count)
    return rows.reshape(layers, count * shapes.parts, -1, width)[:, own].swapaxes(0, 1)


def _counts(example: Example) -> tuple[int, int]:
    """Vision and audio slices."""
    return sum(t for t, _, _ in example.grids), len(example.sound_slices)


def _key(example: Example, shapes: Shapes | RowShapes) -> Hashable:
    """A dialogue, with and without its hint; and, as names may be given twice, what it shows.

    Not that alone: elsewhere in a batch the same frames may be rounded otherwise.
    """
    dialogue = example.dialogue
    shown = tuple((x.frames, x.video, x.audio) for x in dialogue.turns if x.frames or x.audio)
    return plain_id(dialogue.id), shown, shapes.slots


def _joined(features: SliceFeatures) -> Media:
    """As the towers would have given them."""
    parts = []
    for part in features:
        if part is not None:
            layers = jnp.swapaxes(part, 0, 1)
            parts.append(layers.reshape(layers.shape[0], -1, layers.shape[-1]))
    rows = jnp.concatenate(parts, axis=1)
    return Media(rows[0], rows[1:] if rows.shape[0] > 1 else None)
