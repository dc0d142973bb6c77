"""What every public kernel promises, checked for each in every way JAX can run it.

A case holds a kernel as a function of arrays, a batch of inputs, and which inputs a mask hides. To
add a kernel, add a case; `test_every_public_function_has_a_case` sees to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax import kernels

from .trajectories import random_trajectory

BATCH, G, K, W, T, D, V, N = 8, 4, 5, 3, 12, 4, 11, 6
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=(BATCH, *shape)).astype(np.float32)


def bools(*shape, share=0.7):
    return RNG.random((BATCH, *shape)) < share


@dataclass(frozen=True, eq=False)
class Case:
    """`inputs` have a leading axis of 8 examples; `hidden` maps an input's position to that of its
    mask, or to a function of the example's inputs that gives the mask."""

    function: Callable
    inputs: tuple[np.ndarray, ...]
    hidden: dict[int, int | Callable] = field(default_factory=dict)
    needs_gradient: bool = True
    checks_rank: bool = True

    def example(self, index=0):
        return tuple(jnp.asarray(array[index]) for array in self.inputs)

    def float_positions(self):
        return [i for i, array in enumerate(self.inputs) if array.dtype == np.float32]

    def masks(self, arguments):
        """(position, mask that broadcasts against the input) of the inputs with hidden parts."""
        for position, mask in self.hidden.items():
            mask = np.asarray(mask(*arguments) if callable(mask) else arguments[mask])
            missing = arguments[position].ndim - mask.ndim
            yield position, mask.reshape(mask.shape + (1,) * missing)


def on_trajectory(kernel):
    """A kernel of one trajectory as a function of nine arrays; hidden ones may hold anything."""

    def function(*arrays):
        return kernel(kernels.ScoredTurns(*arrays[:6]), kernels.Windows(*arrays[6:]))

    pairs = [random_trajectory(seed, K, W) for seed in range(100, 100 + BATCH)]
    records = [(*pair.turns, *pair.windows) for pair in pairs]
    inputs = tuple(np.stack(leaves) for leaves in zip(*records, strict=True))
    # Gradients are compared, so start from finite numbers under the masks and from given scores.
    inputs = tuple(a if a.dtype == bool else np.nan_to_num(a, posinf=1, neginf=1) for a in inputs)
    return Case(
        function,
        inputs,
        hidden={0: 5, 2: lambda *a: a[5] & a[1], 3: lambda *a: a[5] & a[1], 6: 8, 7: 8},
    )


TOKENS = (floats(T), bools(T))
TURN_IDS = RNG.integers(-1, K, (BATCH, T)).astype(np.int32)
LOGPROB_INPUTS = (
    floats(T, D),
    floats(D, V),
    RNG.integers(0, V, (BATCH, T)).astype(np.int32),
    bools(T),
)
PREFIX_SCORES = floats(G, K + 1)
TURN_MASK = np.arange(K)[None, None, :] < RNG.integers(1, K + 1, (BATCH, G, 1))

