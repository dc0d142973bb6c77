"""What a trained policy is held against: silence, speaking always, and another video's frames."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from turnwise_jax.data.records import SILENCE, Dialogue, Frame, Turn
from turnwise_jax.errors import InputError
from turnwise_jax.rollout.policy import Policy


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


def swap_frames(dialogues: Sequence[Dialogue], *, seed: int = 0) -> list[Dialogue]:
    """Every dialogue with the frames of another video; texts, times and windows stay.

    The videos are put in a random circle and each takes its successor's frames, so none keeps its
    own and each is used once. Frames are taken in order, from the start again if there are too few.

    Raises:
      InputError: fewer than two videos.
    """
    first: dict[str, Dialogue] = {}
    for dialogue in dialogues:
        first.setdefault(video_of(dialogue), dialogue)
    names = sorted(first)
    if len(names) < 2:
        raise InputError(f"swapping frames takes at least two videos, there are {len(names)}")
    circle = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    donor = dict(zip(circle, circle[1:] + circle[:1], strict=True))
    return [_with_frames(d, first[donor[video_of(d)]]) for d in dialogues]


def video_of(dialogue: Dialogue) -> str:
    """The video that a dialogue shows: its file, or the folder of its images; "" without frames."""
    for turn in dialogue.turns:
        for frame in turn.frames:
            return str(Path(frame.path).parent) if frame.time is None else frame.path
    return ""


def _with_frames(dialogue: Dialogue, donor: Dialogue) -> Dialogue:
    supply = [frame for turn in donor.turns for frame in turn.frames]
    turns: list[Turn] = []
    shown = 0
    for turn in dialogue.turns:
        frames: list[Frame] = []
        for _ in turn.frames:
            frames.append(supply[shown % len(supply)])
            shown += 1
        turns.append(replace(turn, frames=tuple(frames)))
    return replace(dialogue, turns=tuple(turns))
