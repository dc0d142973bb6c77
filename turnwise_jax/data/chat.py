"""The chat template: dialogues to token ids. The only place that knows the chat format.

Qwen's template, built from ids so that user text can never forge a marker::

    <|im_start|>system\\n...<|im_end|>\\n
    <|im_start|>user\\n frames and sound, text<|im_end|>\\n
    <|im_start|>assistant\\n reply <|im_end|>\\n<|im_start|>user\\n ...

How frames and sound are written depends on the model family, see ``data.media_text``. Sampled ids
are kept as they are: the sequence that is trained is the sequence that was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnwise_jax.data.audio import SoundSpec, sound_frames, sound_slices, sound_tokens
from turnwise_jax.data.images import FrameSpec
from turnwise_jax.data.media_text import (
    HEARING,
    STYLES,
    Grid,
    MediaSpan,
    TurnMedia,
    frame_times,
)
from turnwise_jax.data.records import Dialogue, media_groups
from turnwise_jax.data.tokens import Vocab
from turnwise_jax.errors import InputError

DEFAULT_SYSTEM = (
    "You are a helpful assistant watching a video as it plays. Frames keep arriving; use them to "
    "answer the user's questions. After each segment, reply only if it lets you say something that "
    'you have not said yet. If it does not, output "NO REPLY".'
)

Reply = tuple[Sequence[int], bool]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens (int32[T]) and the media among them."""

    tokens: np.ndarray
    media: tuple[MediaSpan, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One training row.

    tokens: int32[T]. media: spans, offsets in this row. loss_mask: bool[T], True on the tokens
    that are trained (as targets). turn_id: int32[T], 0..K-1 on those tokens, else -1.
    """

    tokens: np.ndarray
    media: tuple[MediaSpan, ...]
    loss_mask: np.ndarray
    turn_id: np.ndarray


class Lengths(NamedTuple):
    """Token counts: the context, and open turns 1, 2, ... (``turns[k - 1]`` is that of turn k)."""

    context: int
    turns: tuple[int, ...]


class ChatTemplate:
    """Turns dialogues into token pieces for one vocabulary and one preprocessing.

    ``grids`` is always that of the whole dialogue: one (t, h, w) per image and per video turn, in
    the order of ``records.media_groups``. The length of a sound follows from the record alone.
    """

    def __init__(
        self,
        vocab: Vocab,
        spec: FrameSpec,
        *,
        style: str = "qwen2_5_vl",
        sound: SoundSpec | None = None,
        system: str = DEFAULT_SYSTEM,
    ):
        """``style``: a key of ``media_text.STYLES``. ``sound``: published settings if None.

        Raises:
          InputError: no such style, or a tokenizer without markers for a style that hears.
        """
        if style not in STYLES:
            raise InputError(f"{style!r} is none of {', '.join(STYLES)}", field="style")
        if style in HEARING and None in (vocab.audio_pad, vocab.audio_start, vocab.audio_end):
            raise InputError(f"the tokenizer has no markers for sound, which {style} needs")
        self.vocab = vocab
        self.spec = spec
        self.style = style
        self.sound = (sound or SoundSpec()) if style in HEARING else None
        self.system = system
        self._newline = vocab.encode("\n")
        self._assistant = [vocab.im_start, *vocab.encode("assistant\n")]

    def context(self, dialogue: Dialogue, grids: Sequence[Grid], upto: int | None = None) -> Piece:
        """All that stands before the first sampled token.

        System text, the turns before ``upto`` with their replies, turn ``upto``, assistant header.

        Args:
          upto: index into ``dialogue.turns``; the first open turn if None.
        """
        upto = dialogue.first_open if upto is None else upto
        if not 0 <= upto < len(dialogue.turns):
            raise ValueError(f"dialogue {dialogue.id!r} has no turn {upto} to decide")
        builder = _Builder(self, dialogue, grids)
        builder.opening(upto)
        return builder.piece()

    def turn(self, dialogue: Dialogue, k: int, grids: Sequence[Grid]) -> Piece:
        """What follows the end marker of open turn ``k - 1``: newline, user turn ``k``, header.

        Args:
          k: 1 <= k < number of open turns.
        """
        if not 1 <= k < len(dialogue.open_turns):
            raise ValueError(f"dialogue {dialogue.id!r} has no open turn {k} after the first")
        builder = _Builder(self, dialogue, grids)
        builder.add(self._newline)
        builder.user(dialogue.first_open + k)
        return builder.piece()

    def lengths(self, dialogue: Dialogue, grids: Sequence[Grid]) -> Lengths:
        """Token counts of the context and of every later open turn, without any pixels."""
        count = len(dialogue.open_turns)
        return Lengths(
            len(self.context(dialogue, grids).tokens),
            tuple(len(self.turn(dialogue, k, grids).tokens) for k in range(1, count)),
        )

    def sound_slices(self, dialogue: Dialogue) -> int:
        """Audio slices of all sounds of a dialogue, without decoding any."""
        if self.sound is None:
            return 0
        sounds = [turn.audio for turn in dialogue.turns if turn.audio is not None]
        return sum(sound_slices(sound_frames(sound, self.sound), self.sound) for sound in sounds)

    def close(self, ids: Sequence[int], truncated: bool) -> list[int]:
        """The ids of one sampled turn with exactly one end marker at the end.

        Args:
          ids: sampled ids, the end marker included where it was sampled.
          truncated: the turn was cut at the length limit, so no marker was sampled.
        """
        ids = [int(index) for index in ids]
        ended = bool(ids) and ids[-1] == self.vocab.im_end
        if ended == truncated or self.vocab.im_end in ids[:-1]:
            state = "cut" if truncated else "finished"
            raise ValueError(f"a {state} turn cannot have the ids {ids}")
        return [*ids, self.vocab.im_end] if truncated else ids

    def training_row(
        self,
        dialogue: Dialogue,
        grids: Sequence[Grid],
        replies: Sequence[Reply] | None = None,
    ) -> Row:
        """The dialogue as one row to train on.

        Args:
          replies: (sampled ids, truncated) of the open turns in order, the end marker included
            where it was sampled. Exactly those ids are trained; a marker inserted after a cut
            turn is not. Fewer replies than open turns end the row early.
            None: supervised; all given replies and their end markers are trained.
        """
        builder = _Builder(self, dialogue, grids)
        if replies is None:
            if not dialogue.first_open:
                raise ValueError(f"dialogue {dialogue.id!r} has no given reply to train on")
            sampled = [
                ([*self.vocab.encode(turn.reply or ""), self.vocab.im_end], False)
                for turn in dialogue.turns[: dialogue.first_open]
            ]
            first = 0
        else:
            if not 1 <= len(replies) <= len(dialogue.open_turns):
                raise ValueError(
                    f"dialogue {dialogue.id!r}: {len(replies)} sampled turns for "
                    f"{len(dialogue.open_turns)} open ones"
                )
            sampled, first = list(replies), dialogue.first_open
        builder.opening(first)
        for k, (ids, truncated) in enumerate(sampled):
            if k:
                builder.add(self._newline)
                builder.user(first + k)
            closed = self.close(ids, truncated)
            builder.add(closed[: len(ids)], turn=k)
            builder.add(closed[len(ids) :])
        return builder.row()


class _Builder:
    """Appends parts of one dialogue and keeps tokens, media spans and turn ids in step."""

    def __init__(self, template: ChatTemplate, dialogue: Dialogue, grids: Sequence[Grid]):
        self._template = template
        self._dialogue = dialogue
        self._media = _media_by_turn(dialogue, grids, template)
        self._tokens: list[int] = []
        self._turn_id: list[int] = []
        self._spans: list[MediaSpan] = []

    def add(self, ids: Sequence[int], *, turn: int = -1) -> None:
        """Appends ids; ``turn`` >= 0 trains them as that turn's."""
        self._tokens.extend(ids)
        self._turn_id.extend([turn] * len(ids))

    def opening(self, upto: int) -> None:
        """System text, given turns before ``upto`` with their replies, user turn ``upto``."""
        vocab = self._template.vocab
        system = self._dialogue.system
        text = self._template.system if system is None else system
        self.add([vocab.im_start, *vocab.encode(f"system\n{text}"), vocab.im_end])
        self.add(self._template._newline)
        for index, turn in enumerate(self._dialogue.turns[:upto]):
            if turn.reply is None:
                raise ValueError(f"turn {index} before {upto} is open: its reply is not given")
            self.user(index)
            self.add([*vocab.encode(turn.reply), vocab.im_end, *self._template._newline])
        self.user(upto)

    def user(self, index: int) -> None:
        """User turn ``index`` and the assistant header after it."""
        template, vocab = self._template, self._template.vocab
        turn, media = self._dialogue.turns[index], self._media[index]
        shown = bool(media.spans or media.sound)
        # Without media the text shares the header's run of plain text, as in the template.
        header, text = ("user\n", turn.text) if shown else (f"user\n{turn.text}", "")
        self.add([vocab.im_start, *vocab.encode(header)])
        for part in STYLES[template.style](media, vocab, template.spec.temporal_patch_size):
            if isinstance(part, MediaSpan):
                self._spans.append(part._replace(start=len(self._tokens)))
                pads = part.tokens(template.spec.merge_size)
                self.add([vocab.placeholder(part.kind)] * pads)
            else:
                self.add(part)
        self.add([*vocab.encode(text), vocab.im_end, *template._newline])
        self.add(template._assistant)

    def piece(self) -> Piece:
        return Piece(np.array(self._tokens, np.int32), tuple(self._spans))

    def row(self) -> Row:
        turn_id = np.array(self._turn_id, np.int32)
        tokens = np.array(self._tokens, np.int32)
        return Row(tokens, tuple(self._spans), turn_id >= 0, turn_id)


def _media_by_turn(
    dialogue: Dialogue, grids: Sequence[Grid], template: ChatTemplate
) -> list[TurnMedia]:
    """Media of each turn, offsets still 0, slices numbered through the dialogue."""
    groups = media_groups(dialogue)
    if len(groups) != len(grids):
        raise ValueError(f"dialogue {dialogue.id!r}: {len(grids)} grids, {len(groups)} needed")
    spans: list[list[MediaSpan]] = [[] for _ in dialogue.turns]
    times = _shown_at(dialogue)
    number = 0
    for (index, _, video), grid in zip(groups, grids, strict=True):
        seconds = _seconds_per_grid(times[index], template.spec) if video else None
        span = MediaSpan(0, tuple(grid), "video" if video else "image", seconds, number)
        spans[index].append(span)
        number += grid[0]
    return [
        TurnMedia(tuple(own), sound, own_times)
        for own, sound, own_times in zip(
            spans, _sound_spans(dialogue, template), times, strict=True
        )
    ]


def _shown_at(dialogue: Dialogue) -> list[tuple[float, ...]]:
    """When the frames of each turn are shown, seconds."""
    before = [0.0, *(turn.time for turn in dialogue.turns)]
    return [
        frame_times(turn.frames, since, turn.time)
        for turn, since in zip(dialogue.turns, before, strict=False)
    ]


def _sound_spans(dialogue: Dialogue, template: ChatTemplate) -> list[MediaSpan | None]:
    """The sound of each turn, offsets still 0, audio slices numbered through the dialogue."""
    spans: list[MediaSpan | None] = []
    number = 0
    for index, turn in enumerate(dialogue.turns):
        if turn.audio is None:
            spans.append(None)
            continue
        at = {"file": dialogue.file, "record": dialogue.id, "field": f"turns[{index}].audio"}
        if template.sound is None:
            raise InputError(f"has a sound, which {template.style} cannot hear", **at)
        try:
            frames = sound_frames(turn.audio, template.sound)
        except InputError as error:
            raise InputError(error.message, **at) from error
        spans.append(MediaSpan(0, (sound_tokens(frames), 1, 1), "audio", None, number))
        number += sound_slices(frames, template.sound)
    return spans


def _seconds_per_grid(times: Sequence[float], spec: FrameSpec) -> float:
    """Seconds one temporal patch covers, from the mean distance of a video turn's frames.

    A frame a second where there is no distance: one frame, or no time at all.
    """
    interval = (times[-1] - times[0]) / max(1, len(times) - 1)
    return spec.temporal_patch_size * (interval or 1.0)
