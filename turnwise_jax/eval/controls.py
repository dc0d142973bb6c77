"""What a trained policy is held against: silence, speaking always, and media that tell nothing.

Some controls change the dialogues (another video's frames and sound), some the policy (it may not
stay silent), and some what was decoded: ``muted`` and ``blanked`` leave every token where it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from turnwise_jax.data.audio import SoundSpec, log_mel, sound_samples
from turnwise_jax.data.example import Example
from turnwise_jax.data.records import SILENCE, Dialogue, Frame, Sound, Turn
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy

MID_GREY = 128


def silent_replies(dialogue: Dialogue) -> list[str]:
    """The policy that never says anything."""
    return [SILENCE] * len(dialogue.open_turns)


def forced_to_speak(policy: Policy) -> Policy:
    """The same policy, unable to stay silent: no token is left with which ``NO REPLY`` can begin.

    Everything else is as it was, so at each turn it says what it finds most likely besides silence.
    """
    vocab = copy.copy(policy.vocab)
    texts = [vocab.decode([token]).strip() for token in range(vocab.size)]
    banned = [token for token, text in enumerate(texts) if text and SILENCE.startswith(text)]
    vocab.forbidden = np.union1d(vocab.forbidden, banned).astype(vocab.forbidden.dtype)
    return replace(policy, vocab=vocab)


def muted(example: Example, sound: SoundSpec | None = None) -> Example:
    """The same example with every sound silent: as long as before, all samples zero.

    Args:
      sound: how the sounds were prepared; published settings if None.
    """
    spec = sound or SoundSpec()
    heard = [turn.audio for turn in example.dialogue.turns if turn.audio is not None]
    silence = (log_mel(np.zeros(sound_samples(s, spec), np.float32), spec) for s in heard)
    return replace(example, sounds=tuple(silence))


def blanked(example: Example, sound: SoundSpec | None = None) -> Example:
    """The same example with every pixel of every frame mid-grey. ``sound`` is not looked at."""
    return replace(example, patches=tuple(np.full_like(p, MID_GREY) for p in example.patches))


EXAMPLE_CONTROLS: Mapping[str, Callable[[Example, SoundSpec | None], Example]] = {
    "muted": muted,
    "blanked": blanked,
}


def check_deprivable(dialogues: Sequence[Dialogue], control: str) -> None:
    """Refuse a control of ``EXAMPLE_CONTROLS`` that would change none of the dialogues."""
    kind, what = {"muted": ("sound", "a sound"), "blanked": ("frames", "frames")}[control]
    if not any(kind in _media_kinds(dialogue) for dialogue in dialogues):
        raise InputError(f"is {control!r}, but no dialogue has {what}", field="control")


def swap_frames(dialogues: Sequence[Dialogue], *, seed: int = 0) -> list[Dialogue]:
    """Every dialogue with the frames and sounds of another video; all else stays.

    The videos are put in a random circle and each takes its successor's media, so none keeps its
    own and each is used once; a successor that lacks a kind of media is passed over. Frames, and
    sounds, are taken in order, from the start again if there are too few; a question about a whole
    clip gets the whole clip of another one. Dialogues without media stay as they are.

    Raises:
      InputError: no other video has what a dialogue has.
    """
    first: dict[str, Dialogue] = {}
    for dialogue in dialogues:
        if _media_kinds(dialogue):
            first.setdefault(video_of(dialogue), dialogue)
    names = sorted(first)
    if len(names) < 2:
        raise InputError(f"swapping frames takes at least two videos, there are {len(names)}")
    circle = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    swapped = []
    for dialogue in dialogues:
        if _media_kinds(dialogue):
            dialogue = _with_clip(dialogue, _successor(dialogue, circle, first))
        swapped.append(dialogue)
    return swapped


def video_of(dialogue: Dialogue) -> str:
    """The video that a dialogue shows: its file, or the folder of its images.

    Of a question about single images it is the first of them; without frames it is the first
    sound's file, and "" without either.
    """
    for turn in dialogue.turns:
        for frame in turn.frames:
            if frame.time is not None or (dialogue.question is not None and not turn.video):
                return frame.path
            return str(Path(frame.path).parent)
    return next((turn.audio.path for turn in dialogue.turns if turn.audio), "")


def _media_kinds(dialogue: Dialogue) -> set[str]:
    """Of "frames", "video" (frames that are one video) and "sound" those that a dialogue has."""
    kinds = {"video" for turn in dialogue.turns if turn.frames and turn.video}
    kinds |= {"frames" for turn in dialogue.turns if turn.frames}
    return kinds | {"sound" for turn in dialogue.turns if turn.audio is not None}


def _successor(
    dialogue: Dialogue, circle: Sequence[str], first: Mapping[str, Dialogue]
) -> Dialogue:
    """The dialogue of the next video in the circle that has all kinds of media this one has."""
    at = circle.index(video_of(dialogue))
    for name in [*circle[at + 1 :], *circle[:at]]:
        if _media_kinds(dialogue) <= _media_kinds(first[name]):
            return first[name]
    raise InputError(
        f"no other video has its {' and '.join(sorted(_media_kinds(dialogue)))} to swap with",
        file=dialogue.file,
        record=dialogue.id,
    )


def _with_clip(dialogue: Dialogue, donor: Dialogue) -> Dialogue:
    frames = [frame for turn in donor.turns for frame in turn.frames]
    sounds = [turn.audio for turn in donor.turns if turn.audio is not None]
    turns: list[Turn] = []
    shown = played = 0
    for turn in dialogue.turns:
        own: list[Frame] = []
        audio: Sound | None = None
        if dialogue.question is not None and turn.video:
            own = frames
        else:
            for _ in turn.frames:
                own.append(frames[shown % len(frames)])
                shown += 1
        if turn.audio is not None:
            audio = sounds[played % len(sounds)]
            played += 1
        turns.append(replace(turn, frames=tuple(own), audio=audio))
    return replace(dialogue, turns=tuple(turns))
