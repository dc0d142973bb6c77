"""Decoded examples within a bounded amount of memory; what does not fit is decoded again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.example import Example, load_example
from turnwise_jax.data.frame_cache import FrameCache
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.records import Dialogue


class KeptExamples:
    """Examples of known dialogues by name; those used last are kept, up to ``room`` bytes.

    Decoding always gives the same pixels and sounds, so that nothing depends on what is kept.

    Args:
      dialogues: by name.
      spec, sound: how frames and sounds are prepared, see ``load_example``.
      room: bytes.
      cache: prepared frames and sounds on disk, for what is decoded again.
    """

    def __init__(
        self,
        dialogues: Mapping[str, Dialogue],
        spec: FrameSpec,
        sound: SoundSpec | None,
        room: int,
        cache: FrameCache | None = None,
    ):
        self._dialogues, self._how, self._room = dialogues, (spec, sound, cache), room
        self._kept: OrderedDict[str, Example] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, name: str) -> Example:
        """The example, decoded if need be.

        Raises:
          InputError: a medium that cannot be used any more.
        """
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        example = load_example(self._dialogues[name], *self._how)
        self.add(example)
        return example

    def add(self, example: Example) -> None:
        """Keep an example that is decoded already, at the cost of those used longest ago."""
        name = example.dialogue.id
        if name in self._kept:
            self._kept.move_to_end(name)
            return
        self._kept[name] = example
        self.nbytes += example.nbytes
        while self.nbytes > self._room:
            _, dropped = self._kept.popitem(last=False)
            self.nbytes -= dropped.nbytes