CASES = {
    "window_quality": Case(
        kernels.window_quality,
        (
            np.sort(RNG.uniform(0, 20, (BATCH, K)).astype(np.float32), axis=1),
            RNG.integers(0, 5, (BATCH, K)).astype(np.float32),
            bools(K),
            RNG.uniform(0, 5, BATCH).astype(np.float32),
            RNG.uniform(10, 15, BATCH).astype(np.float32),
        ),
        hidden={0: 2, 1: 2},
    ),
    "score_trajectory": on_trajectory(kernels.score_trajectory),
    "prefix_scores": on_trajectory(kernels.prefix_scores),
    "turn_increments": Case(kernels.turn_increments, (floats(K + 1),)),
    "group_advantages": Case(
        lambda reward, mask: kernels.group_advantages(reward, mask=mask),
        (floats(G), bools(G)),
        hidden={0: 1},
    ),
    "has_signal": Case(
        lambda reward, mask: kernels.has_signal(reward, mask=mask),
        (floats(G), bools(G)),
        hidden={0: 1},
        needs_gradient=False,
    ),
    "turn_advantages": Case(
        lambda scores, turns, rollouts, alpha: kernels.turn_advantages(
            scores, turn_mask=turns, rollout_mask=rollouts, alpha=alpha
        ),
        (PREFIX_SCORES, TURN_MASK, bools(G), RNG.random(BATCH).astype(np.float32)),
        hidden={
            0: lambda _, turns, rollouts, alpha: (
                jnp.concatenate([jnp.ones((G, 1), bool), turns], axis=1) & rollouts[:, None]
            )
        },
    ),
    "alpha_warmup": Case(
        lambda step: kernels.alpha_warmup(step, 50),
        (np.arange(BATCH, dtype=np.int32),),
        needs_gradient=False,
    ),
    "replay_advantages baseline": Case(
        lambda reward, reference, mask: kernels.replay_advantages(reward, reference, mask=mask),
        (floats(N), floats(N), bools(N)),
        hidden={0: 2, 1: 2},
    ),
    "replay_advantages multiplicative": Case(
        lambda reward, reference, mask: kernels.replay_advantages(
            reward, reference, kind="multiplicative", mask=mask
        ),
        (floats(N), floats(N), bools(N)),
        hidden={0: 2, 1: 2},
    ),
    **{
        f"tas_weights {shape}": Case(
            partial(kernels.tas_weights, shape=shape), (bools(T),), needs_gradient=False
        )
        for shape in ("u", "linear_decay", "linear_incline", "uniform")
    },
    "importance_ratio": Case(
        kernels.importance_ratio, (floats(T), floats(T), bools(T)), hidden={0: 2, 1: 2}
    ),
    "clipped_surrogate": Case(kernels.clipped_surrogate, (np.exp(floats(T)), floats(T))),
    "clipped_tokens": Case(
        kernels.clipped_tokens, (np.exp(floats(T)), floats(T)), needs_gradient=False
    ),
    **{
        f"kl_estimate {kind}": Case(
            lambda logp, ref, mask, kind=kind: kernels.kl_estimate(
                logp, ref, kind=kind, mask_T=mask
            ),
            (floats(T), floats(T), bools(T)),
            hidden={0: 2, 1: 2},
        )
        for kind in ("k1", "k2", "k3")
    },
    "cross_entropy": Case(kernels.cross_entropy, TOKENS, hidden={0: 1}),
    "replay_mean": Case(
        lambda loss, mask, replayed, weight: kernels.replay_mean(
            loss, mask, replayed, weight=weight
        ),
        (floats(N), bools(N), bools(N, share=0.5), floats()),
        hidden={0: 1},
    ),
    "token_mean": Case(kernels.token_mean, TOKENS, hidden={0: 1}),
    "token_mean_terms": Case(kernels.token_mean_terms, TOKENS, hidden={0: 1}),
    "trajectory_mean": Case(kernels.trajectory_mean, TOKENS, hidden={0: 1}),
    "trajectory_mean_terms": Case(kernels.trajectory_mean_terms, TOKENS, hidden={0: 1}),
    **{
        name: Case(
            lambda value, mask, turn, name=name: getattr(kernels, name)(value, mask, turn, K),
            (*TOKENS, TURN_IDS),
            hidden={0: lambda value, mask, turn: mask & (turn >= 0)},
        )
        for name in ("turn_mean", "turn_mean_terms", "turn_sums")
    },
    "mean_of_terms": Case(
        lambda total, num: kernels.mean_of_terms(kernels.MeanTerms(total, num)),
        (floats(K), np.abs(np.round(floats(K)))),
        hidden={0: lambda total, num: num > 0},
        checks_rank=False,
    ),
    "token_logprobs": Case(
        lambda hidden, head, target, mask: kernels.token_logprobs(
            hidden, head, target, chunk=4, mask_T=mask
        ),
        LOGPROB_INPUTS,
        hidden={0: 3},
    ),
    "token_entropy": Case(
        lambda hidden, head, mask: kernels.token_entropy(hidden, head, chunk=4, mask_T=mask),
        (LOGPROB_INPUTS[0], LOGPROB_INPUTS[1], LOGPROB_INPUTS[3]),
        hidden={0: 2},
    ),
    "logprobs_and_entropy": Case(
        lambda hidden, head, target, mask: kernels.logprobs_and_entropy(
            hidden, head, target, chunk=4, mask_T=mask
        ),
        LOGPROB_INPUTS,
        hidden={0: 3},
    ),
}
MASKED = {name: case for name, case in CASES.items() if case.hidden}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_masked_case = pytest.mark.parametrize("case", MASKED.values(), ids=MASKED.keys())


def assert_close(actual, expected):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def with_gradient(case):
    """The kernel's outputs and the gradients of their weighted sum for all float inputs."""
    if not case.needs_gradient:
        return lambda *arguments: (case.function(*arguments), ())
    positions = case.float_positions()

    def run(*arguments):
        def total(*values):
            filled = list(arguments)
            for position, value in zip(positions, values, strict=True):
                filled[position] = value
            outputs = case.function(*filled)
            # Uneven weights, as the plain sum of many of these is constant.
            leaves = [leaf.ravel() for leaf in jax.tree.leaves(outputs)]
            return sum(jnp.sum(jnp.cos(jnp.arange(x.size)) * x) for x in leaves), outputs

        values = [arguments[position] for position in positions]
        gradients, outputs = jax.grad(total, tuple(range(len(values))), has_aux=True)(*values)
        return outputs, gradients

    return run


