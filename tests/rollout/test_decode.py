"""The device side piece by piece: what is written to the cache, where, and what waits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_checks import NEW_TOKENS

from turnwise_jax.rollout.decode import Rule, State, TurnOutput, _close, begin, encode, take_turn
from turnwise_jax.rollout.prompts import prompt_batch
from turnwise_jax.rollout.sampling import Sampling

GROUP = 2


@pytest.fixture(scope="module")
def steps(policy, examples, shapes):
    """States before turn 0, 1, ..., the output of each turn, and the contexts' cache."""
    prompts = prompt_batch(examples, policy, [shapes])
    rule = Rule(Sampling(temperature=1.2, top_k=10), policy.vocab.im_end, NEW_TOKENS)
    shared = {"graphdef": policy.graphdef}
    media = jax.jit(lambda p, v: encode(p, v, **shared))(policy.params, prompts.media)
    start = jax.jit(lambda p, m, c: begin(
        p, m, c, jnp.uint32(0), jnp.uint32(0), prompts.seed,
        group_size=GROUP, capacity=shapes.branch, **shared,
    ))  # fmt: skip
    turn = jax.jit(lambda p, m, k, s, c, a: take_turn(
        p, m, policy.allowed, k, s, c, a, rule=rule, **shared
    ))  # fmt: skip
    kept, state = start(policy.params, media, prompts.context)
    states, outputs = [state], []
    for k in range(prompts.depth):
        state, out = turn(
            policy.params, media, kept, state, prompts.turn(k), prompts.turn_mask[:, k]
        )
        states.append(state)
        outputs.append(out)
    return prompts, jax.device_get(
        [s._replace(key=jax.random.key_data(s.key)) for s in states]
    ), jax.device_get(outputs), jax.device_get(kept)  # fmt: skip


def repeated(array):
    return np.repeat(array, GROUP, axis=0)


def test_the_context_is_prefilled_but_for_its_last_token(steps, policy):
    prompts, states, _, shared = steps
    context = prompts.context
    np.testing.assert_array_equal(shared.length, context.length - 1)
    assert (states[0].cache.length == 0).all()
    last = np.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)[:, 0]
    np.testing.assert_array_equal(states[0].pending[:, 0], repeated(last))
    assert (states[0].pending_length == 1).all()


def test_each_turn_writes_what_was_pending_shown_and_sampled_but_the_last(steps):
    prompts, states, outputs, _ = steps
    for k, out in enumerate(outputs):
        active = repeated(prompts.turn_mask[:, k])
        written = states[k].pending_length + repeated(prompts.turns.length[k]) + out.length - 1
        grown = states[k + 1].cache.length - states[k].cache.length
        np.testing.assert_array_equal(grown, np.where(active, written, 0))


def test_a_cut_turn_leaves_its_last_token_and_a_marker_waiting(steps, policy):
    prompts, states, outputs, _ = steps
    marker, kinds = policy.vocab.im_end, set()
    for k, out in enumerate(outputs):
        for n in np.flatnonzero(repeated(prompts.turn_mask[:, k])):
            last = out.tokens[n, out.length[n] - 1]
            waiting = states[k + 1].pending[n, : states[k + 1].pending_length[n]].tolist()
            assert waiting == ([last, marker] if out.truncated[n] else [marker])
            kinds.add(bool(out.truncated[n]))
    assert kinds == {True, False}


def test_rows_without_a_turn_keep_their_cache_untouched(steps):
    prompts, states, outputs, _ = steps
    idle = ~repeated(prompts.turn_mask[:, 1])
    assert idle.any()
    assert (outputs[1].length[idle] == 0).all()
    for name in ("k", "v"):
        before, after = (getattr(state.cache, name)[:, idle] for state in states[1:3])
        np.testing.assert_array_equal(after, before)


def test_rows_without_a_turn_keep_all_that_waits():
    """Row 1 has two tokens waiting from the turn before and none in this one."""
    both = np.array([2, 2], np.int32)
    before = State(None, np.array([[5, 9], [6, 9]], np.int32), both, np.array([7, 8]), None, 1)
    said = TurnOutput(np.array([[9, 0], [0, 0]]), None, np.array([1, 0]), np.array([False, False]))
    after = _close(before, None, said, np.array([12, 10]), np.array([True, False]), 9)
    np.testing.assert_array_equal(after.pending, [[9, 9], [6, 9]])
    np.testing.assert_array_equal(after.pending_length, [1, 2])
    np.testing.assert_array_equal(after.position, [12, 8])


def test_finished_rows_write_nothing_while_others_speak(steps):
    """Slots past a row's length are as they were when the cache was made: zero."""
    _, states, outputs, _ = steps
    assert len(set(outputs[0].length.tolist())) > 1
    cache = states[1].cache
    for n, length in enumerate(cache.length):
        assert (cache.k[:, n, :, length:] == 0).all()
        assert (cache.k[:, n, :, :length] != 0).any(axis=-1).all()


def test_a_context_is_kept_once_for_the_rows_of_its_group(steps):
    prompts, states, _, shared = steps
    assert shared.k.shape[1:4:2] == prompts.context.tokens.shape
    assert states[0].cache.k.shape[1] == len(states[0].key) == GROUP * shared.k.shape[1]
    assert (states[0].cache.k == 0).all()
    assert len({tuple(key) for key in states[0].key.tolist()}) == len(states[0].key)
