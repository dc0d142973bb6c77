"""What a config would compile: its policy without weights, its shapes, its programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from turnwise_jax.data.audio import SoundSpec
from turnwise_jax.data.chat import ChatTemplate
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.tokens import Vocab
from turnwise_jax.errors import InputError
from turnwise_jax.models import MODELS
from turnwise_jax.models import io as checkpoints
from turnwise_jax.models.lora import Lora, is_adapter
from turnwise_jax.models.params import named, replaced
from turnwise_jax.rollout.features import Encoder
from turnwise_jax.rollout.policy import Policy
from turnwise_jax.rollout.prompts import empty_batch, media_batch
from turnwise_jax.rollout.rows import TrainRows, context_rows
from turnwise_jax.rollout.shapes import (
    TOKEN_MULTIPLE,
    TURN_MULTIPLE,
    RowShapes,
    Shapes,
    row_buckets,
    shared,
)
from turnwise_jax.train.answer_setup import answer_buckets, answer_rooms, grids_of, row_rooms
from turnwise_jax.train.answers import asked_forms, empty_answers
from turnwise_jax.train.collect import as_batch, run_engine, with_reference
from turnwise_jax.train.compiled import Update
from turnwise_jax.train.data import read_data
from turnwise_jax.train.forward import make_reference_step
from turnwise_jax.train.hosts import ALONE
from turnwise_jax.train.mesh import Layout
from turnwise_jax.train.optim import make_optimizer
from turnwise_jax.train.run import (
    check_features,
    keeps_reference,
    samples_ahead,
    step_arguments,
    stored_dtype,
)
from turnwise_jax.train.state import Batch, TrainState, towers_fixed

FRAME = (8, 16)  # tokens of a frame, the TurnWise paper's 128
FRAME_MARKERS = 2  # tokens around a frame's own
SOUND_SLICE_SECONDS = 2.0


class NoVocab(NamedTuple):
    """Stands for a tokenizer: of it, programs contain the marker and take a mask as argument."""

    im_end: int = 0

    def forbidden_mask(self, rows: int) -> np.ndarray:
        return np.zeros(rows, bool)


@dataclass(frozen=True)
class Plan:
    """A run's parts without values; arrays are shapes with shardings.

    ``rooms``: the largest bucket of rollouts, or of rows for sft. ``batch``: the largest one that
    the update takes. ``fresh``: of AVATAR, the part of it that was sampled from the present policy.
    """

    config: ConfigDict
    layout: Layout
    policy: Policy
    rooms: Shapes | RowShapes
    state: TrainState
    batch: Batch
    update: Update
    fresh: Batch | None = None

    @classmethod
    def of(cls, config: ConfigDict, layout: Layout) -> Plan:
        """The plan of a checked config on a mesh.

        Raises:
          InputError: a model, file or mesh that cannot be used.
        """
        policy = planned_policy(config)
        check_features(config, policy.params)
        (rooms,) = shared((planned_rooms(config, policy),), layout.row_parts, 0, 1)
        reference = keeps_reference(config)
        optimizer = make_optimizer(config.optimizer, config.run.steps or 1)
        state = layout.state_shapes(
            policy.params, optimizer, config.policy.freeze, policy.config, reference=reference
        )
        update = Update(
            step_arguments(config, policy.graphdef, layout, optimizer),
            inner_epochs=config.optimizer.inner_epochs,
            layout=layout,
            shardings=jax.tree.map(lambda leaf: leaf.sharding, state),
            recorded=samples_ahead(config),
            reference=reference and config.algorithm.name != "avatar",
        )
        if config.algorithm.name != "avatar":
            batch = planned_batch(config, policy, rooms, layout)
            batch = with_reference(batch) if reference else batch
            return cls(config, layout, policy, rooms, state, batch, update)
        fresh, batch = planned_answers(config, policy, layout)
        return cls(config, layout, policy, rooms, state, batch, update, fresh)

    def lowerings(self) -> Iterator[tuple[str, jax.stages.Lowered]]:
        """The programs of one iteration by name: ``encode``, ``begin``, ``turn``, ``encode_rows``,
        ``reference``, ``update``, ``old_logprobs``; without a barrier those of ``DesyncLoop``
        instead of ``turn``."""
        if isinstance(self.rooms, Shapes):
            engine = run_engine(self.config, self.policy, self.rooms, self.layout)
            yield from engine.lowerings(
                self.state.params,
                empty_batch(self.policy, self.rooms),
                group_size=self.config.rollout.group_size,
            )
        if self.encodes_rows and self.batch.media is not None:
            yield "encode_rows", self._encoder.lower(self.state.params, self.batch.media)
        if self.fresh is not None and self.state.reference is not None:
            step = make_reference_step(self.update.forward, self.layout.rows)
            yield "reference", step.lower(self.state, self.layout.shapes(self._taken(self.fresh)))
        for name, lower in self.update.lowerings(self.state, self._taken(self.batch)).items():
            yield name, lower()

    @property
    def keeps_features(self) -> bool:
        """Whether the update finds frames and sounds encoded already."""
        fixed = towers_fixed(self.policy.params, self.config.policy.freeze)
        supervised = isinstance(self.rooms, RowShapes)
        return fixed and (not supervised or self.config.data.features_mb > 0)

    @property
    def encodes_rows(self) -> bool:
        """Whether that is done for the update's rows apart from the rollouts'."""
        supervised = isinstance(self.rooms, RowShapes)
        return self.keeps_features and (supervised or self.fresh is not None)

    @property
    def _encoder(self) -> Encoder:
        return Encoder(self.policy, self.layout)

    def _taken(self, batch: Batch) -> Batch:
        """A batch as the update and the reference take it."""
        if not self.keeps_features:
            return batch
        return batch._replace(media=self._encoder.shapes(self.policy.params, batch.media))


def planned_policy(config: ConfigDict) -> Policy:
    """The policy of a config, shapes in place of parameters.

    Its tokenizer is read only if there are data to count with it.

    Raises:
      InputError: neither a checkpoint nor a published model, or data without a checkpoint.
    """
    fields = config.policy
    directory, model = Path(fields.checkpoint), _model_config(config)
    graphdef, params = checkpoints.build(
        model, dtype=fields.dtype, remat=fields.remat, lora=Lora.from_config(fields.lora)
    )
    dtypes = {
        path: leaf.dtype if is_adapter(path) else jnp.dtype(stored_dtype(config, path))
        for path, leaf in named(params).items()
    }
    leaves = {
        path: jax.ShapeDtypeStruct(leaf.shape, dtypes[path]) for path, leaf in named(params).items()
    }
    family = MODELS[model.model_type]
    vocab, spec, template = NoVocab(), None, None
    if _has_data(config):
        if not fields.checkpoint:
            raise InputError(
                "the data's lengths need a tokenizer: also give policy.checkpoint", field="data"
            )
        vocab = Vocab.from_pretrained(directory)
        spec = FrameSpec.from_pretrained(directory).at_most(config.data.max_pixels)
        sound = SoundSpec.from_pretrained(directory) if model.sound_tokens else None
        template = ChatTemplate(vocab, spec, style=family.CHAT, sound=sound)
    parts: Any = {"vocab": vocab, "spec": spec, "template": template}
    return Policy(
        directory=directory,
        graphdef=graphdef,
        params=replaced(params, leaves),
        config=model,
        family=family,
        lora=Lora.from_config(fields.lora),
        **parts,
    )


def _model_config(config: ConfigDict) -> Any:
    if config.policy.checkpoint:
        return checkpoints.load_config(config.policy.checkpoint)
    name, _, size = config.compile.model.partition("/")
    published = getattr(MODELS.get(name), "PUBLISHED", {})
    if size not in published:
        known = [f"{kind}/{s}" for kind, family in MODELS.items() for s in family.PUBLISHED]
        raise InputError(
            f"{config.compile.model!r} is not one of {', '.join(known)}", field="compile.model"
        )
    return MODELS[name].Config.from_hf(published[size])


def _has_data(config: ConfigDict) -> bool:
    return bool(config.data.path or config.data.root)


def planned_rooms(config: ConfigDict, policy: Policy) -> Shapes | RowShapes:
    """The largest bucket of a run: measured from its data, or from ``config.compile``."""
    size = config.data.batch_size
    supervised = config.algorithm.name == "sft"
    if not _has_data(config):
        return _assumed_rooms(config, policy, size)
    data = read_data(config, policy)
    if config.algorithm.name == "avatar":
        asked = asked_forms(data.dialogues, hints=config.hints.use)
        return answer_buckets(config, policy, asked, grids_of(asked, data), 1)[-1]
    if supervised:
        return RowShapes.for_dialogues(
            *data.every,
            policy,
            batch_size=size,
            lengths=config.shapes.row_lengths,
        )[-1]
    return Shapes.for_dialogues(
        data.dialogues,
        data.grids,
        policy,
        batch_size=size,
        new_tokens=config.rollout.max_new_tokens,
        lengths=config.shapes.rollout_lengths,
    )[-1]


def _assumed_rooms(config: ConfigDict, policy: Policy, size: int) -> Shapes | RowShapes:
    """Of ``size`` prompts as ``config.compile`` describes them."""
    fields, merge = config.compile, policy.config.merge
    later = (fields.turns - 1) * fields.turn_frames
    if later > fields.frames:
        raise InputError(f"the turns show {later} frames of {fields.frames}", field="compile")
    if fields.sound and not policy.config.sound_tokens:
        raise InputError(f"{policy.config.model_type} takes no sound", field="compile.sound")
    pair = policy.config.vision.temporal_patch_size if fields.video else 1
    height, width = assumed_frame(config, policy.config.vision.patch_size * merge)
    each = height * width + FRAME_MARKERS
    sounds = -(-fields.sound // SOUND_SLICE_SECONDS)
    context = (fields.frames - later) // pair * each + fields.text
    context += int(sounds) * policy.config.sound_tokens
    turn = fields.turn_frames // pair * each + fields.turn_text
    media = {
        "slices": size * (fields.frames // pair),
        "slots": policy.family.slots_for([(height * merge, width * merge)], policy.config),
        "sounds": size * int(sounds),
    }
    shown = context + (fields.turns - 1) * turn
    if config.algorithm.name == "sft":
        said = fields.turns * fields.turn_text
        length = _up(shown + said, TOKEN_MULTIPLE)
        return RowShapes(size, length, _up(said, TURN_MULTIPLE), fields.turns, **media)
    new = config.rollout.max_new_tokens
    return Shapes(
        batch=size,
        context=_up(context, TOKEN_MULTIPLE),
        turn=_up(turn, TURN_MULTIPLE),
        turns=fields.turns,
        new_tokens=new,
        branch=_up(1 + shown - context + fields.turns * (new + 1), TOKEN_MULTIPLE),
        **media,
    )


def assumed_frame(config: ConfigDict, factor: int) -> tuple[int, int]:
    """Tokens of a frame, high and wide, where no data says how large frames are.

    Args:
      factor: side in pixels of what one token covers.

    Raises:
      InputError: ``compile.frame`` is no size, or more than ``data.max_pixels`` allows.
    """
    given, most = tuple(config.compile.frame), config.data.max_pixels // factor**2
    if given:
        if len(given) != 2 or not all(isinstance(side, int) and side > 0 for side in given):
            raise InputError(f"must be two numbers of tokens, is {given}", field="compile.frame")
        if config.data.max_pixels and given[0] * given[1] > most:
            raise InputError(
                f"{given} are {given[0] * given[1]} tokens, but data.max_pixels "
                f"{config.data.max_pixels} leaves a frame {most}; leave compile.frame out",
                field="compile.frame",
            )
        return given
    if not config.data.max_pixels:
        return FRAME
    sizes = [(high, min(most // high, 2 * high)) for high in range(1, math.isqrt(most) + 1)]
    return max(sizes, key=lambda size: (size[0] * size[1], size[1]), default=(1, 1))


def planned_batch(
    config: ConfigDict, policy: Policy, rooms: Shapes | RowShapes, layout: Layout
) -> Batch:
    """An empty batch of the largest shape that the update can meet."""
    context = None
    if isinstance(rooms, RowShapes):
        count, length, actions = rooms.batch, rooms.length, rooms.actions
    else:
        count, shared_context = (
            rooms.batch * config.rollout.group_size,
            config.shapes.shared_context,
        )
        lengths = config.shapes.row_lengths
        length, actions = row_buckets(rooms, 1, shared=shared_context, lengths=lengths)[-1]
        if shared_context:
            copies = layout.copies(rooms.batch, config.optimizer.accumulate)
            context = context_rows(empty_batch(policy, rooms, count=rooms.batch), copies=copies)
    rows = TrainRows.empty(count, length, actions)
    media = media_batch([], policy, rooms)[0]
    return as_batch(media, rows, np.zeros((count, rooms.turns), np.float32), context)


def planned_answers(config: ConfigDict, policy: Policy, layout: Layout) -> tuple[Batch, Batch]:
    """Empty batches of AVATAR's fresh samples, and of these beside replayed ones."""
    if _has_data(config):
        data = read_data(config, policy)
        asked = asked_forms(data.dialogues, hints=config.hints.use)
        rooms = answer_rooms(config, policy, asked, grids_of(asked, data), layout, ALONE)
        return (
            empty_answers(policy, rooms.fresh[-1])._replace(mixture=None),
            empty_answers(policy, rooms.mixed[-1]),
        )
    prompts, replayed = config.data.batch_size, config.data.batch_size * config.replay.samples
    fresh = prompts * config.rollout.group_size

    def batch(distinct: int, count: int) -> Batch:
        rows = row_rooms(_assumed_rooms(config, policy, distinct), count, 1)
        return empty_answers(policy, shared(rows, layout.row_parts, 0, 1)[-1])

    distinct = prompts + replayed
    alone = distinct if towers_fixed(policy.params, config.policy.freeze) else prompts
    return batch(alone, fresh)._replace(mixture=None), batch(distinct, fresh + replayed)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