@cache
def single(case):
    """Outputs and gradients of one example, compiled once for all tests."""
    return jax.jit(with_gradient(case))


@cache
def batched(case):
    """Outputs and gradients of all examples by vmap: what the other batched runs must equal."""
    return jax.jit(jax.vmap(with_gradient(case)))(*case.inputs)


def test_every_public_function_has_a_case():
    functions = {name for name in kernels.__all__ if not isinstance(getattr(kernels, name), type)}
    assert functions == {name.split()[0] for name in CASES}


@every_case
def test_eager_and_jit_agree_and_are_finite_float32(case):
    arguments = case.example()
    outputs = case.function(*arguments)
    assert_close(single(case)(*arguments)[0], outputs)
    for leaf in jax.tree.leaves(outputs):
        assert leaf.dtype in (jnp.float32, jnp.bool_)
        assert np.all(np.isfinite(np.asarray(leaf)))


@every_case
def test_float64_inputs_are_computed_in_float32(case):
    """Also when the caller has switched JAX to 64 bits."""
    plain = single(case)(*case.example())[0]
    with jax.enable_x64(True):
        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in case.inputs]
        outputs = jax.jit(case.function)(*(array[0] for array in wide))
    for one, other in zip(jax.tree.leaves(outputs), jax.tree.leaves(plain), strict=True):
        assert one.dtype == other.dtype
    assert_close(outputs, plain)


@every_case
def test_vmap_equals_single_calls_and_gradients_are_finite(case):
    results = [single(case)(*case.example(index)) for index in range(BATCH)]
    one_by_one = jax.tree.map(lambda *leaves: np.stack(leaves), *results)
    assert_close(batched(case), one_by_one)
    for leaf in jax.tree.leaves(batched(case)[1]):
        assert np.all(np.isfinite(np.asarray(leaf)))


@every_case
def test_shard_map_equals_vmap(case):
    mesh = jax.make_mesh((BATCH,), ("data",), (jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("data")
    mapped = jax.vmap(with_gradient(case))
    sharded = jax.shard_map(mapped, mesh=mesh, in_specs=rows, out_specs=rows)
    assert_close(jax.jit(sharded)(*case.inputs), batched(case))


@every_case
def test_shard_map_accepts_inputs_that_are_the_same_on_every_device(case):
    """Each input in turn is whole while the others are split: their types meet in every scan."""
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    rows, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    expected = jax.eval_shape(jax.vmap(case.function), *(array[:2] for array in case.inputs))
    for position in range(len(case.inputs)):
        axes: list[int | None] = [0] * len(case.inputs)
        axes[position] = None if len(axes) > 1 else 0
        sharded = jax.shard_map(
            jax.vmap(case.function, in_axes=axes),
            mesh=mesh,
            in_specs=tuple(whole if axis is None else rows for axis in axes),
            out_specs=rows,
        )
        pairs = zip(case.inputs, axes, strict=True)
        arguments = [array[0] if axis is None else array[:2] for array, axis in pairs]
        assert jax.tree.map(jnp.shape, jax.eval_shape(sharded, *arguments)) == jax.tree.map(
            jnp.shape, expected
        )


if hasattr(jax, "pmap"):

    @every_case
    def test_pmap_equals_vmap(case):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pmap", category=DeprecationWarning)
            outputs = jax.pmap(with_gradient(case))(*case.inputs)
        assert_close(outputs, batched(case))


@every_masked_case
def test_fault_13_what_a_mask_hides_changes_neither_value_nor_gradient(case):
    for index, bad in enumerate([np.nan, np.inf, -np.inf]):
        arguments = case.example(index)
        spoilt = list(arguments)
        for position, mask in case.masks(arguments):
            spoilt[position] = jnp.where(mask, arguments[position], bad)
        assert_close(single(case)(*spoilt), single(case)(*arguments))


@every_case
def test_a_batch_given_without_vmap_fails_at_trace_time(case):
    if not case.checks_rank:
        assert jax.eval_shape(case.function, *case.inputs).shape == case.inputs[0].shape
        return
    with pytest.raises(ValueError, match=r"use jax\.vmap for many"):
        jax.eval_shape(case.function, *case.inputs)
