"""Turns without a barrier: the same rollouts, in the steps that a plain simulation counts."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.models.cache import KVCache
from turnwise_jax.rollout.decode import Chunk, State
from turnwise_jax.rollout.desync import Level, Shown, levels, narrow, start
from turnwise_jax.rollout.desync_loop import SlotUse
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.stream import StreamEngine
from turnwise_jax.train.metrics import count_compiles

GROUP = 3


@pytest.fixture(scope="module")
def desync(policy, shapes):
    engine = StreamEngine(policy, Sampling(temperature=1.2, top_k=10), shapes, desynchronised=True)
    engine.warm_up(policy.params, group_size=GROUP)
    return engine


def simulate(length: np.ndarray, gather=lambda level: 1) -> tuple[SlotUse, int]:
    """Slot use and decoding steps by the rules of the module's docstring.

    Args:
      length: sampled tokens, int ``[B, G, K]``; 0 where a prompt has no such turn, at the end.
      gather: rows of a level that must wait before turns are shown.
    """
    prompts, group, _ = length.shape
    turn = np.zeros((prompts, group), int)
    count = (length > 0).sum(axis=2)
    left = length[:, :, 0].copy()  # tokens until the turn ends
    waits = np.zeros((prompts, group), bool)
    tokens = slots = turns = lanes = steps = 0

    def end(ended):
        turn[ended] += 1
        waits[ended] = True

    def fits(size):
        live = turn < count
        return live.sum() <= size.prompts if size.mixed else live.sum(axis=1).max() <= size.members

    sizes = levels(prompts, group, split=False)
    for level, after in zip(sizes, [*sizes[1:], Level(0, 1, mixed=True)], strict=True):
        while not fits(after):
            while not fits(after):
                speaking = ~waits & (turn < count)
                if not speaking.any() or (waits & (turn < count)).sum() >= gather(level):
                    break
                steps, slots = steps + 1, slots + level.prompts * level.members
                tokens += speaking.sum()
                left[speaking] -= 1
                end(speaking & (left == 0))
            ended = np.zeros_like(waits)
            waiting = [(turn[b, g], g, b) for b, g in zip(*np.nonzero(waits), strict=True)]
            waiting = sorted(w for w in waiting if w[0] < count[w[2], w[1]])
            shown = set()
            for k, g, b in waiting:
                if level.mixed or b not in shown:
                    shown.add(b)
                    waits[b, g], left[b, g] = False, length[b, g, k] - 1
                    turns, ended[b, g] = turns + 1, left[b, g] == 0
            lanes += level.prompts
            end(ended)
    return SlotUse(tokens / slots, turns / lanes), steps


def test_the_same_rollouts_as_with_a_barrier(desync, policy, examples, rollouts):
    made = desync.rollout(policy.params, examples, group_size=GROUP, seed=11)
    for name in ("tokens", "length", "truncated"):
        np.testing.assert_array_equal(getattr(made, name), getattr(rollouts, name))
    np.testing.assert_allclose(made.logp, rollouts.logp, atol=2e-5)
    assert made.text == rollouts.text
    assert made.use.decoding > rollouts.use.decoding


def test_steps_are_those_of_the_simulation_and_none_compiles(desync, policy, examples, shapes):
    length = np.zeros((shapes.batch, GROUP, shapes.turns), int)
    with count_compiles() as compiles:
        for seed, some in ((3, examples), (4, examples[1:4]), (5, examples[4:])):
            made = desync.rollout(policy.params, some, group_size=GROUP, seed=seed)
            length[:] = 0
            length[: len(some)] = made.length
            expected, _ = simulate(length)
            assert made.use == pytest.approx(expected)
    assert not compiles.names


def test_no_context_is_kept_beside_its_copies(desync, policy, examples, monkeypatch):
    begun, start = [], StreamEngine._start

    def spy(engine, *args):
        begun.append(start(engine, *args))
        return begun[-1]

    monkeypatch.setattr(StreamEngine, "_start", spy)
    desync.rollout(policy.params, examples, group_size=GROUP, seed=11)
    ((_, context, _),) = begun
    assert all(array.is_deleted() for array in context)


def test_waiting_for_company_changes_no_token(policy, shapes, examples, rollouts):
    engine = StreamEngine(
        policy, Sampling(temperature=1.2, top_k=10), shapes, desynchronised=True, show_at=0.25
    )
    made = engine.rollout(policy.params, examples, group_size=GROUP, seed=11)
    np.testing.assert_array_equal(made.tokens, rollouts.tokens)
    length = np.zeros((shapes.batch, GROUP, shapes.turns), int)
    length[: len(examples)] = made.length
    expected, _ = simulate(length, lambda level: -(-level.prompts * level.members // 4))
    assert made.use == pytest.approx(expected)
    assert made.use.showing > simulate(length)[0].showing


def test_ragged_dialogues_use_their_slots():
    """8 prompts x 4 rollouts of 8 turns, replies of 3 to 100 tokens: 85 % of 32 rows' slots."""
    rng = np.random.default_rng(0)
    uses, shorter = [], []
    for _ in range(20):
        length = rng.integers(3, 101, (8, 4, 8))
        use, steps = simulate(length)
        uses.append(use.decoding)
        barrier = SlotUse.with_barrier(length.reshape(32, 8))
        shorter.append(steps / (length.max(axis=(0, 1)) - 1).sum())
        assert barrier.decoding < 0.6
    assert np.mean(uses) > 0.87
    assert min(uses) > 0.8
    assert max(shorter) < 0.85


