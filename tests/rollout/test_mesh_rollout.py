"""Rollouts on meshes of eight simulated devices: the same tokens, nothing whole that is split."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from rollout_checks import shapes_for

from turnwise_jax.errors import InputError
from turnwise_jax.models.sharding import param_shardings
from turnwise_jax.rollout.placement import Placement
from turnwise_jax.rollout.prompts import empty_batch
from turnwise_jax.rollout.sampling import Sampling
from turnwise_jax.rollout.shapes import shared
from turnwise_jax.rollout.stream import StreamEngine

GROUP, SEED = 4, 11
SAMPLING = Sampling(temperature=1.2, top_k=10)
COLLECTIVE = re.compile(r"= .*(all-gather|all-to-all|all-reduce|collective-permute)[^ ]*\(")


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    kinds = (AxisType.Auto,) * 3
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, ("data", "fsdp", "tensor"), axis_types=kinds, devices=devices)


@pytest.fixture(scope="module")
def some(examples):
    """Two prompts of four rollouts: fewer prompts than devices, as many rows."""
    return [examples[0], examples[2]]


@pytest.fixture(scope="module")
def bucket(policy, some):
    (bucket,) = shared(shapes_for(policy, some), 8, 0, 1)
    return bucket


@pytest.fixture(scope="module")
def alone(policy, some, bucket):
    engine = StreamEngine(policy, SAMPLING, bucket)
    return engine.rollout(policy.params, some, group_size=GROUP, seed=SEED)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_tokens_do_not_depend_on_the_mesh(policy, some, bucket, alone, sizes):
    placement = Placement(mesh_of(*sizes))
    params = jax.device_put(
        policy.params, param_shardings(policy.params, placement.mesh, policy.config)
    )
    engine = StreamEngine(policy, SAMPLING, bucket, placement)
    made = engine.rollout(params, some, group_size=GROUP, seed=SEED)
    np.testing.assert_array_equal(made.tokens, alone.tokens)
    np.testing.assert_array_equal(made.truncated, alone.truncated)
    np.testing.assert_allclose(made.logp, alone.logp, atol=1e-5)
    assert made.text == alone.text
    prompts = engine.encoded(params, engine.prepare(some))
    *_, state = engine._start(params, prompts, GROUP, SEED, 0)
    layers, rows, heads, slots, width = state.cache.k.shape
    parts = placement.row_parts
    own = state.cache.k.addressable_shards[0].data.shape
    assert own == (layers, rows // parts, heads // sizes[2], slots, width)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2)])
def test_nor_without_a_barrier(policy, some, bucket, alone, sizes):
    placement = Placement(mesh_of(*sizes))
    params = jax.device_put(
        policy.params, param_shardings(policy.params, placement.mesh, policy.config)
    )
    engine = StreamEngine(policy, SAMPLING, bucket, placement, desynchronised=True)
    made = engine.rollout(params, some, group_size=GROUP, seed=SEED)
    np.testing.assert_array_equal(made.tokens, alone.tokens)
    np.testing.assert_allclose(made.logp, alone.logp, atol=1e-5)
    assert made.text == alone.text


def test_a_decoding_loop_moves_no_cache(policy, bucket):
    """No device sends keys or values, and none holds more than its part of them."""
    slots = 4096
    bucket = bucket._replace(branch=slots)
    memory = []
    for sizes in ((1, 1, 1), (2, 2, 2)):
        placement = Placement(mesh_of(*sizes))
        places = param_shardings(policy.params, placement.mesh, policy.config)
        engine = StreamEngine(policy, SAMPLING, bucket, placement)
        params = jax.device_put(policy.params, places)
        lowered = dict(engine.lowerings(params, empty_batch(policy, bucket), group_size=GROUP))
        compiled = lowered["turn"].compile()
        memory.append(compiled.memory_analysis())
    sent = [line for line in compiled.as_text().splitlines() if COLLECTIVE.search(line)]
    assert sent  # parameters and features do travel
    assert not [line for line in sent if f",{slots}" in line or f"[{slots}" in line]
    one, eight = memory
    assert eight.alias_size_in_bytes < one.alias_size_in_bytes / 7  # the donated cache
    assert eight.temp_size_in_bytes < one.temp_size_in_bytes / 5


def test_nor_does_one_without_a_barrier(policy, bucket):
    slots = 4096
    placement = Placement(mesh_of(2, 2, 2))
    places = param_shardings(policy.params, placement.mesh, policy.config)
    engine = StreamEngine(
        policy, SAMPLING, bucket._replace(branch=slots), placement, desynchronised=True
    )
    params = jax.device_put(policy.params, places)
    programs = engine.lowerings(params, empty_batch(policy, engine.buckets[0]), group_size=GROUP)
    (lowered,) = [program for name, program in programs if name == "turns_4x2"]
    sent = [x for x in lowered.compile().as_text().splitlines() if COLLECTIVE.search(x)]
    assert sent
    assert not [line for line in sent if f",{slots}" in line or f"[{slots}" in line]


def test_prompts_that_devices_cannot_share_are_refused(policy, some, bucket):
    engine = StreamEngine(policy, SAMPLING, bucket, Placement(mesh_of(8, 1, 1)))
    with pytest.raises(InputError, match="2 prompts of 2 rollouts are no equal parts for 8"):
        engine.rollout(policy.params, some, group_size=2, seed=SEED)


def test_mesh_that_tears_heads_is_refused(policy):
    with pytest.raises(InputError, match="8 parts do not divide 2 key-value heads"):
        param_shardings(policy.params, mesh_of(1, 1, 8), policy.config)
