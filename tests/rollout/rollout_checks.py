"""What rollout tests compare with: a full forward pass over finished rows."""

from __future__ import annotations

import jax
import numpy as np
from flax import nnx
from tiny import make_example

from turnwise_jax.rollout.shapes import Shapes

NEW_TOKENS = 6


def shapes_for(policy, examples, **options):
    """The buckets of these examples, in one batch unless told otherwise."""
    options = {"batch_size": len(examples), "new_tokens": NEW_TOKENS, **options}
    return Shapes.for_dialogues(
        [example.dialogue for example in examples],
        [example.grids for example in examples],
        policy,
        **options,
    )


def make_examples(policy) -> list:
    """Images of two sizes, videos of several lengths beside an image, a dialogue without media.

    Where the policy hears: sound after an image, inside one video and not the other, and alone.
    """
    side, spec = 4 * policy.spec.patch_size, policy.spec
    square, wide = (side, side), (side, side * 3 // 2)
    videos = {"per_turn": (1, 4, 0, 2), "videos": (1, 3)}
    after, inside = ({0: 0.33}, {1: 2.61, 2: 0.9}) if policy.template.sound else ({}, {})
    return [
        make_example("images", 2, seed=1, size=wide, spec=spec, sounds=after),
        make_example("videos", 3, seed=2, size=square, spec=spec, sounds=inside, **videos),
        make_example("words", 2, seed=3, per_turn=0, spec=spec),
    ]


def full_pass(policy, params, vision, tokens, positions, media_index, valid):
    """float64 logits [N, T, V] of one pass over whole rows, without a cache."""

    @jax.jit
    def logits(params, vision):
        model = nnx.merge(policy.graphdef, params)
        hidden, _ = model(
            tokens,
            positions,
            media=model.encode_media(vision),
            media_index=media_index,
            valid=valid,
        )
        return hidden.astype(np.float32) @ model.head().astype(np.float32)

    return np.asarray(logits(params, vision), np.float64)


def score(policy, params, rows, vision, temperature):
    """float64 [N, A]: log-probability of every action by one teacher-forced pass; 0 if masked."""
    logits = full_pass(
        policy, params, vision, rows.tokens, rows.positions, rows.media_index, rows.valid
    )
    scaled = np.take_along_axis(logits, rows.action_pos[..., None], axis=1) / temperature
    peak = scaled.max(axis=-1, keepdims=True)
    norm = peak[..., 0] + np.log(np.exp(scaled - peak).sum(axis=-1))
    chosen = np.take_along_axis(scaled, rows.action_target[..., None], axis=2)[..., 0]
    return np.where(rows.action_mask, chosen - norm, 0.0)