def test_there_is_no_share_of_work_that_was_not_done():
    """One token a turn comes from showing it; of turns that no dialogue has there is nothing."""
    assert SlotUse.with_barrier(np.array([[1, 1], [1, 0]])) == (None, 0.75)
    assert SlotUse.with_barrier(np.zeros((2, 3), int)) == (None, None)


def test_levels_get_smaller_and_keep_prompts_that_are_split():
    def sizes(*args, **options):
        return [(p, m) + mixed * ("mixed",) for p, m, mixed in levels(*args, **options)]

    few = [(8, 1, "mixed"), (4, 1, "mixed"), (2, 1, "mixed")]
    assert sizes(8, 4, split=False) == [(8, 4), (8, 3), (8, 2), *few]
    assert sizes(8, 4, split=True) == [(8, 4), (8, 3), (8, 2), (8, 1)]
    assert sizes(8, 2, split=False) == [(8, 2), *few]
    assert sizes(8, 1, split=False) == [(8, 1), *few[1:]]
    assert sizes(1, 1, split=False) == [(1, 1)]
    for prompts in range(1, 9):
        for members in range(1, 9):
            for split in (False, True):
                rows = [p * m for p, m, _ in levels(prompts, members, split=split)]
                assert rows[0] == prompts * members
                assert all(a > b for a, b in itertools.pairwise(rows))


@pytest.mark.parametrize("after", [Level(4, 2), Level(4, 1), Level(4, 1, True), Level(2, 1, True)])
def test_narrowing_keeps_every_live_row_with_its_prompt(after):
    level, layers = Level(4, 3), 2
    count = level.prompts * level.members
    rng = np.random.default_rng(after.prompts * 10 + after.members + after.mixed)
    live = np.zeros(level.grid, bool)
    if after.mixed:
        live.reshape(-1)[rng.permutation(count)[: after.prompts]] = True
    else:
        for b in range(level.prompts):
            live[b, rng.permutation(level.members)[: after.members]] = True
    number = jnp.arange(count, dtype=jnp.int32)

    def cache(rows: int) -> KVCache:
        marks = jnp.broadcast_to(
            jnp.arange(rows, dtype=jnp.float32)[None, :, None, None, None], (layers, rows, 1, 5, 2)
        )
        return KVCache(marks, -marks, jnp.arange(rows, dtype=jnp.int32))

    state = State(
        cache(count), jnp.stack([number] * 2, 1), number, number,
        jax.random.split(jax.random.key(0), count), jnp.zeros((), jnp.int32),
    )  # fmt: skip
    rows = start(state, jnp.full(level.prompts, 4), 4, 6)
    rows = rows._replace(turn=jnp.where(live.reshape(-1), 2, 4))
    prompt = jnp.arange(level.prompts, dtype=jnp.int32)
    shown = Shown(cache(level.prompts), Chunk(*(prompt[:, None],) * 5))
    narrowed = jax.jit(narrow, static_argnames=("level", "after"))
    copied, left = narrowed(shown, rows, level=level, after=after)
    assert (copied is None) == (not after.mixed)  # contexts that stay are not copied
    fewer = copied or shown

    origin = np.asarray(left.origin)
    assert set(np.flatnonzero(live.reshape(-1))) == set(origin[np.asarray(left.live)])
    owner = np.asarray(fewer.turns.length)[:, 0]
    np.testing.assert_array_equal(origin // level.members, np.repeat(owner, after.members))
    np.testing.assert_array_equal(fewer.context.k[:, :, 0, 0, 0], np.stack([owner] * layers))
    np.testing.assert_array_equal(fewer.context.length, owner)
    np.testing.assert_array_equal(left.cache.v[:, :, 0, 0, 0], np.stack([-origin] * layers))
    for array in (left.cache.length, left.pending[:, 1], left.pending_length, left.position):
        np.testing.assert_array_equal(array, origin)
    np.testing.assert_array_equal(
        jax.random.key_data(left.key), jax.random.key_data(rows.key)[origin]
    )
