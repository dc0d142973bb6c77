"""Reductions: right values, one division, no dependence on splits, padding or garbage."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import (
    MeanTerms,
    mean_of_terms,
    token_mean_terms,
    trajectory_mean,
    trajectory_mean_terms,
)

from . import reference
from .compiled import token_mean, turn_mean, turn_mean_terms, turn_sums

NUM_TURNS = 4


def dialogues(seed=0, num_trajectories=8, num_tokens=24):
    """Random trajectories with turns of very different length; the last one has no token."""
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(num_trajectories, num_tokens)).astype(np.float32)
    turn = np.sort(rng.integers(-1, NUM_TURNS, (num_trajectories, num_tokens)), axis=1)
    mask = (turn >= 0) & (rng.random(turn.shape) < 0.8)
    mask[-1] = False
    return value, mask, turn.astype(np.int32)


# How each reduction of a batch is made from trajectories: terms to add up, then one division.
def turn_terms(value, mask, turn):
    means = jax.vmap(turn_mean, in_axes=(0, 0, 0, None))(value, mask, turn, NUM_TURNS)
    return trajectory_mean_terms(means, mask.any(1))


def trajectory_token_terms(value, mask, turn):
    return trajectory_mean_terms(jax.vmap(token_mean)(value, mask), mask.any(1))


def batch_token_terms(value, mask, turn):
    return jax.tree.map(jnp.sum, jax.vmap(token_mean_terms)(value, mask))


REDUCTIONS = {
    "turn": turn_terms,
    "trajectory token": trajectory_token_terms,
    "batch token": batch_token_terms,
}


def brute_force(name, value, mask, turn):
    rows = list(zip(value.astype(np.float64), mask, turn, strict=True))
    if name == "batch token":
        return float(np.mean([v for row, m, _ in rows for v in row[m]]))
    if name == "trajectory token":
        return float(np.mean([row[m].mean() for row, m, _ in rows if m.any()]))
    turns = [[int(t) if keep else None for t, keep in zip(ts, m, strict=True)] for _, m, ts in rows]
    means = [
        reference.turn_mean(list(row), ids)
        for (row, m, _), ids in zip(rows, turns, strict=True)
        if m.any()
    ]
    return float(np.mean(means))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_equal_the_literal_formula(name):
    for seed in range(10):
        batch = dialogues(seed)
        actual = float(mean_of_terms(REDUCTIONS[name](*batch)))
        assert actual == pytest.approx(brute_force(name, *batch), abs=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("sizes", [[8], [4, 4], [1] * 8, [5, 2, 1]])
def test_fault_9_loss_and_gradient_do_not_depend_on_the_micro_batch_split(name, sizes):
    value, mask, turn = dialogues()

    @jax.jit
    def part(value, mask, turn):
        def total(value):
            terms = REDUCTIONS[name](value, mask, turn)
            return terms.sum, terms.num

        (sum_, num), gradient = jax.value_and_grad(total, has_aux=True)(value)
        return sum_, num, gradient

    edges = np.cumsum([0, *sizes])
    rows = [slice(*pair) for pair in itertools.pairwise(edges)]
    sums, nums, gradients = zip(*(part(value[r], mask[r], turn[r]) for r in rows), strict=True)
    whole_loss, whole_gradient = jax.value_and_grad(
        lambda v: mean_of_terms(REDUCTIONS[name](v, mask, turn))
    )(jnp.asarray(value))
    assert float(sum(sums) / sum(nums)) == pytest.approx(float(whole_loss), abs=1e-6)
    np.testing.assert_allclose(np.concatenate(gradients) / sum(nums), whole_gradient, atol=1e-7)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("devices", [2, 8])
def test_fault_9_loss_does_not_depend_on_the_data_parallel_size(name, devices):
    batch = dialogues()
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("data",), auto, devices=jax.devices()[:devices])
    rows = jax.sharding.PartitionSpec("data")

    def shard_loss(*shard):
        return mean_of_terms(jax.lax.psum(REDUCTIONS[name](*shard), "data"))

    loss = jax.jit(
        jax.shard_map(
            shard_loss, mesh=mesh, in_specs=(rows,) * 3, out_specs=jax.sharding.PartitionSpec()
        )
    )(*batch)
    assert float(loss) == pytest.approx(brute_force(name, *batch), abs=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("width", [64, 128])
def test_fault_10_padding_is_never_a_divisor(name, width):
    value, mask, turn = dialogues()
    extra = ((0, 0), (0, width - value.shape[1]))
    padded = REDUCTIONS[name](
        np.pad(value, extra, constant_values=np.nan), np.pad(mask, extra), np.pad(turn, extra)
    )
    assert float(mean_of_terms(padded)) == pytest.approx(
        float(mean_of_terms(REDUCTIONS[name](value, mask, turn))), abs=1e-7
    )


def test_every_turn_weighs_the_same_however_long():
    """Eq. 7's weights 1 / (T_i L_it), read off the gradient."""
    turn = jnp.array([0, 0, 0, 1, 2, 2])
    weights = jax.grad(lambda v: turn_mean(v, jnp.ones(6, bool), turn, 3))(jnp.zeros(6))
    np.testing.assert_allclose(weights, [1 / 9] * 3 + [1 / 3] + [1 / 6] * 2, rtol=1e-6)


def test_turns_without_trained_tokens_are_left_out_of_the_count():
    value, mask = [1.0, 5.0, 3.0], [True, False, True]
    assert float(turn_mean(value, mask, [0, 1, 2], 9)) == pytest.approx(2.0)


@pytest.mark.parametrize("stray", [-1, -3, 2, 100])
def test_tokens_of_no_turn_do_not_count(stray):
    assert float(turn_mean([1.0, 7.0, 3.0], [True] * 3, [0, stray, 1], 2)) == pytest.approx(2.0)


def test_turn_terms_split_between_turns_and_turn_sums_split_inside_one():
    value, mask, turn = (array[0] for array in dialogues(3))
    whole = float(turn_mean(value, mask, turn, NUM_TURNS))
    border = int(np.searchsorted(turn, 2))
    halves = [
        turn_mean_terms(value[part], mask[part], turn[part], NUM_TURNS)
        for part in (slice(None, border), slice(border, None))
    ]
    assert float(mean_of_terms(jax.tree.map(jnp.add, *halves))) == pytest.approx(whole, abs=1e-6)
    pieces = [
        turn_sums(value[part], mask[part], turn[part], NUM_TURNS)
        for part in (slice(None, 11), slice(11, None))
    ]
    turns = jax.tree.map(jnp.add, *pieces)
    assert float(token_mean(mean_of_terms(turns), turns.num > 0)) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("reduce", [token_mean, trajectory_mean])
def test_a_mean_over_nothing_is_zero_with_zero_gradient(reduce):
    value, slope = jax.value_and_grad(reduce)(jnp.array([jnp.nan, 1.0]), jnp.zeros(2, bool))
    assert float(value) == 0.0
    assert slope.tolist() == [0.0, 0.0]
    assert float(turn_mean([], [], jnp.zeros(0, jnp.int32), 3)) == 0.0
    assert float(turn_mean([1.0], [True], [0], 0)) == 0.0


def test_mean_of_terms_divides_entry_by_entry():
    terms = MeanTerms(jnp.array([3.0, 0.0]), jnp.array([2.0, 0.0]))
    assert mean_of_terms(terms).tolist() == [1.5, 0.0]


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="turn_id_T has 1 entries"):
        turn_mean([1.0, 2.0], [True, True], [0], 2)
    with pytest.raises(ValueError, match="num_turns must not be negative"):
        turn_mean([1.0], [True], [0], -1)
