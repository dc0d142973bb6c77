"""What AVATAR's rows show, encoded once for the reference and the update of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from flax import nnx

from turnwise_jax.data.hints import plain_id
from turnwise_jax.data.pipeline import Example
from turnwise_jax.rollout.answer_rows import Shown
from turnwise_jax.rollout.features import Encoder
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import media_batch
from turnwise_jax.rollout.shapes import RowShapes
from turnwise_jax.train.hosts import Hosts
from turnwise_jax.train.state import Batch


class AnswerMedia(NamedTuple):
    """Encodes what fresh and replayed answers look at, where towers are not trained.

    Attributes:
      encoder: the rollouts' own, with the features that it keeps.
      examples: by the names of their dialogues.
      shapes: a row bucket; all have the same room for media.
    """

    encoder: Encoder
    examples: Mapping[str, Example]
    policy: Policy
    shapes: RowShapes
    hosts: Hosts

    def encoded(self, params: nnx.State, names: Iterable[str]) -> tuple[Shown, bool]:
        """The features of dialogues, with or without their hint, and whether they were kept.

        All processes call this together: they take features from memory if all have them.
        """
        distinct = dict.fromkeys(plain_id(name) for name in names)
        found = {name: self.examples[name] for name in distinct}
        kept, examples = self.encoder.kept, tuple(found.values())
        held = kept.room > 0 and all(self.hosts.gather(kept.holds(examples, self.shapes)))
        shown = Shown.of(found, self.policy, self.shapes, kept if held else None)
        media = self.encoder(params, shown.media)
        kept.note(examples, self.shapes, media)
        return shown._replace(media=media), held

    def as_encoded(self, batch: Batch) -> Batch:
        """A batch whose encoded media are shapes alone."""
        return batch._replace(media=self.encoder.shapes(self.policy.params, batch.media))

    def program(self, params: nnx.State) -> Callable[[], object]:
        """A call that compiles what encodes."""
        media = media_batch([], self.policy, self.shapes)[0]
        return partial(self.encoder.warm_up, params, media, self.shapes)
